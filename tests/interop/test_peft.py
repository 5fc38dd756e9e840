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

import clairjax as cj  # noqa: E402


WHERE = {
    "linear": ["q_proj", "v_proj", "down_proj"],
    "transposed": ["c_attn"],
    "embedding": ["embed_tokens", "q_proj"],
}
OPTIONS = {
    "linear": {
        "r": 6,
        "lora_alpha": 9,
        "use_rslora": True,
        "rank_pattern": {"v_proj": 4},
        "alpha_pattern": {"down_proj": 5},
    },
    "transposed": {"r": 6, "lora_alpha": 12, "fan_in_fan_out": True},
    "embedding": {"r": 6, "lora_alpha": 12},
}


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
    )
    return transformers.LlamaForCausalLM(config).eval()


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


@pytest.fixture(scope="module", params=WHERE)
def refined(request, tmp_path_factory):
    kind, root = request.param, tmp_path_factory.mktemp(request.param)
    folders = []
    for client in range(7):
        config = peft.LoraConfig(target_modules=WHERE[kind], task_type="CAUSAL_LM", **OPTIONS[kind])
        model = peft.get_peft_model(base(kind), config)
        plant(model, client, bad=client == 2)
        folders.append(root / f"client{client}")
        model.save_pretrained(folders[-1], save_embedding_layers=False)
    found = cj.adapters.refine(cj.adapters.load(folders))
    return kind, root, found, cj.adapters.save(found, root / "out")


def test_peft_products_are_ours(refined):
    """scale · B · A as PEFT merges it, which settles every option's meaning, transposes included."""
    kind, root, found, _ = refined
    model = peft.PeftModel.from_pretrained(base(kind), root / "client1")
    for name, module, _, down in layers(model):
        delta = module.get_delta_weight("default").detach().numpy()
        ours = np.asarray(found.adapters.factors(name, ["client1"]).dense()[0])
        delta = delta.T if is_transposed(kind, name) else delta
        assert ours.shape == (delta.shape[0], down.shape[1])
        np.testing.assert_allclose(ours, delta, atol=1e-6)


def test_the_poisoned_client_is_found(refined):
    _, _, found, _ = refined
    assert [name for name, each in found.verdicts.items() if each.verdict != "member"] == ["client2"]


def test_peft_loads_what_was_written_and_computes_the_same(refined):
    kind, root, found, report = refined
    tokens = torch.arange(40).reshape(4, 10)
    for client in ("client0", "client6"):
        loaded = peft.PeftModel.from_pretrained(base(kind), root / "out" / client)
        stored = json.loads((root / "out" / client / "adapter_config.json").read_text())
        assert stored["peft_type"] == "LORA" and loaded.peft_config["default"].r == stored["r"]
        direct = base(kind)
        with torch.no_grad():
            plain = direct(tokens).logits
            weights = dict(direct.named_modules())
            worst = 0.0
            for name, module, *_ in layers(loaded):
                exact = np.asarray(found.refined(name)[1].dense()[found.members_of(name).index(client)])
                written = module.get_delta_weight("default").detach().numpy()
                exact = exact.T if is_transposed(kind, name) else exact
                error = np.linalg.norm(written - exact) / np.linalg.norm(exact)
                stated = report["modules"][name]["clients"][client]["truncation_error"]
                assert abs(error - stated) < 1e-4
                worst = max(worst, stated)
                weights[name].weight += torch.tensor(exact)
            moved = direct(tokens).logits
            error = torch.linalg.norm(loaded(tokens).logits - moved) / torch.linalg.norm(moved - plain)
        assert error < 3 * max(worst, 1e-4)


def test_no_key_is_missing_or_unexpected(refined):
    kind, root, *_ = refined
    model = peft.get_peft_model(base(kind), peft.LoraConfig.from_pretrained(root / "out" / "client0"))
    from safetensors.torch import load_file

    outcome = peft.set_peft_model_state_dict(model, load_file(root / "out" / "client0" / "adapter_model.safetensors"))
    assert not outcome.unexpected_keys
    assert not [key for key in outcome.missing_keys if "lora" in key]
