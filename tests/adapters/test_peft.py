"""Adapters that the real PEFT wrote, refined, and loaded by it again: forward passes on a tiny random transformer."""

import json

import numpy as np
import pytest


pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of torch, transformers and PEFT, about each other
]
torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

import clairjax as cj  # noqa: E402


# The kinds that go all the way: written by PEFT, refined, loaded by PEFT.
KINDS = {
    "linear": {
        "target_modules": ["q_proj", "v_proj", "down_proj"],
        "lora_alpha": 9,
        "use_rslora": True,
        "rank_pattern": {"v_proj": 4},
        "alpha_pattern": {"down_proj": 5},
    },
    "nested patterns": {
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"model.layers.1.self_attn.q_proj": 4, r"^model\.layers\.0\.mlp\.down_proj": 5},
        "alpha_pattern": {"layers.0.self_attn.q_proj": 24, r"layers\.1\..*": 3},
    },
    "transposed": {"target_modules": ["c_attn"], "fan_in_fan_out": True},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "half": {"target_modules": ["q_proj", "lm_head"]},
    "classifier": {"target_modules": ["q_proj"], "modules_to_save": ["score"], "task_type": "SEQ_CLS"},
}


def options(kind):
    return {"r": 6, "lora_alpha": 12, "task_type": "CAUSAL_LM"} | KINDS[kind]


def base(kind):
    torch.manual_seed(0)
    if kind == "transposed":
        config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=32)
        return transformers.GPT2LMHeadModel(config).eval()
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        head_dim=10,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    if kind == "classifier":
        return transformers.LlamaForSequenceClassification(config).eval()
    model = transformers.LlamaForCausalLM(config).eval()
    return model.to(torch.bfloat16) if kind == "half" else model


def adapted(kind, client, folder, **changes):
    """A client's model with its adapter, saved."""
    model = peft.get_peft_model(base(kind), peft.LoraConfig(**options(kind) | changes), autocast_adapter_dtype=False)
    plant(model, client, bad=client == 2)
    model.save_pretrained(folder, save_embedding_layers=False)
    return model


def reloaded(kind, folder):
    return peft.PeftModel.from_pretrained(base(kind), folder, autocast_adapter_dtype=False)


def layers(model):
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "scaling"):
            embedding = "default" in module.lora_embedding_A
            sides = (module.lora_embedding_A, module.lora_embedding_B) if embedding else (module.lora_A, module.lora_B)
            down, up = (side["default"] if embedding else side["default"].weight for side in sides)
            yield name.removeprefix("base_model.model."), module, up, down


def is_transposed(kind, name):
    """Whether the base holds the weight as in × out."""
    return kind == "transposed" or "embed" in name


def plant(model, client, bad):
    """A common part, an own part in a row space that good clients share, little noise."""
    for place, (_, module, up, down) in enumerate(layers(model)):
        together, own = np.random.default_rng([1, place]), np.random.default_rng([2, place, client])
        (out, rank), in_ = up.shape, down.shape[1]
        shared, common_up, common_down = (together.normal(size=shape) for shape in ((1, in_), (out, 1), (1, in_)))
        left = [common_up, own.normal(size=(out, 1)), 0.03 * own.normal(size=(out, rank - 2))]
        right = [common_down, own.normal(size=(1, in_)) if bad else shared, own.normal(size=(rank - 2, in_))]
        with torch.no_grad():
            up.copy_(torch.tensor(0.2 * np.concatenate(left, 1) / module.scaling["default"]))
            down.copy_(torch.tensor(0.2 * np.concatenate(right, 0)))


@pytest.fixture(scope="module", params=KINDS)
def refined(request, tmp_path_factory):
    kind, root = request.param, tmp_path_factory.mktemp("peft")
    folders = [root / f"client{client}" for client in range(7)]
    for client, folder in enumerate(folders):
        adapted(kind, client, folder)
    shared = "columns" if kind in ("half", "transposed") else "rows"
    found = cj.adapters.refine(cj.adapters.load(folders), shared=shared)
    return kind, root, found, cj.adapters.save(found, root / "out")


def assert_same_products(model, kind, name, found):
    """scale · B · A as PEFT merges it, which settles every option's meaning, transposes included."""
    names = []
    for module_name, module, _, down in layers(model):
        exact = module.double().get_delta_weight("default").detach().numpy()
        exact = exact.T if is_transposed(kind, module_name) else exact
        ours = np.asarray(found.factors(module_name, [name]).dense()[0])
        assert ours.shape == (exact.shape[0], down.shape[1])
        np.testing.assert_allclose(ours, exact, atol=1e-6)
        names.append(module_name)
    assert sorted(names) == list(found.modules)


def test_peft_products_are_ours(refined):
    kind, root, found, _ = refined
    assert_same_products(reloaded(kind, root / "client1"), kind, "client1", found.adapters)


def test_the_poisoned_client_is_found(refined):
    _, _, found, _ = refined
    assert [name for name, each in found.verdicts.items() if each.verdict != "member"] == ["client2"]


def test_peft_loads_what_was_written_and_computes_the_same(refined):
    kind, root, found, report = refined
    tokens = torch.arange(1, 41).reshape(4, 10)
    for client in ("client0", "client6"):
        loaded = reloaded(kind, root / "out" / client)
        stored = json.loads((root / "out" / client / "adapter_config.json").read_text())
        assert stored["peft_type"] == "LORA" and loaded.peft_config["default"].r == stored["r"]
        direct, loaded = base(kind).double(), loaded.double()
        if kind == "classifier":
            direct.score.weight = loaded.base_model.model.score.modules_to_save["default"].weight
        with torch.no_grad():
            plain = direct(tokens).logits
            weights = dict(direct.named_modules())
            worst = 0.0
            for name, module, *_ in layers(loaded):
                exact = np.asarray(found.refined(name)[1].dense()[found.members_of(name).index(client)], float)
                written = module.get_delta_weight("default").detach().numpy()
                exact = exact.T if is_transposed(kind, name) else exact
                error = np.linalg.norm(written - exact) / np.linalg.norm(exact)
                stated = report["modules"][name]["clients"][client]["truncation_error"]
                assert abs(error - stated) < 1e-5
                worst = max(worst, stated)
                weights[name].weight += torch.tensor(exact)
            moved = direct(tokens).logits
            error = torch.linalg.norm(loaded(tokens).logits - moved) / torch.linalg.norm(moved - plain)
        assert error < 3 * max(worst, 1e-4)


def test_files_keep_their_types_and_what_is_not_lora(refined):
    """bfloat16 stays bfloat16; a classifier's head goes through bit for bit."""
    kind, root, *_ = refined
    before, after = (load_file(root / where / "client3" / "adapter_model.safetensors") for where in (".", "out"))
    assert set(before) == set(after)
    assert {key: each.dtype for key, each in before.items()} == {key: each.dtype for key, each in after.items()}
    assert (kind == "half") == (torch.bfloat16 in {each.dtype for each in after.values()})
    carried = {key for key in before if "lora_" not in key}
    assert len(carried) == (kind == "classifier") and all(torch.equal(before[key], after[key]) for key in carried)


def test_no_key_is_missing_or_unexpected(refined):
    kind, root, *_ = refined
    model = peft.get_peft_model(base(kind), peft.LoraConfig.from_pretrained(root / "out" / "client0"))
    outcome = peft.set_peft_model_state_dict(model, load_file(root / "out" / "client0" / "adapter_model.safetensors"))
    assert not outcome.unexpected_keys
    assert not [key for key in outcome.missing_keys if "lora" in key]


# Options whose meaning shows in the products alone: nothing is refined.
VARIANTS = {
    "default start": {"init_lora_weights": True},
    "gaussian start": {"init_lora_weights": "gaussian"},
    "orthogonal start": {"init_lora_weights": "orthogonal"},
    "random start": {"init_lora_weights": False},
    "all linear": {"target_modules": "all-linear"},
    "all linear but some": {"target_modules": "all-linear", "exclude_modules": ["o_proj", "up_proj"]},
    "some layers": {"layers_to_transform": [1], "layers_pattern": "layers"},
    "by a regular expression": {"target_modules": r".*\.0\..*(q|v)_proj"},
    "root of the rank": {"use_rslora": True, "rank_pattern": {"layers.1.mlp.down_proj": 3}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_understood_as_peft_does(variant, tmp_path):
    """The adapter's products are PEFT's, and its base model is the one that it started from."""
    models = [adapted("linear", client, tmp_path / f"{client}", **VARIANTS[variant]) for client in range(3)]
    loaded = cj.adapters.load([tmp_path / f"{client}" for client in range(3)])
    assert_same_products(models[1], "linear", "1", loaded)
    whole = dict(base("linear").named_modules())
    for name, module, *_ in layers(models[1]):
        assert torch.equal(module.base_layer.weight, whole[name].weight.double())


REFUSED = {
    "use_dora": {"use_dora": True},
    "lora_bias": {"lora_bias": True},
    "bias": {"bias": "all"},
    "trainable_token_indices": {"trainable_token_indices": [1, 2]},
    "init_lora_weights": {"init_lora_weights": "pissa"},
    "layer_replication": {"layer_replication": [[0, 2], [1, 2]]},
}


@pytest.mark.parametrize("field", REFUSED)
def test_a_variant_whose_update_is_another_is_refused_by_name(field, tmp_path):
    for client in range(4):
        changes = REFUSED[field] if client == 1 else {}
        peft.get_peft_model(base("linear"), peft.LoraConfig(**options("linear") | changes)).save_pretrained(
            tmp_path / f"{client}"
        )
    folders = [tmp_path / f"{client}" for client in range(4)]
    with pytest.raises(ValueError, match=rf"^client 1: {field} must ") as refused:
        cj.adapters.load(folders, strict=True)
    clients = cj.adapters.load(folders).clients.values()
    assert [client.fault for client in clients] == ["", str(refused.value), "", ""]
