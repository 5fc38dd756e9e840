"""Keys from the system's entropy: all bits, in every process, and never compiled in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import privacy
from clairjax.representation import centaur, perturbed_least_squares, private_power_method


def bits(draws):
    words = np.stack([np.asarray(jax.random.key_data(privacy.secret_key())) for _ in range(draws)])
    return np.unpackbits(words.view(np.uint8), axis=1)


@pytest.mark.parametrize(("implementation", "size"), [("threefry2x32", 64), ("rbg", 128)])
@pytest.mark.parametrize("wide", [True, False])
def test_every_bit_varies_and_no_two_keys_are_the_same(implementation, size, wide):
    """A free bit would fail with probability 2⁻⁹⁹; without x64, `jax.random.key(seed)` leaves half of them 0."""
    with jax.default_prng_impl(implementation), jax.enable_x64(wide):
        drawn = bits(100)
    assert drawn.shape == (100, size)
    assert (drawn.min(0) == 0).all() and (drawn.max(0) == 1).all()
    assert len(np.unique(drawn, axis=0)) == 100


def test_it_is_a_key_as_jax_makes_them():
    assert privacy.secret_key().dtype == jax.random.key(0).dtype and privacy.secret_key().shape == ()


@pytest.mark.parametrize("trace", [jax.jit, lambda f: lambda: jax.lax.scan(lambda c, x: (c, f()), 0, jnp.arange(2))])
def test_it_is_refused_where_it_would_be_drawn_once(trace):
    with pytest.raises(ValueError) as caught:
        trace(lambda: jax.random.bits(privacy.secret_key()))()
    assert str(caught.value) == (
        "secret_key must be called outside jit and scan, and its key handed in (a compiled program repeats the key in "
        "each run), got a call inside a trace."
    )


@pytest.mark.parametrize("release", [centaur, private_power_method, perturbed_least_squares])
def test_what_takes_a_key_for_a_release_shows_such_a_key(release):
    assert "key=privacy.secret_key()" in release.__doc__.replace("key = ", "key=")
    assert all(word in release.__doc__ for word in ("new", "used once"))
