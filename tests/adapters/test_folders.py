"""Adapter folders in and out, without PEFT: who belongs, what is written, and every refusal with its words."""

import dataclasses
import json
import re

import numpy as np
import pytest
from compilations import nothing_compiles


pytest.importorskip("safetensors")

import folders
from folders import MODULES, config, factors, product, tensors, write, write_all
from safetensors import TensorSpec, serialize_file

import clairjax as cj
from clairjax.adapters._config import matching
from clairjax.adapters._folder import Folder
from clairjax.adapters._tensors import read as read_tensors
from clairjax.adapters._tensors import write as write_tensors


def test_the_contaminated_client_is_named_and_the_others_written(written):
    root, found, report = written
    assert {name: each.verdict for name, each in found.verdicts.items()} == {
        f"client{k}": "other rows" if k == 3 else "member" for k in range(8)
    }
    assert found.verdicts["client3"].modules == 3 and not found.verdicts["client3"].member
    names = {path.name for path in (root / "out").iterdir()}
    assert names == {f"client{k}" for k in range(8) if k != 3} | {"global", "report.json", "report.png"}
    assert json.loads((root / "out" / "report.json").read_text()) == report
    assert [module["shared_rank"] for module in report["modules"].values()] == [folders.SHARED] * 3
    assert (root / "out" / "report.png").read_bytes().startswith(b"\x89PNG")
    assert not [path for path in root.iterdir() if path.name.startswith(".")]


def test_what_is_written_is_the_refined_matrix_to_the_stated_error(written):
    root, found, report = written
    for module in MODULES:
        _, refined = found.refined(module)
        for place, name in enumerate(found.members_of(module)):
            expected = np.asarray(refined.dense()[place], float)
            error = np.linalg.norm(product(root / "out" / name, module) - expected) / np.linalg.norm(expected)
            stated = report["modules"][module]["clients"][name]["truncation_error"]
            assert abs(error - stated) < 1e-4 and stated <= found.tolerance


def test_factors_have_the_formats_scale(written, tmp_path):
    """One client in, the same product out: the scale is applied once, by every rule that PEFT has for it."""
    _, found, _ = written
    weights = found.adapters.factors("layers.0.mlp.up")
    up, down = factors(0, 1, *MODULES["layers.0.mlp.up"])
    np.testing.assert_allclose(weights.dense()[0], up @ down, atol=1e-5)
    settings = {"use_rslora": True, "rank_pattern": {"mlp.up": 6}, "alpha_pattern": {"layers.0.mlp.up": 24}, "r": 6}
    rooted = cj.adapters.load(write_all(tmp_path, count=3, config=settings)).factors("layers.0.mlp.up")
    np.testing.assert_allclose(rooted.scale, 24 / 6**0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("pattern", "module", "matches"),
    [
        ("q", "a.q", True),
        ("q", "a.bq", False),
        ("a.q", "b.a.q", True),
        ("^a.q", "b.a.q", False),
        (".*q", "a.bq", True),
    ],
)
def test_patterns_match_as_in_peft(pattern, module, matches):
    assert (matching([pattern], module) == pattern) == matches


def test_numbers_go_back_in_their_type_and_modules_not_refined_bit_for_bit(tmp_path):
    inputs = write_all(tmp_path / "in", bad=(), dtype="bfloat16")
    lonely = write(tmp_path / "in", 9, modules=list(MODULES)[:1], dtype="bfloat16")
    loaded = cj.adapters.load([*inputs[:2], lonely])
    assert list(loaded.modules) == [next(iter(MODULES))] and len(loaded.skipped) == 2
    assert any("kept as it is" in notice for notice in loaded.notices)
    report = cj.adapters.save(cj.adapters.refine(cj.adapters.load([*inputs, lonely]), rank=6), tmp_path / "out")
    assert any("compared without client9" in notice for notice in report["notices"])
    assert {str(one.dtype) for one in tensors(tmp_path / "out" / "client0").values()} == {"bfloat16"}
    assert set(tensors(tmp_path / "out" / "client9")) == set(folders.keys(next(iter(MODULES))))


def test_modules_to_save_go_through_untouched(tmp_path):
    key, saved = "base_model.model.head.weight", np.arange(6, dtype=np.float32)
    inputs = write_all(tmp_path / "in", bad=(), config={"modules_to_save": ["head"]}, extra={key: saved})
    report = cj.adapters.save(cj.adapters.refine(cj.adapters.load(inputs)), tmp_path / "out")
    np.testing.assert_array_equal(tensors(tmp_path / "out" / "client2")[key], saved)
    assert config(tmp_path / "out" / "client2")["modules_to_save"] == ["head"]
    assert sum("go through untouched" in notice for notice in report["notices"]) == 8


def test_ranks_that_differ_widely_are_noticed(tmp_path):
    inputs = write_all(tmp_path, count=3, bad=())
    cut = lambda up, down: (up[:, :3], down[:3])
    small = write(tmp_path, 5, config={"r": 3, "lora_alpha": 6}, change=cut)
    assert not cj.adapters.load(inputs).notices
    (notice,) = cj.adapters.load([*inputs, small]).notices
    assert notice.startswith(f"ranks from 3 to 6 in {len(MODULES)} module(s): clients are compared by their products")


def test_modules_that_the_same_clients_lack_have_one_notice(tmp_path):
    inputs = write_all(tmp_path, count=3, bad=())
    first, *others = sorted(MODULES)
    lonely = write(tmp_path, 9, modules=[first])
    where = f"module {others[0]} and {len(others) - 1} more"
    assert cj.adapters.load([*inputs, lonely]).notices == (f"{where}: compared without client9",)
    few = cj.adapters.load([*inputs[:2], lonely]).notices
    assert few == (f"{where}: only client0, client1 adapt it, so it is kept as it is",)


def test_names_with_hyphens_go_in_and_out(tmp_path):
    names = {old: old.replace("attn.q", "self-attn.q-proj") for old in MODULES}
    inputs = write_all(tmp_path / "in")
    for folder in inputs:
        renamed = {key.replace("attn.q", "self-attn.q-proj"): each for key, each in tensors(folder).items()}
        folders.save_file(renamed, folder / "adapter_model.safetensors")
    report = cj.adapters.save(cj.adapters.refine(cj.adapters.load(inputs), rank=6), tmp_path / "out")
    assert set(report["modules"]) == set(names.values())
    again = cj.adapters.load(sorted(path for path in (tmp_path / "out").iterdir() if path.is_dir()))
    assert set(again.modules) == set(names.values())


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "bool", "int64", "complex64"])
def test_tensors_of_any_type_are_carried_bit_for_bit(written, kind, tmp_path):
    """Through `read` and `write`, an empty one and a number among them."""
    bits = np.random.default_rng(0).integers(0, 2 if kind == "bool" else 256, (5, 16), np.uint8)
    saved = {"matrix": bits.view(kind), "number": bits.view(kind)[0, :1].reshape(()), "none": bits.view(kind)[:0]}
    write_tensors(saved, tmp_path / "one.safetensors")
    read = read_tensors(tmp_path / "one.safetensors", "client", list(saved))
    for key, expected in saved.items():
        assert (read[key].dtype, read[key].shape) == (expected.dtype, expected.shape)
        assert read[key].tobytes() == expected.tobytes()
    write_tensors(read, tmp_path / "two.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()


def test_float8_modules_to_save_go_through_untouched(tmp_path):
    key, bits = "base_model.model.head.weight", np.arange(256, dtype=np.uint8)
    extra = {key: bits.view("float8_e4m3fn")}
    inputs = write_all(tmp_path / "in", config={"modules_to_save": ["head"]}, extra=extra)
    cj.adapters.save(cj.adapters.refine(cj.adapters.load(inputs)), tmp_path / "out")
    (saved,) = read_tensors(tmp_path / "out" / "client2" / "adapter_model.safetensors", "client2", [key]).values()
    assert saved.dtype == np.dtype("float8_e4m3fn") and saved.tobytes() == bits.tobytes()


def test_a_type_that_numpy_has_not_is_refused_by_name(tmp_path):
    inputs = write_all(tmp_path, count=3, config={"modules_to_save": ["head"]})
    bits = np.zeros((2, 3), np.uint8)
    spec = TensorSpec(dtype="float4_e2m1fn_x2", shape=bits.shape, data_ptr=bits.ctypes.data, data_len=bits.nbytes)
    serialize_file({"base_model.model.head.weight": spec}, inputs[1] / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"^client client1: base_model\.model\.head\.weight must be .* got F4\.$"):
        cj.adapters.load(inputs, strict=True)


def test_a_module_with_two_members_is_refined_and_one_without_any_says_so(written, tmp_path):
    """Three clients adapt it and the whole excludes one: the mean outside the row space is of the two."""
    _, found, _ = written
    module = next(iter(MODULES))
    three = ("client0", "client1", "client3")
    few = dataclasses.replace(found.findings[module], clients=three)
    found = dataclasses.replace(found, findings={module: few})
    weights, refined = found.refined(module)
    assert weights.shape == refined.shape == (2, *MODULES[module]) and weights.ranks.tolist() == [6, 6]
    before, after = np.asarray(weights.dense()), np.asarray(refined.dense())
    np.testing.assert_allclose(before.mean(0), after.mean(0), atol=1e-5)
    _, values, rows = np.linalg.svd(after[0] - after[1])
    shared = rows[: (rank := int(np.sum(values > 1e-4)))]
    assert 1 <= rank < np.linalg.matrix_rank(before[0] - before[1])
    np.testing.assert_allclose(after @ shared.T, before @ shared.T, atol=1e-4)
    report = cj.adapters.save(found, tmp_path / "out")
    assert set(report["modules"][module]["clients"]) == set(three)
    nobody = dataclasses.replace(found, findings={module: dataclasses.replace(few, clients=("client3",))})
    with pytest.raises(ValueError, match=r"^module layers\.0\.attn\.q must have members to be refined, got none\.$"):
        nobody.refined(module)


ATTACKED = [name for name, shape in MODULES.items() if shape == (14, 20)]  # compiles half as much as all


def _with(client, change):
    return lambda root: [write(root, k, modules=ATTACKED, change=change if k == client else None) for k in range(10)]


def _colluding(disguise=lambda k, up, down: (up, down)):
    """Clients 7 to 9 send one bad adapter, each in a disguise of its own."""
    places = {shape: place for place, shape in enumerate(MODULES.values())}

    def same(k, up, down):
        out, in_ = up.shape[0], down.shape[1]
        return disguise(k, *factors(50, places[out, in_], out, in_, bad=True))

    return lambda root: [
        write(root, k, modules=ATTACKED, change=(lambda up, down, k=k: same(k, up, down)) if k >= 7 else None)
        for k in range(10)
    ]


def _rotated(k, up, down):
    turn = np.linalg.qr(np.random.default_rng(k).normal(size=(len(down), len(down))))[0]
    return up @ turn, turn.T @ down


def _jittered(size):
    return lambda k, up, down: (up * (1 + size * np.random.default_rng(k).normal(size=up.shape)), down)


ATTACKS = {
    "sign flipped": (_with(4, lambda up, down: (-up, down)), ["client4"], "sign-flipped"),
    "not a number": (_with(4, lambda up, down: (up * np.nan, down)), ["client4"], "unusable"),
    "three colluding copies": (_colluding(), ["client7", "client8", "client9"], "other rows"),
    "copies, rescaled": (
        _colluding(lambda k, up, down: (up / 2**k, 2**k * down)),
        ["client7", "client8", "client9"],
        "other rows",
    ),
    "copies, rotated": (_colluding(_rotated), ["client7", "client8", "client9"], "other rows"),
    "copies, jittered by 1e-6": (_colluding(_jittered(1e-6)), ["client7", "client8", "client9"], "other rows"),
    "copies, jittered by 1 %": (_colluding(_jittered(1e-2)), ["client7", "client8", "client9"], "other rows"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_named_and_the_members_do_not_feel_it(attack, tmp_path):
    make, guilty, verdict = ATTACKS[attack]
    found = cj.adapters.refine(cj.adapters.load(make(tmp_path / "in")))
    assert {name for name, each in found.verdicts.items() if each.verdict != "member"} == set(guilty)
    assert {found.verdicts[name].verdict for name in guilty} == {verdict}
    if attack == "not a number":
        assert found.verdicts["client4"].reason == f"NaN or infinite values in module {min(MODULES)}"
    innocent = [path for path in sorted((tmp_path / "in").iterdir()) if path.name not in guilty]
    alone = cj.adapters.refine(cj.adapters.load(innocent))
    for module in ATTACKED:
        with_them, without = (np.asarray(each.refined(module)[1].dense()) for each in (found, alone))
        assert np.linalg.norm(with_them - without) <= 0.01 * np.linalg.norm(without)


def test_an_inflated_client_is_a_member_and_counts_no_more_than_its_share(tmp_path):
    """At most 1.5 times the usual size, however large it is."""
    refined = []
    for factor in (1e4, 1e6):
        make = _with(4, lambda up, down, factor=factor: (factor * up, down))
        found = cj.adapters.refine(cj.adapters.load(make(tmp_path / f"{factor}")))
        verdict = found.verdicts["client4"]
        assert verdict.verdict == "rescaled" and verdict.member and verdict.size == pytest.approx(factor, rel=0.5)
        assert len(found.members) == 10
        refined.append(np.asarray(found.refined(ATTACKED[0])[1].dense()))
    np.testing.assert_allclose(*refined, atol=1e-4)


def test_columns_of_adapters_are_rows_of_the_transposed(tmp_path):
    turned = lambda up, down: (down.T.copy(), up.T.copy())
    loaded = [
        cj.adapters.load([write(tmp_path / name, k, modules=ATTACKED, change=change) for k in range(8)])
        for name, change in {"turned": turned, "straight": None}.items()
    ]
    columns = cj.adapters.refine(loaded[0], shared="columns")
    rows = cj.adapters.refine(loaded[1], shared="rows")
    for module in ATTACKED:
        assert columns.members_of(module) == rows.members_of(module) == list(rows.verdicts)
        refined = [each.refined(module)[1].dense() for each in (columns, rows)]
        np.testing.assert_allclose(refined[0], refined[1].mT, atol=1e-4)
    report = cj.adapters.save(columns, tmp_path / "out")
    assert report["shared"] == "columns" and rows.shared == "rows"
    for module in ATTACKED:
        before, after = (np.asarray(each.dense()[0]) for each in columns.refined(module))
        change = np.linalg.norm(after - before) / np.linalg.norm(after)
        assert report["modules"][module]["clients"]["client0"]["relative_change"] == pytest.approx(change, rel=1e-3)


def test_adapters_that_look_as_if_from_one_start_are_noticed(tmp_path):
    """Where rows are asked for, which are those of A and say nothing of what was learned."""

    def from_one_start(k):
        def change(up, down):
            start, own = np.random.default_rng(5), np.random.default_rng([6, k])
            near = lambda size, moved: start.normal(size=size) + moved * own.normal(size=size)
            return near(up.shape, 0.3), near(down.shape, 0.02)

        return write(tmp_path, k, modules=ATTACKED, change=change)

    loaded = cj.adapters.load([from_one_start(k) for k in range(8)])
    (notice,) = cj.adapters.refine(loaded, shared="rows").notices
    assert notice.startswith("clients' row spaces overlap by ") and "--shared columns" in notice
    assert not any(cj.adapters.refine(loaded, shared=shared).notices for shared in ("auto", "columns"))


@pytest.mark.parametrize("strangers", [0, 3])
def test_nobody_is_voted_out_on_rounding(strangers, tmp_path):
    """One adapter from everyone, or from seven of ten, each in a factorisation of its own."""
    places = {shape: place for place, shape in enumerate(MODULES.values())}

    def one_of_two(k):
        def change(up, down):
            out, in_ = len(up), down.shape[1]
            return _rotated(k, *factors(50, places[out, in_] + 10 * (k >= 10 - strangers), out, in_))

        return write(tmp_path, k, modules=ATTACKED, change=change)

    found = cj.adapters.refine(cj.adapters.load([one_of_two(k) for k in range(10)]))
    assert found.members == [f"client{k}" for k in range(10 - strangers)]
    assert found.verdicts["client0"].agreement == pytest.approx(1, abs=1e-6)


def _pickle(folder):
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def _truncate(folder):
    data = (folder / "adapter_model.safetensors").read_bytes()
    (folder / "adapter_model.safetensors").write_bytes(data[:-7])


def _store(**changes):
    def change(folder):
        stored = tensors(folder)
        for old, new in changes.items():
            key = folders.keys("layers.0.mlp.up")[0 if old == "up" else 1]
            value = stored.pop(key)
            if new is not None:
                stored |= new(key, value)
        folders.save_file(stored, folder / "adapter_model.safetensors")

    return change


PAIRS = "lora_A and lora_B, or lora_embedding_A and lora_embedding_B"
BAD_FOLDERS = {
    "no config": (lambda folder: (folder / "adapter_config.json").unlink(), "got no adapter_config.json"),
    "no weights": (
        lambda folder: (folder / "adapter_model.safetensors").unlink(),
        "must have adapter_model.safetensors",
    ),
    "pickle": (_pickle, "got the pickle adapter_model.bin, which can run code"),
    "truncated": (_truncate, "must be a whole safetensors file"),
    "no B": (
        _store(up=None),
        "factors must be lora_A and lora_B, or lora_embedding_A and lora_embedding_B, got lora_A.",
    ),
    "two kinds of factors": (
        _store(up=lambda key, value: {key: value, key.replace("lora_B.weight", "lora_embedding_B"): value}),
        f"layers.0.mlp.up: factors must be {PAIRS}, got lora_A, lora_B, lora_embedding_B.",
    ),
    "halves of two kinds": (
        _store(up=lambda key, value: {key.replace("lora_B.weight", "lora_embedding_B"): value}),
        "got lora_A, lora_embedding_B.",
    ),
    **{
        f"a name with {what}": (
            _store(up=lambda key, value, new=new: {key.replace("layers.0.mlp.up", new): value}),
            f"module names must be words between dots, got {new!r}.",
        )
        for what, new in {"a slash": "layers/0", "a space": "layers 0", "an empty word": "layers..up"}.items()
    },
    "dots": (
        _store(up=lambda key, value: {key.replace("mlp", "..mlp"): value}),
        "module names must be words between dots",
    ),
    **{
        f"a name that starts {what}": (
            _store(up=lambda key, value, new=new: {key.replace("base_model.model.", new): value}),
            f"tensors must be named base_model.model.…, got '{new}layers.0.mlp.up.lora_B.weight': save the PEFT model",
        )
        for what, new in {"with a wrapper's": "module.base_model.model.", "as the base model's": "model."}.items()
    },
    "unknown tensor": (_store(up=lambda key, value: {key.replace("lora_B", "lora_M"): value}), "tensors must be"),
    "other rank": (
        _store(up=lambda key, value: {key: value[:, :5].copy()}),
        "the rank must be the configuration's, 6",
    ),
    "other shape": (_store(up=lambda key, value: {key: value[:9].copy()}), "must be of one shape (out, in)"),
    "convolution": (_store(up=lambda key, value: {key: value[:, :, None, None]}), "factors must be matrices"),
    "no columns": (
        _store(down=lambda key, value: {key: value[:, :0].copy()}),
        "layers.0.mlp.up: factors must have no empty axis, got ",
    ),
    "integers": (_store(up=lambda key, value: {key: value.astype(np.int32)}), "factors must be of one type"),
}


@pytest.mark.parametrize("fault", BAD_FOLDERS)
def test_a_bad_folder_is_refused_with_the_client_and_the_reason(fault, tmp_path):
    spoil, message = BAD_FOLDERS[fault]
    inputs = [write(tmp_path, 0), write(tmp_path, 1), write(tmp_path, 2)]
    spoil(inputs[1])
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        cj.adapters.load(inputs, strict=True)
    assert "client1" in str(refused.value)
    with pytest.raises(ValueError, match=r"^at least 3 clients must be usable, got 2 \(") as too_few:
        cj.adapters.load(inputs)
    assert f"({refused.value})." in str(too_few.value)
    clients = cj.adapters.load([*inputs, write(tmp_path, 3)]).clients
    assert clients["client1"].fault == str(refused.value) and not clients["client1"].modules
    assert all(set(clients[f"client{k}"].modules) == set(MODULES) for k in (0, 2, 3))


def test_clients_must_be_three_different_ones_over_one_base(tmp_path):
    one, two, three = (write(tmp_path, k) for k in range(3))
    (tmp_path / "link").symlink_to(one)
    with pytest.raises(ValueError, match=r"^folders must be from at least 3 clients, .* got 2\.$"):
        cj.adapters.load([one, two])
    with pytest.raises(ValueError, match="client folders must differ"):
        cj.adapters.load([one, two, tmp_path / "link"])
    with pytest.raises(ValueError, match=r"^client nowhere must be a folder .*/nowhere, which does not exist\.$"):
        cj.adapters.load([one, two, tmp_path / "nowhere"], strict=True)
    with pytest.raises(ValueError, match=r"^client adapter_config.json must be a folder .*, got the file .*\.json\.$"):
        cj.adapters.load([one, two, three / "adapter_config.json"], strict=True)
    with pytest.raises(ValueError, match=r"^client folders must be paths, got ''\.$"):
        cj.adapters.load([one, two, ""])
    other = write(tmp_path, 4, config={"base_model_name_or_path": "elsewhere"})
    with pytest.raises(
        ValueError, match=r"^base models must be the same, got base \(client0\) and elsewhere \(client4\)\.$"
    ):
        cj.adapters.load([one, two, three, other], strict=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "rank must be an integer of at least 1, got 0."),
        ({"rank": 20_000}, "rank must be at most 14, the smallest side of module layers.0.attn.q, got 20000."),
        ({"tolerance": 1.0}, "tolerance must be above 0 and below 1, got 1.0."),
        ({"tolerance": True}, "tolerance must be one number, got True."),
        ({"shared": "row"}, "shared must be 'auto', 'rows' or 'columns', got 'row'."),
    ],
)
def test_bad_arguments(written, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        cj.adapters.refine(written[1].adapters, **arguments)


def test_refining_writes_nothing_and_compiles_once_a_shape(tmp_path):
    inputs = write_all(tmp_path / "in", bad=())
    cj.adapters.refine(cj.adapters.load(inputs))
    with nothing_compiles():
        cj.adapters.refine(cj.adapters.load(inputs))
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_vote_reads_each_module_once(written, monkeypatch):
    """Once to see that the numbers can be used, and once to vote."""
    _, found, _ = written
    asked, factors_of = [], Folder.factors

    def counted(self, module):
        asked.append((self.name, module))
        return factors_of(self, module)

    monkeypatch.setattr(Folder, "factors", counted)
    cj.adapters.refine(found.adapters)
    assert {asked.count(each) for each in asked} == {2} and len(asked) == 2 * 8 * len(MODULES)
