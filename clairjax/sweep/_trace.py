"""The replicate function traced once a cell: what is run, fingerprinted and sized is that one program."""

import hashlib
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import Array

from .._typing import Key
from ._plan import Cell, check_names


Replicate = Callable[[Key, Any], dict[str, Array]]


class Program(NamedTuple):
    closed: ClosedJaxpr
    outputs: dict[str, jax.ShapeDtypeStruct]
    fingerprint: str
    bytes_per_replicate: int
    seconds: float


def trace(replicate: Replicate, key: Key, cell: Cell) -> Program:
    start = time.perf_counter()
    closed, outputs = jax.make_jaxpr(lambda key: replicate(key, cell), return_shape=True)(key)
    if not isinstance(outputs, dict) or not outputs or not all(_storable(value) for value in outputs.values()):
        raise ValueError(
            "replicate: it must return a non-empty dict of boolean, integer, floating or complex arrays; "
            f"got {jax.tree.map(str, outputs)}."
        )
    check_names(cell, list(outputs))
    ordered = {name: outputs[name] for name in sorted(outputs)}  # the order in which JAX flattens a dict
    seconds = time.perf_counter() - start
    return Program(closed, ordered, fingerprint(closed), peak_bytes(closed.jaxpr), seconds)


def _storable(value: Any) -> bool:
    if not isinstance(value, jax.ShapeDtypeStruct):
        return False
    return isinstance(value.dtype, np.dtype) and value.dtype.kind in "biufc"


def _inner(value: Any) -> Iterator[Jaxpr]:
    """The programs inside a parameter of an equation: bodies of loops, branches, jitted functions."""
    if isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _inner(item)


def _bytes(variable: Any) -> int:
    shape, dtype = getattr(variable.aval, "shape", None), getattr(variable.aval, "dtype", None)
    return 0 if shape is None or dtype is None else math.prod(shape) * dtype.itemsize


def peak_bytes(jaxpr: Jaxpr) -> int:
    """Bytes alive at once when the program runs as written, each value freed after its last use.

    Close to what one lane needs: XLA fuses some values away and adds the work space of its factorisations.
    """
    end = len(jaxpr.eqns)
    last_use = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if not isinstance(v, Literal)}
    last_use |= {v: end for v in jaxpr.outvars if not isinstance(v, Literal)}
    live = peak = sum(map(_bytes, jaxpr.invars))
    for i, eqn in enumerate(jaxpr.eqns):
        made = sum(map(_bytes, eqn.outvars))
        bodies = [body for value in eqn.params.values() for body in _inner(value)]
        within = max((peak_bytes(body) - sum(map(_bytes, body.invars)) for body in bodies), default=0)
        peak = max(peak, live + max(made, within))
        live += made - sum(_bytes(v) for v in eqn.outvars if v not in last_use)
        live -= sum(_bytes(v) for v in {v for v in eqn.invars if not isinstance(v, Literal)} if last_use[v] == i)
    return peak


def fingerprint(closed: ClosedJaxpr) -> str:
    """Sixteen hexadecimal digits of a traced program: equal for equal programs, in any process.

    The printed form will not do: it depends on which inner programs happen to be shared in memory.
    """
    return _Digest().closed(closed)[:16]


class _Digest:
    def __init__(self) -> None:
        self._known: dict[int, tuple[Jaxpr, str]] = {}  # by identity; holds the program so that none reuses it

    def closed(self, closed: ClosedJaxpr) -> str:
        return _hash(self.jaxpr(closed.jaxpr), *map(_constant, closed.consts))

    def jaxpr(self, jaxpr: Jaxpr) -> str:
        if id(jaxpr) not in self._known:
            self._known[id(jaxpr)] = jaxpr, self._program(jaxpr)
        return self._known[id(jaxpr)][1]

    def _program(self, jaxpr: Jaxpr) -> str:
        numbers: dict[Any, int] = {}

        def atom(variable: Any) -> str:
            if isinstance(variable, Literal):
                return f"{variable.aval}={_constant(variable.val)}"
            return f"{numbers.setdefault(variable, len(numbers))}:{variable.aval}"

        def atoms(variables: Any) -> str:
            return " ".join(map(atom, variables))

        lines = [atoms(jaxpr.constvars), atoms(jaxpr.invars)]
        for eqn in jaxpr.eqns:
            params = " ".join(f"{name}={self._parameter(eqn.params[name])}" for name in sorted(eqn.params))
            lines.append(f"{atoms(eqn.invars)} -> {eqn.primitive.name} [{params}] -> {atoms(eqn.outvars)}")
        return _hash(*lines, atoms(jaxpr.outvars))

    def _parameter(self, value: Any) -> str:
        if isinstance(value, ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, Jaxpr):
            return self.jaxpr(value)
        if isinstance(value, tuple | list):
            return f"({' '.join(map(self._parameter, value))})"
        if isinstance(value, set | frozenset):
            return f"{{{' '.join(sorted(map(self._parameter, value)))}}}"
        return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _constant(value: Any) -> str:
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    return _hash(str(array.dtype), str(array.shape), array.tobytes())


def _hash(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
