"""The public surface, who imports whom, what an import costs, and the size of files."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import clairjax


ROOT = Path(clairjax.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

PUBLIC = [
    *(
        "ClairResult",
        "Decomposition",
        "Factored",
        "LowRankMatrices",
        "Penalty",
        "PrivatePowerMethod",
        "Profile",
        "ProximalGradient",
    ),
    *(
        "Representation",
        "Status",
        "adapters",
        "alignment",
        "centaur",
        "clair",
        "data",
        "decompose",
        "experiments",
        "federated",
        "fedrep",
        "flute",
        "kernels",
        "models",
    ),
    *("privacy", "private_power_method", "profile", "profiling", "representation", "subspaces", "sweep"),
    "truncated_ridge",
]

# DESIGN.md: data flows down, nothing imports upward. Modules of the top level that start with _ are everyone's.
MAY_IMPORT = {
    "kernels": set(),
    "subspaces": {"kernels"},
    "alignment": {"kernels", "subspaces"},
    "privacy": {"kernels"},
    "representation": {"kernels", "subspaces", "privacy"},
    "data": set(),
    "models": set(),
    "federated": {"alignment", "data", "models", "privacy", "kernels"},
    "sweep": set(),
    "profiling": set(),
    "experiments": {
        "kernels",
        "subspaces",
        "alignment",
        "privacy",
        "representation",
        "data",
        "models",
        "federated",
        "sweep",
        "profiling",
    },
    "adapters": {"alignment"},
    "flower": {"adapters"},
    "cli": {"experiments", "adapters", "profiling", "sweep"},
}
EVERYONE = {
    "_typing",
    "_status",
    "_validate",
    "_loop",
    "_files",
    "_progress",
    "_compile",
    "_precision",
    "_blend",
    "_cores",
    "_factorisations",
}
CORE = {"jax", "jaxlib", "jaxtyping", "numpy", "equinox", "optax"}
EXTRAS = [
    "typer",
    "rich",
    "matplotlib",
    "xarray",
    "scipy",
    "dp_accounting",
    "cvxpy",
    "hypothesis",
    "chex",
    "safetensors",
    "flwr",
]


def imports(path, *, everywhere=True):
    """(modules of the package, other packages) that a file imports, at the top of it or anywhere in it."""
    tree = ast.parse(path.read_text())
    folder = path.relative_to(ROOT).parts[:-1]
    ours, others = set(), set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = folder[: len(folder) - node.level + 1]
            names = [node.module] if node.module else [name.name for name in node.names]
            ours |= {".".join((*base, name)).split(".")[0] for name in names}
        elif isinstance(node, ast.ImportFrom):
            others.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            others |= {name.name.split(".")[0] for name in node.names}
    return ours, others - set(sys.stdlib_module_names)


def room(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def name_of(path):
    return str(path.relative_to(ROOT))


IN_ROOMS = [path for path in FILES if room(path) not in {"__init__", "_surface", *EVERYONE}]


def broken(rule, files=FILES):
    """What breaks a rule, by file."""
    found = {name_of(path): rule(path) for path in files}
    return {name: what for name, what in found.items() if what}


def outside(*rooms):
    return [path for path in FILES if room(path) not in rooms]


def test_nothing_imports_upward():
    assert not broken(
        lambda path: imports(path)[0] - {room(path)} - EVERYONE - {"__version__"} - MAY_IMPORT[room(path)], IN_ROOMS
    )


def test_other_rooms_are_entered_by_the_door():
    """`from ..room._inside` is nobody's but the room's own: what others need is in its `__init__`, or everyone's."""

    def through_walls(path):
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        inside = {node.module for node in nodes if node.level and node.module and "._" in node.module}
        return {name for name in inside if name.split(".")[0] in MAY_IMPORT.keys() - {room(path)}}

    assert not broken(through_walls, IN_ROOMS)


def test_extras_are_imported_where_they_are_used():
    """At the top of a file there is only what every installation has."""
    extra = lambda path: imports(path, everywhere=False)[1] - CORE - {"clairjax"}
    assert not broken(extra, outside("cli", "experiments", "flower"))


def test_kernels_import_jax_only():
    allowed = {"jax", "jaxtyping", "numpy"}  # numpy for constants of a trace
    assert not broken(lambda path: imports(path)[1] - allowed, [path for path in FILES if room(path) == "kernels"])


def test_files_are_one_thing():
    assert not broken(lambda path: len(path.read_text().splitlines()) > 300)
    assert not broken(lambda path: ast.get_docstring(ast.parse(path.read_text())) is None)


HOMES = {
    r"\bPrecision\.HIGHEST": "_precision.py",
    r"NaN or infinite values from client\(s\)": "_validate.py",
    r"< LEAST:\s+raise fail": "_validate.py",
    r"\bbasis\.T, precision=HIGHEST\)": "subspaces/_distance.py",  # rows projected on a row space
    r"matmul\((\w+)\.T, \1, precision=HIGHEST\)": "kernels/_spectral.py",  # a Gram
    r"matmul\((\w+), \1\.T, precision=HIGHEST\)": "subspaces/_distance.py",  # a projector
    r"VERDICTS = \(\"": "alignment/_standing.py",
    r"NEAR\w* = 0\.": "alignment/_majority.py",  # of near copies
    r"4 \* \w+\.shape\[0\] \* jnp\.finfo": "_precision.py",  # what of a spectrum is rounding
}


@pytest.mark.parametrize("what", HOMES)
def test_what_has_one_home_is_written_there_alone(what):
    assert [name_of(path) for path in FILES if re.search(what, path.read_text("utf-8"))] == [HOMES[what]]


def test_compiled_code_never_calls_the_host():
    refused = {"callback", "pure_callback", "io_callback", "debug_callback", "error_if", "branched_error_if"}

    def calls(path):
        used = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        return (used & refused) or "jax.debug" in path.read_text()

    assert not broken(calls, outside("cli"))


def test_text_is_utf_8_whatever_the_locale():
    def without_encoding(path):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        return [ast.unparse(node) for node in calls if opens_text(node) and not says_encoding(node)]

    assert not broken(without_encoding)


def opens_text(node):
    name = ast.unparse(node.func)
    binary = any(isinstance(mode, ast.Constant) and "b" in str(mode.value) for mode in node.args[:2])
    return (
        name.split(".")[-1] in ("open", "read_text", "write_text", "fdopen")
        and name not in ("os.open", "Image.open")
        and not binary
    )


def says_encoding(node):
    return "encoding" in {keyword.arg for keyword in node.keywords}


PROBE = """
import sys, os, jax
before, environment = dict(jax.config.values), dict(os.environ)
import clairjax
assert "clairjax.alignment" not in sys.modules, "nothing was asked for"
from clairjax import *
from jax._src import xla_bridge
assert dict(jax.config.values) == before, "a JAX setting changed"
assert dict(os.environ) == environment, "the environment changed"
assert not xla_bridge.backends_are_initialized(), "a device was started"
print(*sorted(name for name in dir(clairjax) if not name.startswith("_")))
print(*sorted(set(sys.argv[1:]) & set(sys.modules)))
"""


def test_import_gives_these_names_takes_no_extra_and_changes_nothing():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE, *EXTRAS], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    names, extras = done.stdout.splitlines()
    assert names.split() == PUBLIC and len(PUBLIC) <= 60
    assert extras == ""


def public_functions():
    for door in (clairjax, *(getattr(clairjax, name) for name in PUBLIC if name.islower())):
        for name, value in vars(door).items():
            if inspect.isfunction(value) and not name.startswith("_"):
                yield f"{door.__name__}.{name}", value


FUNCTIONS = dict(public_functions())
OF_NUMBERS = {"corrupted_pairs", "penalty_ratio_bounds", "penalty_ratio_interval", "vote_share_interval"} | {
    "local",
    "collaboration",
    "even_mse_factor",
    "replicate_key",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_say_what_they_do(name):
    """An example that CI runs; the place in the paper for what comes from one; the cost of what works on arrays."""
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    room, function = name.split(".")[-2:]
    assert text.split("\n")[0].endswith((".", ":", "?"))
    assert ">>>" in text or function == "local"
    assert "**Source:**" in text or room != "alignment"
    assert "**Cost:**" in text or function in OF_NUMBERS
