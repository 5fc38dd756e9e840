"""Keys for releases that are meant: from the operating system's entropy."""

import secrets

import jax
import jax.numpy as jnp
import numpy as np

from .. import _validate
from .._typing import Key


def secret_key() -> Key:
    """A new key that nobody can guess: what the `key` of a private release has to be.

    ε holds for those who do not know the noise. Who can guess the key draws the noise and takes it away: a release by
    one of 200 seeds is undone by trying 200 seeds. So take a new key for each release and use it once. Keep it from
    everyone, as the data themselves, or throw it away.

    All bits of the key are random: 64 for Threefry, JAX's default, in a process with x64 and without. Without x64
    `jax.random.key(seed)` keeps the last 32 bits of a seed, few enough to try them all. 64 bits are few for a secret
    that has to last, and Threefry was made for simulation, not for cryptography. Against an attacker with the means to
    break either, ε is no promise.

    **Raises:** `ValueError` inside `jit`, where it would be drawn once and compiled in.

    **Cost:** a few bytes of the system's entropy.

    >>> import jax
    >>> from clairjax import privacy
    >>> noise = jax.random.normal(privacy.secret_key(), (3,))
    >>> bool((noise == jax.random.normal(privacy.secret_key(), (3,))).any())
    False
    """
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape  # of JAX's default, or the one set
    words = np.frombuffer(secrets.token_bytes(4 * int(np.prod(shape))), np.uint32)
    key = jax.random.wrap_key_data(jnp.asarray(words.reshape(shape)))
    if not _validate.concrete(key):
        must_be = "called outside jit and scan, and its key handed in (a compiled program repeats the key in each run)"
        raise _validate.fail("secret_key", must_be, "a call inside a trace")
    return key
