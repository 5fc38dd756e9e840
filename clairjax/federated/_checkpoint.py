"""Where a run stands, on disk: one file, written beside and renamed. A kill loses the rounds in flight alone."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import re
import types
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from .._files import replace_file


FORMAT = "clairjax federated 1"
NAME = "checkpoint.npz"
LIBRARIES = {"abc", "builtins", "clairjax", "equinox", "flax", "jax", "optax", "typing"}  # whose code is not hashed


class Checkpoint:
    """`out=None` keeps nothing and finds nothing."""

    def __init__(self, out: str | os.PathLike[str] | None, arguments: dict[str, Any]):
        self.path = None if out is None else Path(out) / NAME
        self.identity: dict[str, Any] = {}
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            short = lambda value: value if isinstance(value, int) else fingerprint(value)
            self.identity = {"format": FORMAT, "clairjax": version("clairjax"), "jax": version("jax")}
            self.identity |= {name: short(value) for name, value in arguments.items()}

    def write(self, rounds: int, tree: PyTree) -> None:
        """All leaves of a tree, after so many rounds."""
        if self.path is None:
            return
        header = json.dumps({"identity": self.identity, "rounds": rounds})
        leaves: dict[str, Any] = {f"leaf{i}": _plain(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}

        def save(path: Path) -> None:
            with open(path, "wb") as file:
                np.savez(file, allow_pickle=False, header=np.array(header), **leaves)

        replace_file(self.path, save)

    def read(self) -> tuple[int, list[np.ndarray]] | None:
        """Rounds and leaves, or None where there is no file. One of another run is refused."""
        if self.path is None or not self.path.exists():
            return None
        try:
            with np.load(io.BytesIO(self.path.read_bytes()), allow_pickle=False) as file:
                header = json.loads(str(file["header"]))
                leaves = [file[f"leaf{i}"] for i in range(len(file.files) - 1)]
                found, rounds = header["identity"], int(header["rounds"])
        except Exception as error:  # whatever a foreign or damaged file makes zipfile or NumPy raise
            raise ValueError(
                f"out: {self.path} must be a checkpoint of clairjax.federated, and cannot be read ({error}). "
                "Choose a new folder, or delete that file."
            ) from error
        differ = [
            f"{name} must be {found.get(name)}, got {value}"
            for name, value in self.identity.items()
            if found.get(name) != value
        ]
        if differ:
            raise ValueError(
                f"out: {self.path} holds another run: {'; '.join(differ)}. "
                "Repeat its arguments, or choose a new folder."
            )
        return rounds, leaves


def restored(tree: PyTree, leaves: list[np.ndarray]) -> PyTree:
    """The tree with these leaves in place of its own."""
    own, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [_as(leaf, old) for leaf, old in zip(leaves, own, strict=True)])


def _plain(leaf: Any) -> np.ndarray:
    """As NumPy can write it: of random keys their data."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def _as(leaf: np.ndarray, old: jax.Array) -> jax.Array:
    if is_key(old):
        return jax.random.wrap_key_data(jax.numpy.asarray(leaf), impl=jax.random.key_impl(old))
    # NumPy's files know no bfloat16: it comes back as bytes.
    return jax.numpy.asarray(leaf.view(old.dtype) if leaf.dtype.kind == "V" else leaf, old.dtype)


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def fingerprint(value: Any) -> str:
    """Of arrays, settings and functions: equal for equal ones in any process.

    A function counts by its code and by what it closes over, since an optimiser is a function that holds its rate. A
    class of one's own counts by its methods. What these call of other modules does not count.
    """
    found = hashlib.sha256()
    for part in _parts(value, set()):
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()[:16]


def _parts(value: Any, seen: set[int]) -> Iterator[bytes]:
    """`seen`: the functions and objects on the way here, some of which may hold themselves or one another."""
    if is_key(value):
        yield str(jax.random.key_impl(value)).encode()
        value = jax.random.key_data(value)
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        yield repr((array.shape, array.dtype.str)).encode() + array.tobytes()
    elif isinstance(value, functools.partial):
        yield from _parts((value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.FunctionType):
        yield from _function(value, seen)
    elif isinstance(value, types.MethodType):
        yield from _parts((value.__func__, value.__self__), seen)
    elif hasattr(value, "__wrapped__"):  # of `jax.jit` and `functools.cache`
        yield from _parts(value.__wrapped__, seen)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        yield from _parts((type(value).__qualname__, fields, _methods(type(value))), seen)
    elif isinstance(value, dict):
        yield from _parts(tuple(value.items()), seen)
    elif isinstance(value, set | frozenset):  # in an order that no process changes
        yield repr(sorted(map(repr, value))).encode()
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__} {len(value)}".encode()
        for each in value:
            yield from _parts(each, seen)
    elif type(value).__repr__ is object.__repr__ and hasattr(value, "__dict__"):  # which says nothing of its contents
        if id(value) not in seen:
            yield from _parts((type(value).__qualname__, vars(value), _methods(type(value))), seen | {id(value)})
    else:
        yield re.sub(r" at 0x[0-9a-f]+", "", repr(value)).encode()


def _methods(kind: type) -> list[types.FunctionType]:
    """What a user has written for a class: its methods and those it inherits, but for this library's and others'."""
    own = [each for each in kind.__mro__ if each.__module__.split(".")[0] not in LIBRARIES]
    found = [getattr(each, name, None) for each in own for name in vars(each)]
    found = [each.fget if isinstance(each, property) else each for each in found]
    generated = lambda function: function.__name__.startswith("__") and function.__name__ != "__call__"
    return [each for each in found if isinstance(each, types.FunctionType) and not generated(each)]


def _function(function: types.FunctionType, seen: set[int]) -> Iterator[bytes]:
    yield f"{function.__module__}.{function.__qualname__}".encode()
    if id(function) in seen:
        return
    seen = seen | {id(function)}
    yield from _code(function.__code__, seen)
    yield from _parts((function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            yield from _parts(cell.cell_contents, seen)


def _code(code: types.CodeType, seen: set[int]) -> Iterator[bytes]:
    yield code.co_code + repr(code.co_names).encode()
    for constant in code.co_consts:
        yield from _code(constant, seen) if isinstance(constant, types.CodeType) else _parts(constant, seen)
