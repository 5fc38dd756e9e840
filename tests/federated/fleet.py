"""A small federation and small models, of shapes that the tests of this folder share."""

import jax
import numpy as np

from clairjax import data, federated, models


CLASSES = 4
RATE = 0.05


def images(rng, samples=96, side=5):
    """Grey images of four classes: noise, and a bright row that is the class."""
    labels = np.arange(samples) % CLASSES
    pixels = rng.integers(0, 120, (samples, side, side))
    pixels[np.arange(samples), labels] += 100
    return pixels.astype(np.uint8), labels


def federation(rng, clients=6, scheme=None, **more):
    scheme = scheme or data.Dirichlet(1.0)
    return data.partition(*images(rng), scheme=scheme, clients=clients, key=jax.random.key(3), **more)


def network(dense=(6,), side=5):
    return models.Network.create((side, side, 1), CLASSES, dense=dense, key=jax.random.key(1))


def local(batch=4, momentum=0.5):
    return federated.Local(federated.sgd(RATE, momentum=momentum, decay=1e-3), batch=batch)


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape")]
