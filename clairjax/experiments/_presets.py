"""How large each experiment is: `smoke` for CI, `laptop` for minutes on two cores, `paper` as printed. Data only."""

from typing import NamedTuple


class Preset(NamedTuple):
    """Every dimension with every number of clients, `replicates` times."""

    dimensions: tuple[int, ...]
    clients: tuple[int, ...]
    replicates: int


PRESETS: dict[str, dict[str, Preset]] = {
    "clair-table1": {
        "smoke": Preset((10,), (5, 10), 4),
        "laptop": Preset((10, 20, 50), (5, 10, 20), 100),
        "paper": Preset((10, 20, 50), (5, 10, 20), 100),
    },
    "clair-table2": {
        "smoke": Preset((10,), (5, 10), 4),
        "laptop": Preset((10, 20, 50), (5, 10, 20), 100),
        "paper": Preset((10, 20, 50), (5, 10, 20), 100),
    },
    "clair-fig1": {
        "smoke": Preset((10,), (5, 10, 20), 4),
        "laptop": Preset((10, 20, 50), (10, 20, 40, 80, 160), 20),
        "paper": Preset((10, 20, 50), (5, 10, 20, 40, 80, 160), 100),
    },
    "clair-constants": {
        "smoke": Preset((10,), (5,), 2),
        "laptop": Preset((10, 20, 50), (5, 10, 20), 20),
        "paper": Preset((10, 20, 50), (5, 10, 20), 100),
    },
}
