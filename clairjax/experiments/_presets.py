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


class CentaurLinear(NamedTuple):
    """Numbers of clients and of features (the middle of each stands where the other varies), rounds per condition."""

    clients: tuple[int, ...]
    features: tuple[int, ...]
    rates: tuple[tuple[float, int], ...]
    rounds: int
    runs: int
    replicates: int


CENTAUR_LINEAR: dict[str, CentaurLinear] = {
    "smoke": CentaurLinear((200, 400), (12, 16), ((1.0, 60),), 30, 2, 3),
    "laptop": CentaurLinear((500, 1000, 2000, 4000), (12, 25, 50, 100), ((1.0, 85), (2.0, 380)), 60, 30, 10),
    "paper": CentaurLinear((500, 1000, 2000, 4000), (12, 25, 50, 100, 200), ((1.0, 85), (2.0, 380)), 60, 30, 40),
}


class CentaurTradeoff(NamedTuple):
    """Every ε at `clients`; every number of features at `many_clients`."""

    epsilons: tuple[float, ...]
    clients: int
    features: tuple[int, ...]
    many_clients: int
    replicates: int


CENTAUR_TRADEOFF: dict[str, CentaurTradeoff] = {
    "smoke": CentaurTradeoff((1.0, 4.0), 300, (8, 16), 500, 3),
    "laptop": CentaurTradeoff((0.5, 1.0, 2.0, 4.0, 8.0), 1000, (25, 50, 100), 4000, 10),
    "paper": CentaurTradeoff((0.5, 1.0, 2.0, 4.0, 8.0), 1000, (25, 50, 100), 4000, 40),
}


class CentaurSettings(NamedTuple):
    """Rounds to try for CENTAUR, and for perturbed least squares."""

    rounds: tuple[int, ...]
    server_rounds: tuple[int, ...]
    clients: int
    replicates: int


CENTAUR_SETTINGS: dict[str, CentaurSettings] = {
    "smoke": CentaurSettings((10,), (2,), 200, 2),
    "laptop": CentaurSettings((10, 20, 40, 80), (1, 2, 4, 8), 1000, 8),
    "paper": CentaurSettings((10, 20, 40, 80), (1, 2, 4, 8), 1000, 24),
}


class Tasks(NamedTuple):
    """Every combination of numbers of clients, of samples and of ranks."""

    clients: tuple[int, ...]
    samples: tuple[int, ...]
    ranks: tuple[int, ...]
    rounds: int
    replicates: int


FLUTE: dict[str, dict[str, Tasks]] = {
    "flute-fig1": {
        "smoke": Tasks((15,), (12,), (2, 4), 200, 3),
        "laptop": Tasks((30,), (20,), (2, 4, 6, 8), 2000, 40),
        "paper": Tasks((15, 30), (12, 20), (2, 4, 6, 8), 2000, 100),
    },
    "flute-fig3": {
        "smoke": Tasks((15,), (12,), (2, 4), 200, 3),
        "laptop": Tasks((15, 30), (12, 20), (2, 4, 6, 8), 2000, 40),
        "paper": Tasks((15, 30), (12, 20), (2, 4, 6, 8), 2000, 100),
    },
    "flute-fig4": {
        "smoke": Tasks((10,), (8, 9), (6,), 200, 3),
        "laptop": Tasks((10,), (8, 9, 10, 11), (6,), 2000, 100),
        "paper": Tasks((10,), (8, 9, 10, 11), (6,), 2000, 100),
    },
}


class Sharing(NamedTuple):
    """Every number of clients with every number of samples."""

    clients: tuple[int, ...]
    samples: tuple[int, ...]
    replicates: int


SHARING: dict[str, Sharing] = {
    "smoke": Sharing((10,), (10,), 3),
    "laptop": Sharing((10, 100), (10, 20, 40, 160), 40),
    "paper": Sharing((10, 30, 100, 300), (10, 20, 40, 160), 100),
}
