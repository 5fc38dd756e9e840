"""Adapters in memory: judged and refined as folders are, bit for bit, at each client's own rank and scale."""

import json
from dataclasses import replace

import numpy as np
import pytest


pytest.importorskip("safetensors")

from compilations import nothing_compiles
from folders import CONFIG, MODULES, config, factors, keys, tensors
from safetensors.numpy import save_file

import clairjax as cj
from clairjax.adapters import from_states, hand_out, refine, save, state


def in_memory(folders):
    return from_states({folder.name: state(tensors(folder), config(folder)) for folder in folders})


def of_ranks(root, ranks, *, alpha=6):
    """Clients of other ranks, and so of other scales."""
    for k, rank in enumerate(ranks):
        folder = root / f"client{k}"
        folder.mkdir(parents=True)
        held = {}
        for place, (module, (out, in_)) in enumerate(MODULES.items()):
            up, down = factors(k, place, out, in_, rank=rank)
            held |= dict(zip(keys(module), ((rank / alpha * up).astype("f4"), down.astype("f4")), strict=True))
        save_file(held, folder / "adapter_model.safetensors")
        fields = CONFIG | {"r": rank, "lora_alpha": alpha}
        (folder / "adapter_config.json").write_text(json.dumps(fields), encoding="utf-8")
    return sorted(root.iterdir())


def same(found, folder, scale):
    """What is in a file is of scale 1."""
    stored = tensors(folder)
    assert found.keys() == stored.keys()
    for key, each in stored.items():
        expected = (each.astype(float) / scale).astype(each.dtype) if ".lora_B." in key else each
        np.testing.assert_array_equal(found[key], expected, strict=True)


def test_a_fleet_in_memory_is_judged_as_in_folders(written):
    root, found, _ = written
    mine = refine(in_memory(sorted((root / "in").iterdir())))
    assert mine.verdicts == found.verdicts and mine.findings == found.findings


@pytest.mark.parametrize("blend", [None, 0.0, 0.5, 1.0])
def test_what_is_handed_out_is_what_save_writes_with_the_same_rank(written, tmp_path, blend):
    root = written[0] / "in"
    folders = sorted(root.iterdir())
    content = save(refine(cj.adapters.load(folders), rank=6), tmp_path / "out", blend=blend)
    given = hand_out(refine(in_memory(folders)), blend=blend)
    assert given.t == content["sharing"]["t"]
    for name in given.refinement.members:
        scale = 2.0 if given.t != 1 else 1.0  # nobody's is changed where t is 1
        same(given.client(name, given.t), tmp_path / "out" / name, scale)


@pytest.mark.parametrize("blend", [0.0, 0.5])
def test_each_gets_its_own_rank_and_scale(tmp_path, blend):
    ranks = [4, 6, 8, 4, 6, 8]
    folders = of_ranks(tmp_path / "in", ranks)
    given = hand_out(refine(in_memory(folders)), blend=blend)
    assert len(given.refinement.members) == 6
    for rank in set(ranks):
        save(refine(cj.adapters.load(folders), rank=rank), tmp_path / f"{rank}", blend=blend)
    for folder, rank in zip(folders, ranks, strict=True):
        same(given.client(folder.name, blend), tmp_path / f"{rank}" / folder.name, 6 / rank)


def test_everyone_is_the_median_at_the_rank_and_scale_asked_for(tmp_path):
    folders = of_ranks(tmp_path / "in", [4, 6, 8, 4, 6, 8])
    given = hand_out(refine(in_memory(folders)), blend=0.0)
    save(refine(cj.adapters.load(folders), rank=4), tmp_path / "out", blend=0.0)
    same(given.everyone(state(tensors(folders[0]), config(folders[0]))), tmp_path / "out" / "global", 6 / 4)


def test_another_number_of_members_compiles_nothing_new(written):
    """Clients of zeros, who change nothing, make up 4, 6, 8, 12, …"""
    folders = sorted((written[0] / "in").iterdir())  # eight, one of them a stranger
    hand_out(refine(in_memory(folders[:7]), shared="rows"))
    with nothing_compiles():
        fewer = hand_out(refine(in_memory(folders[:6]), shared="rows"))
    assert len(fewer.refinement.members) == 5 and fewer.t == 0


def test_a_scale_at_which_nothing_fits_is_refused(tmp_path):
    folders = of_ranks(tmp_path / "in", [4] * 4)
    states = {folder.name: state(tensors(folder), config(folder)) for folder in folders}
    large = {key: 1e18 * each for key, each in tensors(folders[0]).items()}
    states["client0"] = state(large, config(folders[0]) | {"lora_alpha": 6e-39})
    given = hand_out(refine(from_states(states)), blend=0.0)
    with pytest.raises(ValueError, match=r"client0: module .* must fit its file's type"):
        given.client("client0", 0.0)
    with pytest.raises(ValueError, match="must be of a member"):
        given.client("nobody", 0.0)


def one_task(clients, rank=3, out=30, in_=40):
    """In more directions than all of them have together."""
    rng = np.random.default_rng(0)
    up, down = rng.normal(size=(out, rank)), rng.normal(size=(rank, in_))
    noisy = lambda side: (side + 0.5 * rng.normal(size=side.shape)).astype("f4")
    sides = [dict(zip(keys("m"), (noisy(up), noisy(down)), strict=True)) for _ in range(clients)]
    return {f"client{k}": state(each, {"peft_type": "LORA", "r": rank}) for k, each in enumerate(sides)}


@pytest.mark.parametrize("blend", [0.0, 0.5])
@pytest.mark.parametrize("power", [-40, 40])
def test_how_a_client_splits_its_update_between_its_factors_moves_no_bit(blend, power):
    """An update of huge A and tiny B is as usual, and once hid the others' rows from what is shared."""
    states = one_task(6)
    (up_key, up), (down_key, down) = states["client0"].held.items()
    split = {up_key: np.ldexp(up, -power), down_key: np.ldexp(down, power)}
    as_usual = hand_out(refine(from_states(states)), blend=blend)
    given = hand_out(refine(from_states(states | {"client0": replace(states["client0"], held=split)})), blend=blend)
    assert given.refinement.verdicts == as_usual.refinement.verdicts and len(given.refinement.members) == 6
    for name in states:
        np.testing.assert_equal(given.client(name, blend), as_usual.client(name, blend))
    np.testing.assert_equal(given.everyone(states["client1"]), as_usual.everyone(states["client1"]))


def test_types_have_the_names_of_files():
    ml = pytest.importorskip("ml_dtypes")
    sides = {key: np.ones(shape, ml.bfloat16) for key, shape in zip(keys("m"), ((5, 2), (2, 6)), strict=True)}
    fields = {"peft_type": "LORA", "r": 2}
    assert state(sides, fields).modules["m"].kind == "BF16"
    with pytest.raises(ValueError, match="factors must be of one type"):
        state({key: each.astype("i4") for key, each in sides.items()}, fields)
