"""What clients sent, looked at before anything is compared: who cannot take part, and who sent nothing."""

from typing import NamedTuple

import numpy as np

from ._adapters import Adapters
from ._folder import Folder


IDLE_REASON = "zeros in every module (B · A = 0), as of an adapter that was not trained"
SMALLEST = float(np.finfo(np.float32).tiny)
ROUNDING = float(np.finfo(np.float32).eps)


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
    bound = float(np.sqrt(np.finfo(np.float32).max / (64 * len(adapters.clients) ** 2)))
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
        if not abs(scale) * float(np.linalg.norm(up)) * float(np.linalg.norm(down)) < bound:
            return f"values too large for float32 in module {module}"
        if _is_zero(up.astype(np.float64), scale * down.astype(np.float64)):
            zeros.append(module)
    return ""


def _is_zero(up: np.ndarray, down: np.ndarray) -> bool:
    """Whether B · A is zero in float32: each product of a column and a row, or their sum to rounding."""
    columns, rows = np.linalg.norm(up, axis=0), np.linalg.norm(down, axis=1)
    most = float(columns @ rows)
    if most < SMALLEST:
        return True
    up, down = up / np.linalg.norm(up), down / np.linalg.norm(down)
    square = float(np.sum((up.T @ up) * (down @ down.T)))
    return square <= (ROUNDING * float(np.linalg.norm(up, axis=0) @ np.linalg.norm(down, axis=1))) ** 2
