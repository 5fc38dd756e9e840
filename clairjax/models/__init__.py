"""Equinox models of the papers, and low-rank adaptation around any linear layer."""

from ._classifier import Classifier as Classifier
from ._classifier import Network as Network
from ._classifier import flute_cnn as flute_cnn
from ._classifier import lenet as lenet
from ._classifier import mlp as mlp
from ._classifier import small_cnn as small_cnn
from ._conv import ConvPool as ConvPool
from ._lora import LoRA as LoRA
from ._lora import adapt as adapt
from ._lora import merge as merge
from ._lora import trainable as trainable
from ._transformer import CopyingTransformer as CopyingTransformer
from ._transformer import SelfAttention as SelfAttention
