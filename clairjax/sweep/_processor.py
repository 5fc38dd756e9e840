"""What of a processor decides the last digits of what is computed on it, and what makes several of them agree."""

import ctypes
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


Processor = Mapping[str, str]

# As XLA names them for `--xla_cpu_max_isa`, the last first. With the name that Linux gives each, and a kernel of
# OpenBLAS that every processor with the set can run.
_SETS = {
    "AVX512": ("avx512f", "Haswell"),
    "AVX2": ("avx2", "Haswell"),
    "AVX": ("avx", "Sandybridge"),
    "SSE4_2": ("sse4_2", "Nehalem"),
}


def processor() -> dict[str, str]:
    """The kernel and the threads of LAPACK, which change its digits, and the instructions that XLA compiles for.

    XLA's number of threads changes no digit: it is not among them.
    """
    return _lapack() | {"instructions": instructions(_flags(), os.environ.get("XLA_FLAGS", ""))}


def as_stored(stored: Any) -> dict[str, str] | None:
    """What a block says of its processor; what another version did not write is unknown."""
    if not isinstance(stored, Mapping):
        return None
    return {name: str(stored.get(name, "unknown")) for name in ("lapack", "threads", "instructions")}


def _lapack() -> dict[str, str]:
    """Of the library that SciPy brings: jaxlib calls LAPACK through SciPy, on a handle that also finds its symbols."""
    from scipy.linalg import cython_lapack  # what jaxlib imports for it

    with suppress(OSError):
        library = ctypes.CDLL(cython_lapack.__file__)
        for prefix in ("scipy_openblas_", "openblas_"):
            name = getattr(library, f"{prefix}get_corename", None)
            threads = getattr(library, f"{prefix}get_num_threads", None)
            if name is not None and threads is not None:
                name.restype = ctypes.c_char_p
                return {"lapack": f"OpenBLAS {name().decode()}", "threads": str(threads())}
    return {"lapack": "unknown", "threads": "unknown"}


def _flags() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, flags = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return flags
    return ""


def instructions(flags: str, xla_flags: str) -> str:
    """The last of the sets that a processor with these flags has, no later than `XLA_FLAGS` allow."""
    allowed = list(_SETS)
    if capped := re.findall(r"--xla_cpu_max_isa=(\w+)", xla_flags):
        cap = capped[-1].upper()
        allowed = allowed[allowed.index(cap) :] if cap in allowed else allowed
    found = [name for name in allowed if _SETS[name][0] in flags.split()]
    return " ".join([platform.machine(), *found[:1]])


def tally(processors: Iterable[Processor | None]) -> list[dict[str, Any]]:
    """Each kind once, with the number of blocks that it computed; those that are not known are left out."""
    counts = Counter(tuple(sorted(each.items())) for each in processors if each is not None)
    return [dict(kind) | {"blocks": count} for kind, count in counts.most_common()]


def several(kinds: Sequence[Mapping[str, Any]]) -> str | None:
    """What to say of blocks that several kinds of processor computed."""
    if len(kinds) < 2:
        return None
    names = "; ".join(
        f"{kind['blocks']} by {kind['lapack']} of {kind['threads']} thread(s), {kind['instructions']}"
        for kind in kinds
    )
    wanted = " ".join(settings(kinds))
    advice = f"set {wanted} for every process" if wanted else "use processors of one kind"
    return (
        f"The blocks were computed by {len(kinds)} kinds of processor, whose last digits may differ: {names}. "
        f"To have the same digits from all, {advice}, and begin in a new folder."
    )


def settings(kinds: Iterable[Mapping[str, Any]]) -> list[str]:
    """What to set in the environment, so that processors of these kinds give the same digits; nothing may help."""
    kinds = list(kinds)
    values = lambda what: {str(each.get(what)) for each in kinds}
    machines = {text.split()[0] for text in values("instructions")}
    if len(machines) > 1:
        return []
    sets = [name for name in _SETS if any(text.endswith(f" {name}") for text in values("instructions"))]
    kernel = _SETS[sets[-1]][1] if sets else "ARMV8"
    advice = {
        "lapack": f"OPENBLAS_CORETYPE={kernel}",
        "threads": "OPENBLAS_NUM_THREADS=1",
        "instructions": f"XLA_FLAGS=--xla_cpu_max_isa={sets[-1] if sets else ''}",
    }
    return [setting for what, setting in advice.items() if len(values(what)) > 1]
