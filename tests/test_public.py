"""The public surface, who imports whom, what an import costs, and the size of files."""

import ast
import inspect
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
    "federated": {"data", "models", "privacy", "kernels"},
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
        "sweep",
        "profiling",
    },
    "adapters": {"alignment"},
    "cli": {"experiments", "adapters", "profiling", "sweep"},
}
EVERYONE = {"_typing", "_status", "_validate", "_loop", "_files", "_progress", "_compile"}
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


@pytest.mark.parametrize("path", IN_ROOMS, ids=name_of)
def test_nothing_imports_upward(path):
    ours, _ = imports(path)
    assert ours - {room(path)} - EVERYONE - {"__version__"} <= MAY_IMPORT[room(path)]


@pytest.mark.parametrize("path", IN_ROOMS, ids=name_of)
def test_other_rooms_are_entered_by_the_door(path):
    """`from ..room._inside` is nobody's but the room's own: what others need is in its `__init__`, or everyone's."""
    nodes = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom) and node.module
    ]
    inside = {node.module for node in nodes if node.level and "._" in node.module}
    assert not {name for name in inside if name.split(".")[0] in MAY_IMPORT.keys() - {room(path)}}


@pytest.mark.parametrize("path", [path for path in FILES if room(path) not in ("cli", "experiments")], ids=name_of)
def test_extras_are_imported_where_they_are_used(path):
    """At the top of a file there is only what every installation has."""
    assert imports(path, everywhere=False)[1] <= CORE | {"clairjax"}


@pytest.mark.parametrize("path", [path for path in FILES if room(path) == "kernels"], ids=name_of)
def test_kernels_import_jax_only(path):
    assert imports(path)[1] <= {"jax", "jaxtyping", "numpy"}  # numpy for constants of a trace


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_one_thing(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 300
    assert ast.get_docstring(ast.parse(path.read_text())) is not None


@pytest.mark.parametrize("path", [path for path in FILES if room(path) != "cli"], ids=name_of)
def test_compiled_code_never_calls_the_host(path):
    refused = {"callback", "pure_callback", "io_callback", "debug_callback", "error_if", "branched_error_if"}
    used = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    assert not used & refused
    assert "jax.debug" not in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_text_is_utf_8_whatever_the_locale(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if name.split(".")[-1] in ("open", "read_text", "write_text", "fdopen") and name != "os.open":
            binary = any(isinstance(mode, ast.Constant) and "b" in str(mode.value) for mode in node.args[:2])
            assert binary or "encoding" in {keyword.arg for keyword in node.keywords}, ast.unparse(node)


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
