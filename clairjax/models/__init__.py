"""Equinox models of the papers, and low-rank adaptation around any linear layer."""

from ._lora import LoRA as LoRA
from ._lora import adapt as adapt
from ._lora import merge as merge
from ._lora import trainable as trainable
from ._transformer import CopyingTransformer as CopyingTransformer
from ._transformer import SelfAttention as SelfAttention
