"""Tensors beside LoRA's factors: whole embeddings and `modules_to_save` go through, another method's never do."""

import numpy as np
import pytest


pytest.importorskip("safetensors")

from folders import write, write_all

import clairjax as cj
from clairjax.adapters._beside import not_embeddings


PREFIX = "base_model.model."
ADAPTED = ("model.layers.0.q", "model.layers.1.q", "model.embed", "0.model.k")
VOCABULARY, PATCHES, ROW = (50, 8), (8, 3, 4, 4), (50,)
# The input and the output embeddings as architectures call them; ranks of the weights differ, and what is beside them.
WHOLE = {
    "input alone": {"shared.weight": VOCABULARY},
    "input and output": {"model.wte.weight": VOCABULARY, "proj_out.weight": VOCABULARY},
    "a bias": {"bert.words.weight": VOCABULARY, "cls.pred.decoder.weight": VOCABULARY, "cls.pred.decoder.bias": ROW},
    "patches": {"vit.embeddings.patch.projection.weight": PATCHES, "vit.embeddings.patch.projection.bias": (8,)},
    "a norm within": {"model.words.weight": VOCABULARY, "model.words.norm.weight": (8,), "head.weight": VOCABULARY},
    "parts of other names": {
        "tokens.weight": VOCABULARY,
        "tokens.boi": (1, 8),
        "head.weight": VOCABULARY,
        "head.s": (),
    },
    "in a list of its own": {"vit.patches.0.projection.weight": PATCHES, "vit.patches.0.projection.bias": (8,)},
    "in a part by number": {"0.model.words.weight": VOCABULARY},
    "lists": {f"{name}.{k}.weight": VOCABULARY for name in ("model.decoder.tokens", "heads") for k in range(4)},
    "the base of an adapted one": {"model.embed.base_layer.weight": VOCABULARY, "head.weight": VOCABULARY},
}
ANOTHERS = {
    "DoRA": {"model.layers.0.q.lora_magnitude_vector": (8,)},
    "a bias of LoRA's": {"model.layers.0.q.lora_B.bias": (8,)},
    "half of an embedding's factors": {"model.embed.lora_embedding_A.weight": (4, 50)},
    "a variant that is not known": {"model.layers.0.q.lora_diag": (4,)},
    "a layer's biases": {"model.layers.0.q.base_layer.bias": (8,)},
    "a layer's base": {"model.layers.0.q.base_layer.weight": (8, 8)},
    "a layer that is not adapted": {"model.layers.0.up.weight": (8, 8)},
    "a layer that is not adapted, of a list that is": {"model.layers.7.up.weight": (8, 8)},
    "a norm": {"model.norm.weight": (8,)},
    "a bias alone": {"head.bias": ROW},
    "three modules": {f"{name}.weight": VOCABULARY for name in ("words", "places", "head")},
    "tokens": {"model.words.weight": VOCABULARY, "model.words.token_adapter.trainable_tokens_delta": (2, 8)},
    "in an adapted module": {"model.embed.weight": VOCABULARY},
    "IA3": {"head.weight": VOCABULARY, "head.ia3_l": (8, 1)},
    "VeRA": {"head.weight": VOCABULARY, "head.vera_lambda_b": (8,)},
    "OFT": {"head.oft_R.weight": (4, 8)},
    "LoHa": {"head.weight": VOCABULARY, "head.hada_w1_a": (8, 4)},
}


@pytest.mark.parametrize("what", WHOLE)
def test_whole_embeddings_are_known_whatever_they_are_called(what):
    assert not_embeddings({PREFIX + key: shape for key, shape in WHOLE[what].items()}, ADAPTED) is None
    assert not_embeddings(WHOLE[what], ADAPTED) == next(iter(WHOLE[what]))


@pytest.mark.parametrize("what", ANOTHERS)
def test_what_changes_the_update_is_not_an_embedding(what):
    assert not_embeddings({PREFIX + key: shape for key, shape in ANOTHERS[what].items()}, ADAPTED) is not None


SAVED = ["classifier", "my.head", "model.pooler"]


@pytest.mark.parametrize(
    ("key", "is_saved"),
    [
        ("classifier.weight", True),
        ("pre_classifier.bias", True),
        ("deep.down.classifier.dense.out.weight", True),
        ("my.head.weight", True),
        ("yummy.head.weight", True),
        ("pooler.dense.bias", True),  # the prefix of all keys ends in "model."
        ("classifiers.0.bias", False),
        ("classifier_2.bias", False),
        ("head.bias", False),
        ("layers.0.classifier", False),  # a parameter of that name, not a module
    ],
)
def test_modules_to_save_are_matched_at_the_end_of_a_modules_name(key, is_saved, tmp_path):
    """As PEFT does, by the text; what is a bias alone can be nothing else."""
    inputs = write_all(tmp_path, count=3, config={"modules_to_save": SAVED}, extra={PREFIX + key: np.ones(4)})
    if is_saved:
        assert {folder.carried for folder in cj.adapters.load(inputs).clients.values()} == {(PREFIX + key,)}
    else:
        with pytest.raises(ValueError, match=f"^client client0: tensors must be .*, got '{PREFIX}{key}'"):
            cj.adapters.load(inputs, strict=True)


def test_a_module_to_save_that_is_adapted_is_refused(tmp_path):
    inputs = write_all(tmp_path, count=3, config={"modules_to_save": ["up"]})
    with pytest.raises(
        ValueError, match=r"^client client0: modules of modules_to_save must have no factors: .*mlp\.up"
    ):
        cj.adapters.load(inputs, strict=True)


@pytest.mark.parametrize(("shape", "part"), [((0,), "factors"), ((77,), "factors"), ((0,), "head")])
def test_shards_are_said_to_be_that(shape, part, tmp_path):
    """As a run under ZeRO-3 or FSDP leaves them where nothing gathers the parameters."""
    empty = lambda up, down: (np.ones(shape), np.ones(shape))
    head = {"base_model.model.head.weight": np.ones(shape)}
    bad = {"change": empty} if part == "factors" else {"config": {"modules_to_save": ["head"]}, "extra": head}
    inputs = [write(tmp_path, 0), write(tmp_path, 1), write(tmp_path, 2), write(tmp_path, 3, **bad)]
    said = cj.adapters.load(inputs).clients["client3"].fault
    assert said.endswith(f"{shape}, a shard's, as of ZeRO-3 or FSDP: gather the parameters before saving.")
    assert "must have been saved whole, got (" in said and ("head.weight" if part == "head" else "factors") in said
