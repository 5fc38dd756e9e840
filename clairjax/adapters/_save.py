"""Refined adapters on the disk, with the report: all of it, or nothing."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import _validate
from ._choose import CANDIDATES
from ._client import blended, write_folder
from ._command import Command
from ._compare import overlaps
from ._config import global_fields
from ._evidence import Evidence
from ._folder import read_folder
from ._halves import halves
from ._names import FIGURE, GLOBAL, REPORT
from ._options import check_options
from ._out import check_out
from ._place import take_place
from ._plot import heat_map
from ._pool import Pool, Samples, pool
from ._refine import Refinement
from ._report import Facts, Written, report
from ._serving import for_serving
from ._shared import Median, Shared, median_tensors
from ._sharing import Evaluate, Sharing, find_sharing, share, undecided
from ._store import PARTS, OnDisk


Progress = Callable[[str], Any]


def save(
    refinement: Refinement,
    out: str | os.PathLike[str],
    *,
    samples: Samples | None = None,
    evaluate: Evaluate | Command | None = None,
    blend: float | None = None,
    serving: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write what the members have in common, an adapter for each where that helps, `report.json` and `report.png`.

    `out/global` is the geometric median of the members' updates, each module of at most 1.5 times the usual norm: what
    a federation hands out. `out/CLIENT` is t · own + (1 − t) · shared, with one t for all members. It is written where
    there is a t, by the first of these that there is:

    - `blend` says it;
    - `evaluate` is given: `choose` finds it;
    - three members have folders `half-a` and `half-b` in their own: adapters trained alike on halves of their data.
      Then t is 0 where halves of different clients agree as well as a client's own two, or else 1;
    - `refine` was told `shared="rows"` or `"columns"`: 0.

    What is shared is the median, or with rows or columns what CLAIR makes of a client. "auto" is CLAIR's where most
    (70 %) of what is a client's own lies in a few directions that others' deviations have, too; t is 0 then. Adapters
    that were trained from one A do not show that, and gained less by CLAIR than by the median. Nothing else in the
    clients' adapters tells whether sharing helps: where tasks differ it makes every client worse.

    Every folder is an adapter that PEFT loads, with the reported keys and types, and the client's model card. Modules
    that changed have factors at scale 1. Everything else is as it was, bit for bit. A `truncation_error` in the report
    is of what is in the file, rounded to its type. Files are made in a hidden folder beside `out`, which takes the
    name at the end: on any error `out` is as before. What appears in `out` meanwhile stays; with `force` a result of
    another call is replaced, and nothing else. The new result is then kept beside it as `OUT.*.kept`, and the error
    says so. A call that is killed leaves the hidden folder, `.OUT.*.tmp`. A former result is moved away first: it may
    be left as `.OUT.*.old/out`.

    **Args:**

    - `refinement`, of `refine`. `out`: a new or empty folder; with `force` also one that an earlier call wrote.
    - `samples`: by client, the numbers that they trained on. The median is weighted by them. They are claims:
      nobody's weight is over a third.
    - `evaluate`: called with a client's name and a state dict as PEFT has it, of NumPy arrays. All modules are at
      scale 1: the update is B · A. It returns a loss on data that the client did not train on. Or a `command`.
    - `blend`: t, from 0 to 1.
    - `serving`: every module of every folder at one rank and at scale 1, as inference servers need that know one r and
      one alpha.
    - `progress`: called with a module's or client's name before its turn.

    **Returns:** the content of `report.json`.

    **Raises:** `OSError` of the disk, and `ValueError` as `check_out` and for

    - arguments out of range;
    - an `out` that is in use, at the start or at the end;
    - a loss that is no number;
    - a rank below the client's own that loses more than refining changes.

    **Cost:** two eigendecompositions a module of the sum of the members' ranks, or one of its smaller side. A client
    and module take those of its rank and the median's. Memory of one client, disk twice the result.

    >>> import clairjax as cj
    >>> cj.adapters.save(refinement, "refined")  # doctest: +SKIP
    """
    _check(blend, evaluate)
    _validate.flag(serving, "serving")
    check_out(refinement.adapters, out, force)
    with _beside(out, force) as folder:
        return _fill(refinement, folder, samples, blend, evaluate, serving, progress)


def candidates(
    refinement: Refinement,
    out: str | os.PathLike[str],
    *,
    samples: Samples | None = None,
    progress: Progress | None = None,
) -> dict[str, dict[float, Path]]:
    """Write every member's candidates, for clients to measure where their data are.

    Each client measures its own, `out/CLIENT/t-0`, `t-0.25`, `t-0.5`, `t-0.75` and `t-1`, which is its adapter as it
    was. `choose` takes their losses, and `save(…, blend=t)` what it chose.

    **Args:** `refinement`, `samples`, `progress`: as in `save`. `out`: a new or empty folder.

    **Returns:** the folders by client and t.

    **Raises:** as `save`; `ValueError` also without members.

    **Cost:** as `save`, five times.

    >>> import clairjax as cj
    >>> places = cj.adapters.candidates(refinement, "candidates")  # doctest: +SKIP
    >>> t = cj.adapters.choose({"a": {0.0: 2.1, 1.0: 2.4}, "b": {0.0: 2.2, 1.0: 2.3}, "c": {0.0: 2.0, 1.0: 2.4}})
    """
    check_out(refinement.adapters, out, False)
    if not (common := pool(refinement, samples, progress)).modules:
        raise _validate.fail("refinement", "of members who have a module in common", "none")
    with _beside(out, False) as folder:
        shared, _ = _share(refinement, common, folder, progress)[:2]
        for name in refinement.members:
            for t in CANDIDATES:
                blended(shared, name, t).write(folder / name / f"t-{t:g}")
        shutil.rmtree(folder / GLOBAL)
        shutil.rmtree(folder / PARTS, ignore_errors=True)
    return {name: {t: Path(out) / name / f"t-{t:g}" for t in CANDIDATES} for name in refinement.members}


def _check(blend: float | None, evaluate: Evaluate | Command | None) -> None:
    check_options(blend=blend)
    if evaluate is not None and not callable(evaluate):
        raise _validate.fail(
            "evaluate", "a callable of a client's name and a state dict, or a command", repr(evaluate)
        )
    if blend is not None and evaluate is not None:
        raise _validate.fail("blend", "None where evaluate chooses it", blend)


@contextmanager
def _beside(out: str | os.PathLike[str], force: bool) -> Iterator[Path]:
    target = Path(out).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        yield beside
        beside.chmod(0o755)
        take_place(beside, target, force)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _fill(
    refinement: Refinement,
    folder: Path,
    samples: Samples | None,
    blend: float | None,
    evaluate: Evaluate | Command | None,
    serving: bool,
    progress: Progress | None,
) -> dict[str, Any]:
    common = pool(refinement, samples, progress)
    if not common.modules:
        written = Written(undecided(refinement), common)
    else:
        shared, seen, median = _share(refinement, common, folder, progress)
        sent, notices = halves(refinement, common)
        sharing = find_sharing(shared, seen, blend, evaluate, sent)
        clients = _write_clients(shared, sharing, folder, progress)
        members = {name: refinement.adapters.clients[name] for name in common.weights}
        rows = overlaps(members, read_folder(folder / GLOBAL, GLOBAL), common.modules)
        written = Written(sharing, common, median, shared, clients, notices, rows)
        shutil.rmtree(folder / PARTS, ignore_errors=True)
    if serving:
        for_serving(folder)
    content = report(refinement, written)
    (folder / REPORT).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    heat_map(refinement, folder / FIGURE)
    return content


def _share(
    refinement: Refinement, common: Pool, folder: Path, progress: Progress | None
) -> tuple[Shared, Evidence, Median]:
    """The median is written first."""
    median, tensors = median_tensors(refinement, common, progress)
    write_folder(folder / GLOBAL, tensors, global_fields(median.template.settings, median.ranks, median.adapted))
    return *share(refinement, common, median, OnDisk(folder), progress), median


def _write_clients(shared: Shared, sharing: Sharing, folder: Path, progress: Progress | None) -> dict[str, Facts]:
    written: dict[str, Facts] = {}
    if sharing.t is None:
        return written
    for name in shared.refinement.members:
        if progress is not None:
            progress(name)
        adapter = blended(shared, name, sharing.t)
        adapter.write(folder / name)
        written[name] = adapter.facts()
    return written
