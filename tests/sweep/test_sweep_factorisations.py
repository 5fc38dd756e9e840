"""Factorisations one matrix at a time: the same numbers, and no batch left that jaxlib could deadlock on."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from clairjax import sweep
from clairjax._factorisations import one_matrix_at_a_time
from clairjax.sweep._trace import fingerprint


def in_a_loop(x, s):
    def body(state):
        with jax.named_scope("clairjax.test_scope"):
            return jnp.linalg.qr(s @ state[0])[0], state[1] + 1

    return jax.lax.while_loop(lambda state: state[1] < 5, body, (s[:, :2], 0))[0]


def in_a_scan(x, s):
    return jax.lax.scan(lambda c, a: (c + jnp.linalg.cholesky(a @ a.T + s), c.sum()), s, x)


def in_a_branch(x, s):
    return jax.lax.cond(s[0, 0] > 30, lambda s: jnp.linalg.inv(s), lambda s: 2 * s, s)


def of_a_gradient(x, s):
    return jax.grad(lambda s: jnp.linalg.eigh(s)[0][0])(s)


def tridiagonal(x, s):
    low, high = 0.1 * jnp.abs(x[:, 0]).at[:, 0].set(0), 0.1 * jnp.abs(x[:, 1]).at[:, -1].set(0)
    return jax.lax.linalg.tridiagonal_solve(low, jnp.ones_like(low), high, x)


class Cell(NamedTuple):
    size: int = 1


CASES = {
    "eigh of a batch": lambda x, s: jnp.linalg.eigh(x @ x.mT)[0],
    "svd of a batch": lambda x, s: jnp.linalg.svd(x)[1],
    "solve of a batch": lambda x, s: jnp.linalg.solve(x, x[:, :, :2]),
    "solve of a vector": lambda x, s: jnp.linalg.solve(s, x[0, 0]),
    "cho_solve": lambda x, s: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(s), x[0]),
    "least squares": lambda x, s: jnp.linalg.lstsq(x[0], x[1])[0],
    "remat": lambda x, s: jax.checkpoint(jnp.linalg.det)(s),
    "batch of batches": lambda x, s: jnp.linalg.qr(jnp.stack([x, 2 * x])),
    "nothing": lambda x, s: jax.nn.relu(x @ s),
    "loop": in_a_loop,
    "scan": in_a_scan,
    "branch": in_a_branch,
    "gradient": of_a_gradient,
    "tridiagonal": tridiagonal,
}


@pytest.mark.parametrize("name", CASES)
def test_same_numbers_and_no_batched_factorisation(name):
    x = jax.random.normal(jax.random.key(0), (3, 4, 5, 5))
    s = jnp.einsum("lkij,lkih->ljh", x, x)
    closed = jax.make_jaxpr(CASES[name])(x[0], s[0])
    before = fingerprint(closed)
    changed = one_matrix_at_a_time(closed)
    assert fingerprint(closed) == before and (fingerprint(changed) == before) == (name == "nothing")
    batched = jax.jit(jax.vmap(jaxpr_as_fun(changed))).lower(x, s).compile()
    calls = re.findall(r"= (.*?) custom-call\(.*custom_call_target=\"lapack", batched.as_text())
    assert calls or name == "nothing"
    shapes = [shape.split(",") for call in calls for shape in re.findall(r"\[([\d,]*)\]", call)]
    assert all(len(shape) <= 2 for shape in shapes), calls
    assert name != "loop" or "clairjax.test_scope" in batched.as_text()
    small = jnp.finfo(x.dtype).eps
    for found, expected in zip(batched(x, s), jax.vmap(jaxpr_as_fun(closed))(x, s), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e4 * small, atol=1e4 * small * abs(expected).max())


def test_independent_batched_factorisations_do_not_deadlock_a_sweep():
    """Sixteen at once, as batches of eight, hang in `jit(vmap(…))` on two busy cores within a minute."""

    def replicate(key, cell):
        x = jnp.eye(24) + jax.random.uniform(key)
        return {"values": jnp.stack([jnp.linalg.eigh(x + i)[0] for i in range(16)])}

    results = sweep.run(replicate, [Cell()], key=jax.random.key(0), replicates=320, lane_width=8)
    assert not results.failures
