"""The files of experiments: those of this folder, and one of a user's own."""

import importlib
import importlib.util
import os
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

from ._experiment import Experiment


def own() -> dict[str, Experiment]:
    """The experiments of this folder by name: a public file holds one, called `EXPERIMENT`."""
    names = (found.name for found in pkgutil.iter_modules([os.path.dirname(__file__)]) if found.name[0] != "_")
    experiments = [importlib.import_module(f".{name}", __package__).EXPERIMENT for name in names]
    return {experiment.name: experiment for experiment in experiments}


def load(path: str | os.PathLike[str]) -> Experiment:
    """The experiment that a Python file holds as `EXPERIMENT`.

    The file is run as a module of its own, and may import those beside it.

    **Args:**

    - `path`: the file.

    **Returns:** its `Experiment`, to `run` and to `write`.

    **Raises:** `ValueError` if there is no such file, or no `EXPERIMENT` in it, and whatever the file raises.

    **Cost:** that of running the file.

    >>> import pathlib, tempfile
    >>> from clairjax import experiments
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "mine.py"
    ...     _ = path.write_text("from clairjax.experiments.clair_table1 import EXPERIMENT", encoding="utf-8")
    ...     experiments.load(path).name
    'clair-table1'
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"path must be a Python file with an experiment, got {os.fspath(path)!r}, which is no file.")
    experiment = getattr(_run(Path(os.path.realpath(file))), "EXPERIMENT", None)
    if not isinstance(experiment, Experiment):
        got = "none" if experiment is None else type(experiment).__name__
        raise ValueError(f"{file} must have an experiment, as EXPERIMENT = Experiment(…), got {got}.")
    return experiment


def _run(file: Path) -> ModuleType:
    """Under a name of its own, at which a dataclass looks up its annotations."""
    name = f"clairjax_experiment_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"path must be a Python file, as mine.py, got {file.name}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec.loader.exec_module(module)
    return module
