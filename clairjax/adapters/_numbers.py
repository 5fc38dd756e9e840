"""What clients sent, looked at before anything is compared: who cannot take part, and who sent nothing."""

from typing import NamedTuple

import numpy as np

from ._adapters import Adapters
from ._folder import Folder


IDLE_REASON = "zeros in every module (B · A = 0), as of an adapter that was not trained"
SMALLEST = float(np.finfo(np.float32).tiny)
ROUNDING = float(np.finfo(np.float32).eps)
LARGEST = float(np.sqrt(np.finfo(np.float32).max))  # whose square float32 holds


class Numbers(NamedTuple):
    """Why clients are `unusable` or `idle`, and of the others the modules in which they sent zeros."""

    unusable: dict[str, str]
    idle: dict[str, str]
    zeros: dict[str, list[str]]

    @property
    def apart(self) -> dict[str, str]:
        return self.unusable | self.idle

    def votes(self, name: str, module: str) -> bool:
        return name not in self.apart and module not in self.zeros.get(name, ())


def examine(adapters: Adapters) -> Numbers:
    """Reads every module once. An unusable client's reason is its fault, or the first module that cannot be used."""
    bound = LARGEST / (8 * len(adapters.clients))
    found = Numbers({}, {}, {})
    for name, folder in adapters.clients.items():
        zeros: list[str] = []
        try:
            reason = folder.fault or _fault(folder, bound, zeros)
        except (OSError, ValueError) as error:  # a file that is no longer what it was
            reason = str(error)
        if reason:
            found.unusable[name] = reason
        elif len(zeros) == len(folder.modules):
            found.idle[name] = IDLE_REASON
        elif zeros:
            found.zeros[name] = zeros
    return found


def _fault(folder: Folder, bound: float, zeros: list[str]) -> str:
    for module in folder.modules:
        up, down, scale = folder.factors(module)
        if not (np.isfinite(up).all() and np.isfinite(down).all()):
            return f"NaN or infinite values in module {module}"
        too_large = f"values too large for float32 in module {module}"
        if max(np.abs(up).max(), np.abs(down).max()) >= LARGEST:
            return too_large
        up, down = up.astype(np.float64), down.astype(np.float64)
        columns, rows = np.linalg.norm(up, axis=0), np.linalg.norm(down, axis=1)
        sizes = float(np.linalg.norm(columns)), float(np.linalg.norm(rows))
        if max(sizes) >= LARGEST or abs(scale) * sizes[0] * sizes[1] >= bound:
            return too_large
        most = float(columns @ rows)  # of ‖B · A‖, were there no cancellation
        square = float(np.sum((up.T @ up) * (down @ down.T)))
        if abs(scale) * most < SMALLEST or square <= (ROUNDING * most) ** 2:
            zeros.append(module)
    return ""
