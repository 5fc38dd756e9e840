"""`adapter_config.json`: every field is understood, or refused in one sentence with the client and its name."""

import json
import re

import pytest


pytest.importorskip("safetensors")

from folders import write

import clairjax as cj
from clairjax.adapters._config import read_settings, refined_fields


BASIS = {"peft_type": "LORA", "base_model_name_or_path": "base", "r": 6, "lora_alpha": 12}
NOT_THE_UPDATE = "with it the update is not scale · B · A"
BAD = {
    "use_dora": (True, f"use_dora must be False: {NOT_THE_UPDATE}, got True."),
    "lora_bias": (True, f"lora_bias must be False: {NOT_THE_UPDATE}, got True."),
    "bias": ("all", f"bias must be 'none': {NOT_THE_UPDATE}, got 'all'."),
    "init_lora_weights": (
        "pissa",
        "init_lora_weights must leave the base model as it is (convert the adapter with PEFT first), got 'pissa'.",
    ),
    "peft_type": ("LOHA", "peft_type must be LORA, got LOHA."),
    "novelty": (1, "must have known fields only"),
    "r": ([0, -3, 6.7, 6.0, True, None, "6", 10**400], "r must be a positive integer, got "),
    "lora_alpha": ([0, -1.5, None, "12", 10**400, float("nan")], "lora_alpha must be a positive number, got "),
    "use_rslora": ([None, 1, "yes"], "use_rslora must be true or false, got "),
    "modules_to_save": (
        ["head", 3, {"head": 1}, ["head", 3]],
        "modules_to_save must be a list of names or null, got ",
    ),
    "base_model_name_or_path": ([7, {"a": 1}], "base_model_name_or_path must be a text or null, got "),
    "revision": ([1, ["main"]], "revision must be a text or null, got "),
    "target_modules": ([5, ["q", 5]], "target_modules must be a text, a list of names or null, got "),
    "exclude_modules": ([5], "exclude_modules must be a text, a list of names or null, got "),
    "rank_pattern": (["q", 3, ["q"]], "rank_pattern must be an object, got "),
    "alpha_pattern": (["q", 3, [1]], "alpha_pattern must be an object, got "),
}
NO_REGEX = "must have regular expressions for names"
BAD_PATTERNS = [
    (
        "rank_pattern",
        "(",
        6,
        f"rank_pattern {NO_REGEX} (missing ), unterminated subpattern",
    ),
    ("alpha_pattern", "a{99999999999}", 6, f"alpha_pattern {NO_REGEX} (the repetition"),
    (
        "alpha_pattern",
        "q" + "(" * 9999 + ")" * 9999,
        6,
        f"alpha_pattern {NO_REGEX} (maximum",
    ),
    ("rank_pattern", "q", 6.7, "rank_pattern of 'q' must be a positive integer, got 6.7."),
    ("rank_pattern", "q", True, "rank_pattern of 'q' must be a positive integer, got True."),
    ("rank_pattern", "q", {}, "rank_pattern of 'q' must be a positive integer, got {}."),
    ("alpha_pattern", "q", "4", "alpha_pattern of 'q' must be a positive number, got '4'."),
    ("alpha_pattern", "q", 10**400, "alpha_pattern of 'q' must be a positive number, got 1000000"),
    ("alpha_pattern", "q", float("inf"), "alpha_pattern of 'q' must be a positive number, got inf."),
]


@pytest.fixture
def refused(tmp_path):
    """The sentence that a configuration is refused with."""

    def read(text):
        (tmp_path / "adapter_config.json").write_text(text)
        with pytest.raises(ValueError, match=r"^client one: ") as error:
            read_settings(tmp_path, "one")
        assert len(str(error.value)) < 250 and "\n" not in str(error.value)
        return str(error.value)

    return read


@pytest.mark.parametrize("field", BAD)
def test_a_field_that_changes_the_update_or_is_malformed_is_refused_by_name(field, refused):
    values, message = BAD[field]
    for value in values if isinstance(values, list) else [values]:
        said = refused(json.dumps(BASIS | {field: value}))
        assert message in said and field in said


@pytest.mark.parametrize(("field", "pattern", "value", "message"), BAD_PATTERNS)
def test_a_malformed_pattern_is_refused_by_its_field(field, pattern, value, message, refused):
    assert refused(json.dumps(BASIS | {field: {pattern: value}})).startswith(f"client one: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"peft_type": "LORA", "r": 6, "r": 7}', "'r' twice."),
        ('{"peft_type": "LORA", "rank_pattern": {"q": 6, "q": 7}}', "'q' twice."),
        (
            '{"peft_type": "LORA", "auto_mapping": ' + "[" * 10**5 + "]" * 10**5 + "}",
            "maximum recursion depth exceeded",
        ),
        ('{"peft_type": "LORA", "r": ' + "9" * 5000 + "}", "Exceeds the limit"),
        ('{"peft_type": ', "Expecting value"),
    ],
)
def test_json_that_cannot_be_meant_is_refused(text, message, refused):
    said = refused(text)
    assert "adapter_config.json must be JSON, no deep nesting and no name twice, got " in said and message in said


@pytest.mark.parametrize("text", ["[]", "3", "null"])
def test_json_must_hold_an_object(text, refused):
    assert "adapter_config.json must hold an object, got " in refused(text)


def test_an_option_that_is_off_is_carried_whatever_it_is(tmp_path):
    """As fields of the first PEFT, which have no meaning any more, and of later ones that are not used."""
    off = {"enable_lora": None, "merge_weights": False, "of_a_later_peft": None}
    (tmp_path / "adapter_config.json").write_text(json.dumps(BASIS | off))
    assert refined_fields(read_settings(tmp_path, "one"), {"q": 6}, {"q": 1.0}).items() >= off.items()


@pytest.mark.parametrize("value", [0, "", [], {}, "false", True])
def test_any_other_value_of_an_unknown_field_is_refused(value, refused):
    assert "must have known fields only" in refused(json.dumps(BASIS | {"novelty": value}))


@pytest.mark.parametrize("name", ["bias", "revision", "r", "use_dora", "lora_alpha", "novelty", "rank_pattern"])
def test_modules_may_be_named_like_fields(name, tmp_path):
    patterns = {"rank_pattern": {name: 4}, "alpha_pattern": {name: 2.5}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(BASIS | patterns))
    settings = read_settings(tmp_path, "one")
    assert settings.rank(f"layers.0.{name}") == 4 and settings.scale(f"layers.0.{name}") == 2.5 / 4
    assert settings.rank("layers.0.q") == 6 and settings.scale("layers.0.q") == 2


def test_the_client_is_named_among_the_others(tmp_path):
    inputs = [write(tmp_path, k) for k in range(3)]
    path = inputs[1] / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"r": 6.7}))
    message = "client client1: r must be a positive integer, got 6.7."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cj.adapters.load(inputs, strict=True)
