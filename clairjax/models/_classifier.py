"""Classifiers with a body and a last linear layer: the papers' convolutional networks, LeNets and MLP."""

import itertools
from abc import abstractmethod
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _validate
from .._typing import Key
from ._conv import ConvPool, pooled
from ._lora import LoRA, affine, apply


class Classifier(eqx.Module):
    """Logits = H ψ(x) + b: a body ψ and a head, which strategies of `federated` may treat apart.

    A model of one's own is a subclass with a field `head`, an `equinox.nn.Linear`, and a method `features`. Both work
    on batches. `dropout` is between the two, and only where a key is given.

    >>> import equinox as eqx, jax, jax.numpy as jnp
    >>> from clairjax.models import Classifier
    >>> class Linear(Classifier):
    ...     head: eqx.nn.Linear
    ...     def features(self, images):
    ...         return images.reshape(len(images), -1)
    >>> model = Linear(eqx.nn.Linear(64, 10, key=jax.random.key(0)))
    >>> model(jnp.zeros((5, 8, 8, 1))).shape
    (5, 10)
    """

    head: eqx.AbstractVar[eqx.nn.Linear | LoRA]

    @abstractmethod
    def features(self, images: Float[Array, "batch height width channels"]) -> Float[Array, "batch features"]:
        """ψ(x), what the head sees."""

    @property
    def rate(self) -> float:
        """Of dropout on the features, in training."""
        return 0.0

    def classify(
        self, features: Float[Array, "batch features"], *, key: Key | None = None
    ) -> Float[Array, "batch classes"]:
        """Logits from features; dropped out where there is a key and a rate."""
        return apply(self.head, self.dropped(features, key=key))

    def dropped(self, features: Float[Array, "batch features"], *, key: Key | None) -> Float[Array, "batch features"]:
        """Features with a share `rate` of them zero and the others scaled up, where there is a key."""
        if key is None or self.rate == 0:
            return features
        kept = jax.random.uniform(key, features.shape, jnp.float32) >= jnp.float32(self.rate)
        return jnp.where(kept, features / jnp.asarray(1 - self.rate, features.dtype), 0)

    def __call__(
        self, images: Float[Array, "batch height width channels"], *, key: Key | None = None
    ) -> Float[Array, "batch classes"]:
        return self.classify(self.features(images), key=key)


class Network(Classifier):
    """Blocks of convolution, pooling and ReLU, then dense layers with ReLU, then a linear head.

    - `blocks`: `ConvPool`s, none for an MLP. `dense`: the hidden layers. `head`: the last layer.
    - `dropout` (static): the rate of dropout between the last hidden layer and the head.

    **Source:** FLUTE, C.2; CENTAUR, B. Initial values are not printed: weights and biases are uniform on ±1/√(number
    of inputs), as the authors' library does. Departs from print: FLUTE's text has CIFAR-100's dropout behind the first
    pooling; it is before the head here, as in the authors' code. Pooled images are flattened with the channels last.

    **Cost:** see `ConvPool`; a dense layer is in · out multiplications an image. Weights are float32 unless converted.

    >>> import jax, jax.numpy as jnp
    >>> from clairjax.models import Network
    >>> model = Network.create((28, 28, 1), 10, channels=(8,), dense=(16,), key=jax.random.key(0))
    >>> model(jnp.zeros((2, 28, 28, 1), "float32")).shape
    (2, 10)
    """

    blocks: tuple[ConvPool, ...]
    dense: tuple[eqx.nn.Linear | LoRA, ...]
    head: eqx.nn.Linear | LoRA
    dropout: float = eqx.field(static=True, default=0.0)

    @staticmethod
    def create(
        shape: tuple[int, int, int],
        classes: int,
        *,
        channels: Sequence[int] = (),
        size: int = 5,
        dense: Sequence[int] = (),
        dropout: float = 0.0,
        key: Key,
    ) -> "Network":
        """Draw a model for images of `shape` (height, width, channels), in float32.

        `channels` are those of the convolutions, each `size` × `size`; `dense` the widths of the hidden layers.

        **Raises:** `ValueError` if the images are too small for the convolutions.
        """
        _validate.at_least(classes, "classes", 2)
        if not 0 <= dropout < 1:
            raise _validate.fail("dropout", "at least 0 and below 1", dropout)
        keys = iter(jax.random.split(key, len(channels) + len(dense) + 1))
        height, width, depth = shape
        for _ in channels:
            height, width = pooled(height, size), pooled(width, size)
        if min(height, width, depth) < 1:
            raise _validate.fail("shape", f"of images large enough for {len(channels)} convolutions of {size}", shape)
        depths = [depth, *channels]
        blocks = [ConvPool.create(*pair, size, key=next(keys)) for pair in itertools.pairwise(depths)]
        depth = depths[-1]
        widths = [height * width * depth, *dense, classes]
        layers = [
            eqx.nn.Linear(in_, out, dtype=jnp.float32, key=next(keys)) for in_, out in itertools.pairwise(widths)
        ]
        return Network(blocks=tuple(blocks), dense=tuple(layers[:-1]), head=layers[-1], dropout=float(dropout))

    @property
    def rate(self) -> float:
        return self.dropout

    def features(self, images: Float[Array, "batch height width channels"]) -> Float[Array, "batch features"]:
        for block in self.blocks:
            images = block(images)
        hidden = images.reshape(len(images), -1)
        for layer in self.dense:
            hidden = jax.nn.relu(affine(layer, hidden) if isinstance(layer, eqx.nn.Linear) else layer(hidden))
        return hidden


def flute_cnn(classes: int = 10, *, shape: tuple[int, int, int] = (32, 32, 3), key: Key) -> Network:
    """FLUTE's network: two convolutions and two hidden layers; that for CIFAR-100 where there are 100 classes.

    **Source:** FLUTE, C.2. **Cost:** 13 million multiplications an image of CIFAR-10 in the forward pass.

    >>> import equinox as eqx, jax
    >>> from clairjax.models import flute_cnn
    >>> shapes = eqx.filter_eval_shape(lambda: flute_cnn(100, key=jax.random.key(0)))  # without drawing it
    >>> [layer.weight.shape for layer in shapes.dense]
    [(256, 3200), (128, 256)]
    """
    if classes == 100:
        return Network.create(shape, classes, channels=(64, 128), dense=(256, 128), dropout=0.6, key=key)
    return Network.create(shape, classes, channels=(64, 64), dense=(120, 64), key=key)


def lenet(classes: int = 10, *, shape: tuple[int, int, int] = (32, 32, 3), key: Key) -> Network:
    """CENTAUR's LeNet: two convolutions, hidden layers of 384 and 32, or 128 and 32 where there are 100 classes.

    **Source:** CENTAUR, B. **Cost:** 13 million multiplications an image of CIFAR-10 in the forward pass.

    >>> import equinox as eqx, jax
    >>> from clairjax.models import lenet
    >>> shapes = eqx.filter_eval_shape(lambda: lenet(key=jax.random.key(0)))  # without drawing it
    >>> [layer.weight.shape for layer in shapes.dense]
    [(384, 1600), (32, 384)]
    """
    return Network.create(shape, classes, channels=(64, 64), dense=(128 if classes == 100 else 384, 32), key=key)


def mlp(classes: int = 10, *, shape: tuple[int, int, int] = (28, 28, 1), key: Key) -> Network:
    """CENTAUR's MLP: hidden layers of 256, 128 and 16.

    **Source:** CENTAUR, B. **Cost:** 0.24 million multiplications an image of EMNIST in the forward pass.

    >>> import jax
    >>> from clairjax.models import mlp
    >>> [layer.weight.shape for layer in mlp(key=jax.random.key(0)).dense]
    [(256, 784), (128, 256), (16, 128)]
    """
    return Network.create(shape, classes, dense=(256, 128, 16), key=key)


def small_cnn(classes: int = 10, *, shape: tuple[int, int, int] = (8, 8, 1), key: Key) -> Network:
    """One convolution and one hidden layer, for images of 8 × 8.

    **Cost:** 10 thousand multiplications an image in the forward pass.

    >>> import jax
    >>> from clairjax.models import small_cnn
    >>> [layer.weight.shape for layer in small_cnn(key=jax.random.key(0)).dense]
    [(32, 144)]
    """
    return Network.create(shape, classes, channels=(16,), size=3, dense=(32,), key=key)
