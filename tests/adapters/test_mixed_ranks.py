"""Fleets of several ranks: the verdict is on what clients learned, and whole factors are refined."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest


pytest.importorskip("safetensors")

from folders import keys
from safetensors.numpy import save_file

import clairjax as cj
from clairjax.alignment import refine


OUT, IN, NOISE = 32, 40, 0.05
RANKS = {"a.q": [4, 4, 8, 16, 4, 8, 4, 16, 4], "b.q": [16, 4, 4, 4, 8, 4, 8, 4, 16]}


def fleet(root, stranger):
    """Planted as in the tests of `level_ranks`; a client's rank in the second module is by a pattern."""
    folders = []
    for k in range(9):
        tensors = {}
        for place, (module, ranks) in enumerate(RANKS.items()):
            together, own = np.random.default_rng([1, place]), np.random.default_rng([2, place, k])
            shared, up, down = (together.normal(size=size) for size in ((1, IN), (OUT, 1), (1, IN)))
            rest = ranks[k] - 2
            left = [up, own.normal(size=(OUT, 1)), NOISE * own.normal(size=(OUT, rest))]
            right = [down, own.normal(size=(1, IN)) if k == stranger else shared, own.normal(size=(rest, IN))]
            factors = np.concatenate(left, 1), np.concatenate(right)
            tensors |= {key: each.astype("f4") for key, each in zip(keys(module), factors, strict=True)}
        first, second = (ranks[k] for ranks in RANKS.values())
        pattern = {"rank_pattern": {"b.q": second}, "alpha_pattern": {"b.q": second}}
        fields = {"peft_type": "LORA", "base_model_name_or_path": "base", "r": first, "lora_alpha": first} | pattern
        folder = root / f"c{k}"
        folder.mkdir(parents=True)
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(fields))
        folders.append(folder)
    return folders


@pytest.mark.parametrize("stranger", [0, 3, 4, None])
def test_the_stranger_alone_is_out_whatever_its_rank(stranger, tmp_path):
    found = cj.adapters.refine(cj.adapters.load(fleet(tmp_path, stranger)))
    out = [] if stranger is None else [f"c{stranger}"]
    assert [name for name, each in found.verdicts.items() if each.verdict != "member"] == out
    assert all(found.verdicts[name].verdict == "other rows" for name in out)
    for module, ranks in RANKS.items():
        reported, refined = found.refined(module)
        assert reported.ranks.tolist() == [rank for k, rank in enumerate(ranks) if f"c{k}" not in out]
        if stranger is None:
            everyone = jnp.ones(len(ranks), bool)
            expected = np.asarray(refine(reported, everyone).dense())  # of nine; with zeros for twelve
            np.testing.assert_allclose(refined.dense(), expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_copies_of_one_adapter_do_not_set_the_rank(tmp_path):
    """Eleven more that send what the client of rank 16 does: a majority, with one vote."""
    folders = fleet(tmp_path, 4)
    copies = [tmp_path / f"copy{k}" for k in range(11)]
    for copy in copies:
        shutil.copytree(folders[3], copy)
    found = cj.adapters.refine(cj.adapters.load([*folders, *copies]))
    alone = cj.adapters.refine(cj.adapters.load(folders))
    for name, each in alone.verdicts.items():
        assert found.verdicts[name].verdict == each.verdict
        assert found.verdicts[name].agreement == pytest.approx(each.agreement, abs=1e-9)
    assert {found.verdicts[f"copy{k}"].verdict for k in range(11)} == {"member"}
    assert found.verdicts["copy0"].copies[:2] == ("c3", "copy1")
