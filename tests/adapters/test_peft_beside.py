"""What the real PEFT writes beside the factors, for stock models of the transformers library: heads and embeddings."""

import pytest


pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of torch, transformers and PEFT, about each other
]
torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402

import clairjax as cj  # noqa: E402
from clairjax.adapters._config import Settings  # noqa: E402
from clairjax.adapters._folder import _sort  # noqa: E402


BERT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
DISTILBERT = {"dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 48}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}
GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32, "pad_token_id": 0}
WHISPER = {
    **{f"{side}_{what}": value for side in ("encoder", "decoder") for what, value in
       {"layers": 1, "attention_heads": 4, "ffn_dim": 48}.items()},
    "d_model": 32, "num_mel_bins": 8, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
    "decoder_start_token_id": 0,
}  # fmt: skip
WAV2VEC2 = {**BERT, "conv_dim": (32,), "conv_kernel": (4,), "conv_stride": (2,), "num_feat_extract_layers": 1}
CLASS, ANSWERS = {"task_type": "SEQ_CLS"}, {"task_type": "QUESTION_ANS"}
HEADS = {"modules_to_save": ["projector", "classifier"]}
# The model, its configuration, what PEFT is told, and whether it saves embeddings.
STOCK = {
    "DistilBERT, a class": (
        "DistilBertForSequenceClassification",
        DISTILBERT,
        "q_lin",
        CLASS,
        True,
    ),
    "DistilBERT, answers": (
        "DistilBertForQuestionAnswering",
        DISTILBERT,
        "q_lin",
        ANSWERS,
        False,
    ),
    "BERT, a class": ("BertForSequenceClassification", BERT, "query", CLASS, False),
    "BERT, masked words": ("BertForMaskedLM", BERT, "query", {}, True),
    "BERT, adapted output": ("BertForMaskedLM", BERT, "query decoder", {}, True),
    "RoBERTa, a class": ("RobertaForSequenceClassification", BERT, "query", CLASS, True),
    "RoBERTa, tokens": ("RobertaForTokenClassification", BERT, "query", {"task_type": "TOKEN_CLS"}, False),
    "RoBERTa, both ways": ("RobertaForMaskedLM", BERT, "query", {"modules_to_save": ["decoder"]}, True),
    "ViT": ("ViTForImageClassification", BERT, "query q_proj", HEADS, True),
    "Wav2Vec2": ("Wav2Vec2ForSequenceClassification", WAV2VEC2, "q_proj", HEADS, False),
    "GPT-2, a class": ("GPT2ForSequenceClassification", GPT2, "c_attn", CLASS, True),
    "GPT-2, adapted input": ("GPT2LMHeadModel", GPT2, "c_attn wte", {"task_type": "CAUSAL_LM"}, True),
    "Llama, both adapted": ("LlamaForCausalLM", BERT, "q_proj embed_tokens lm_head", {"task_type": "CAUSAL_LM"}, True),
    "T5": ("T5ForConditionalGeneration", T5, "q", {"task_type": "SEQ_2_SEQ_LM"}, True),
    "Whisper": ("WhisperForConditionalGeneration", WHISPER, "q_proj", {}, True),
}


def base(name):
    kind, fields, *_ = STOCK[name]
    made = getattr(transformers, kind)
    torch.manual_seed(0)
    return made(made.config_class(**({} if kind.startswith(("ViT", "Wav2")) else {"vocab_size": 50}) | fields))


def adapted(model, client, targets, **options):
    torch.manual_seed(client)
    settings = peft.LoraConfig(r=4, target_modules=targets.split(), init_lora_weights=False, **options)
    return peft.get_peft_model(model, settings)


def without_factors(folder):
    return {key: each for key, each in load_file(folder / "adapter_model.safetensors").items() if "lora_" not in key}


@pytest.mark.parametrize("name", STOCK)
def test_heads_and_embeddings_are_carried(name, tmp_path):
    _, _, targets, options, embeddings = STOCK[name]
    folders = [tmp_path / f"{client}" for client in range(3)]
    for client, folder in enumerate(folders):
        adapted(base(name), client, targets, **options).save_pretrained(folder, save_embedding_layers=embeddings)
    for folder, client in zip(folders, cj.adapters.load(folders, strict=True).clients.values(), strict=True):
        assert set(client.carried) == set(without_factors(folder)) != set()
        assert all(any(name.endswith(target) for target in targets.split()) for name in client.modules)


def test_a_head_matched_by_its_end_goes_all_the_way(tmp_path):
    """Written by PEFT, refined, loaded by PEFT."""
    name = "DistilBERT, a class"
    _, _, targets, options, _ = STOCK[name]
    folders = [tmp_path / f"{client}" for client in range(3)]
    for client, folder in enumerate(folders):
        adapted(base(name), client, targets, **options).save_pretrained(folder, save_embedding_layers=True)
    found = cj.adapters.refine(cj.adapters.load(folders), include=["0", "1", "2"])
    cj.adapters.save(found, tmp_path / "out", blend=0.5)
    middle = peft.PeftModel.from_pretrained(base(name), tmp_path / "out" / "global")
    changes = [layer.get_delta_weight("default") for layer in middle.modules() if hasattr(layer, "get_delta_weight")]
    assert len(changes) == len(found.findings) and all(change.abs().max() > 0 for change in changes)
    for client in found.members:
        before, after = (without_factors(tmp_path / where / client) for where in (".", "out"))
        assert set(before) == set(after) and all(torch.equal(before[key], after[key]) for key in before)
        loaded = peft.PeftModel.from_pretrained(base(name), tmp_path / "out" / client).base_model.model
        for head in ("classifier", "pre_classifier"):
            weight = getattr(loaded, head).modules_to_save["default"].weight
            assert torch.equal(weight, before[f"base_model.model.{head}.weight"])
        words = loaded.distilbert.embeddings.word_embeddings.weight
        assert torch.equal(words, before["base_model.model.distilbert.embeddings.word_embeddings.weight"])
    assert len(found.members) == 3


def test_embeddings_of_a_resized_vocabulary_are_carried(tmp_path):
    """Which PEFT writes of its own accord."""
    base("T5").save_pretrained(tmp_path / "base")
    for client in range(3):
        model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "base")
        model.resize_token_embeddings(53)
        adapted(model, client, "q").save_pretrained(tmp_path / f"{client}")
    loaded = cj.adapters.load([tmp_path / f"{client}" for client in range(3)], strict=True)
    embeddings = {f"base_model.model.{name}.weight" for name in ("shared", "lm_head")}
    assert {frozenset(client.carried) for client in loaded.clients.values()} == {frozenset(embeddings)}


TASKS = {
    "CAUSAL_LM": "",
    "MASKED_LM": "",
    "SEQ_TO_SEQ_CAUSAL_LM": "",
    "SPEECH_SEQ_2_SEQ": "",
    "IMAGE_TEXT_TO_TEXT": "",
    "SEQUENCE_CLASSIFICATION": "SEQ_CLS",
    "TOKEN_CLASSIFICATION": "TOKEN_CLS",
    "QUESTION_ANSWERING": "QUESTION_ANS",
    "IMAGE_CLASSIFICATION": "SEQ_CLS",
    "AUDIO_CLASSIFICATION": "SEQ_CLS",
}
LINEAR = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)


def stock(name, task):
    """What PEFT saves of a stock model of two layers, adapted in two modules: shapes by key, and `modules_to_save`.

    On torch's meta device: nothing is allocated, so every model is as wide as it is.
    """
    made = getattr(transformers, name)
    config = made.config_class()
    _shrink(config)
    with torch.device("meta"):
        model = made(config)
    heads = ("classifier", "score", "qa_outputs")
    linear = [where for where, module in model.named_modules() if isinstance(module, LINEAR)]
    targets = [where for where in linear if not any(head in where for head in heads)][:2]
    settings = peft.LoraConfig(r=2, target_modules=targets, task_type=task or None)
    whole = peft.get_peft_model(model, settings, low_cpu_mem_usage=True)
    saved = peft.get_peft_model_state_dict(whole, save_embedding_layers=True)
    return {key: (tuple(each.shape), "F32") for key, each in saved.items()}, settings.modules_to_save


def _shrink(config):
    for each in [config, *(part for part in vars(config).values() if isinstance(part, transformers.PretrainedConfig))]:
        for name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"):
            if isinstance(getattr(each, name, None), int):
                setattr(each, name, min(getattr(each, name), 2))


def test_every_stock_model_is_understood(monkeypatch, record_property):
    """673 with transformers 5.24; of a class that its default configuration does not make offline nothing is said."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    walked, refused, carried = 0, {}, set()
    for task, kind in TASKS.items():
        for names in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").values():
            for name in (names,) if isinstance(names, str) else names:
                try:
                    saved, ends = stock(name, kind)
                except Exception:  # a package that is missing, a configuration without defaults, PEFT's own refusals
                    continue
                walked += 1
                try:
                    modules, others = _sort(saved, Settings(name, {"r": 2, "modules_to_save": ends}))
                except ValueError as error:
                    refused[name] = str(error)
                    continue
                assert set(others) == {key for key in saved if "lora_" not in key}
                assert {key.split(".lora_")[0] for key in saved if "lora_" in key} == {
                    f"base_model.model.{module}" for module in modules
                }
                carried.update(key.split(".")[-2] for key in others)
    record_property("models", walked)
    assert not refused
    assert walked >= 600 and len(carried) >= 30, (walked, carried)
