"""What members get back: the median of all, and their own part of it where something shows that it helps."""

import json
from pathlib import Path

import numpy as np
import pytest


pytest.importorskip("safetensors")

from folders import MODULES, config, product, tensors, write

import clairjax as cj


COUNT = 6
NAMES = [f"client{k}" for k in range(COUNT)]


def fleet(root, task, *, noise=0.3, count=COUNT, rank=4, start=None, **rest):
    """Clients whose update is their task's, of this rank, and noise: `task(client)` seeds the task."""

    def of_client(k):
        def change(up, down):
            shapes = (len(up), rank), (rank, down.shape[1])
            truth, own = np.random.default_rng([task(k), len(up)]), np.random.default_rng([9, k, len(up)])
            left = truth.normal(size=shapes[0]) + noise * own.normal(size=shapes[0])
            right = np.random.default_rng(start if start is not None else [task(k), 3]).normal(size=shapes[1])
            return left, right

        settings = {"r": rank, "lora_alpha": 2 * rank}
        return write(root, k, change=change, config=settings | rest.pop("config", {}), **rest)

    return [of_client(k) for k in range(count)]


def refined(folders, **how):
    loaded = cj.adapters.load(folders)
    return cj.adapters.refine(loaded, include=list(loaded.clients), **how)


def updates(folder):
    return np.concatenate([product(folder, module).ravel() for module in MODULES])


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    return fleet(tmp_path_factory.mktemp("together"), lambda k: 1, dtype="float64")


def test_global_is_the_point_where_unit_pulls_balance(together, tmp_path):
    """Σ n_k (x − W_k) / ‖x − W_k‖ = 0, which only the geometric median has; in dense matrices, by NumPy alone."""
    samples = dict(zip(NAMES, [3.0, 2, 2, 1, 1, 1], strict=True))
    cj.adapters.save(refined(together, tolerance=1e-6), tmp_path / "out", samples=samples)
    middle, each = updates(tmp_path / "out" / "global"), np.stack([updates(folder) for folder in together])
    pulls = (middle - each) / np.linalg.norm(middle - each, axis=1, keepdims=True)
    pull = lambda counts: np.linalg.norm(np.array(counts) @ pulls) / np.sum(counts)
    assert pull([*samples.values()]) < 1e-5 < 0.05 < pull(np.ones(COUNT))


def test_global_is_cut_to_the_rank_that_was_chosen_at_the_error_that_is_reported(together, tmp_path):
    cj.adapters.save(refined(together, tolerance=1e-6), tmp_path / "exact")
    report = cj.adapters.save(refined(together, rank=3), tmp_path / "out")
    for module, each in report["modules"].items():
        exact, cut = (product(tmp_path / out / "global", module) for out in ("exact", "out"))
        tail = np.linalg.svd(exact)[1][3:]
        assert each["global_rank"] == 3 == np.linalg.matrix_rank(cut)
        stated = each["global_truncation_error"] * np.linalg.norm(exact)
        np.testing.assert_allclose([stated, np.linalg.norm(cut - exact)], np.linalg.norm(tail), rtol=1e-4)
    assert config(tmp_path / "out" / "global")["r"] == 3


@pytest.mark.parametrize("factor", [10, 1000])
def test_however_large_a_member_its_pull_is_bounded(factor, tmp_path):
    """A module counts with at most 1.5 times its usual norm."""
    folders = fleet(tmp_path / "in", lambda k: 1)
    grown = [*folders[:-1], write_scaled(folders[-1], factor, tmp_path)]
    larger = [*folders[:-1], write_scaled(folders[-1], 2, tmp_path)]
    for out, inputs in {"grown": grown, "larger": larger}.items():
        report = cj.adapters.save(refined(inputs, tolerance=1e-6), tmp_path / out)
    assert set(report["global"]["clients"]["client5"]["clipped"]) == set(MODULES)
    both = [updates(tmp_path / out / "global") for out in ("grown", "larger")]
    np.testing.assert_allclose(both[0], both[1], atol=1e-4 * np.abs(both[0]).max())


def write_scaled(folder, factor, root):
    target = root / f"times{factor}" / folder.name
    target.mkdir(parents=True)
    fields = config(folder)
    (target / "adapter_config.json").write_text(json.dumps(fields | {"lora_alpha": factor * fields["lora_alpha"]}))
    (target / "adapter_model.safetensors").write_bytes((folder / "adapter_model.safetensors").read_bytes())
    return target


def test_a_claim_of_many_samples_is_a_third_of_the_votes_at_most(together):
    from clairjax.adapters._pool import bounded, pool

    found = refined(together)
    claims = [pool(found, dict.fromkeys(NAMES, 1.0) | {"client2": claim}) for claim in (1e3, 1e9)]
    assert claims[0].votes["client2"] == pytest.approx(1 / 3) and claims[0].weights == pytest.approx(claims[1].weights)
    np.testing.assert_allclose(bounded(np.array([1.0, 1, 1, 7])), [2 / 9, 2 / 9, 2 / 9, 1 / 3])
    np.testing.assert_allclose(bounded(np.array([5.0, 4, 1])), [1 / 3] * 3)
    np.testing.assert_allclose(bounded(np.array([3.0, 1])), [1 / 2] * 2)


def test_copies_have_one_vote(tmp_path):
    from clairjax.adapters._pool import pool

    folders = fleet(tmp_path, lambda k: 1)
    for copy in folders[3:5]:
        (copy / "adapter_model.safetensors").write_bytes((folders[5] / "adapter_model.safetensors").read_bytes())
    votes = pool(refined(folders)).votes
    assert [votes[name] for name in NAMES] == pytest.approx([1 / 4] * 3 + [1 / 12] * 3)


def losses(folders, task, start):
    """A client's loss: how far its update is from its task's."""
    root = folders[0].parent.parent / "truth"
    truths = fleet(root, task, noise=0.0, start=start, dtype="float64")

    def loss(client, state):
        pairs = {key: state[key.replace("lora_A", "lora_B")] @ state[key] for key in state if "lora_A" in key}
        update = np.concatenate([pairs[f"base_model.model.{module}.lora_A.weight"].ravel() for module in MODULES])
        return float(np.linalg.norm(update - updates(truths[NAMES.index(client)])))

    return loss


@pytest.mark.parametrize(("tasks", "best"), [("one", 0.0), ("own", 1.0)])
def test_validation_shares_one_task_and_leaves_own_tasks_alone(tasks, best, tmp_path):
    task = (lambda k: 1) if tasks == "one" else (lambda k: 10 + k)
    folders = fleet(tmp_path / "in", task, start=5)
    report = cj.adapters.save(refined(folders), tmp_path / "out", evaluate=losses(folders, task, 5))
    assert (report["sharing"]["by"], report["sharing"]["t"]) == ("validation", best)
    assert (
        cj.adapters.choose({n: {float(t): x for t, x in m.items()} for n, m in report["sharing"]["losses"].items()})
        == best
    )
    for folder in folders:
        theirs, whole = tensors(tmp_path / "out" / folder.name), tensors(tmp_path / "out" / "global")
        expected = whole if best == 0 else tensors(folder)
        assert all(np.array_equal(theirs[key], expected[key]) for key in expected) and theirs.keys() == expected.keys()


def test_clients_measure_the_candidates_where_their_data_are(together, tmp_path):
    found = refined(together)
    places = cj.adapters.candidates(found, tmp_path / "candidates")
    assert sorted(places) == NAMES and {*places["client0"]} == {0.0, 0.25, 0.5, 0.75, 1.0}
    own, shared = updates(together[1]), updates(places["client1"][0.0])
    for t, folder in places["client1"].items():
        np.testing.assert_allclose(updates(folder), t * own + (1 - t) * shared, atol=0.06 * np.abs(own).max())
    report = cj.adapters.save(found, tmp_path / "out", blend=0.5)
    np.testing.assert_array_equal(updates(tmp_path / "out" / "client1"), updates(places["client1"][0.5]))
    assert report["sharing"]["by"] == "asked" and "nothing shows that it helps" in report["sharing"]["why"]


def test_nothing_is_written_for_a_client_where_nothing_shows_that_it_helps(tmp_path):
    """Of one start, whose rows are all those of A: that is no evidence."""
    folders = fleet(tmp_path / "in", lambda k: 10 + k, start=5)
    report = cj.adapters.save(refined(folders), tmp_path / "out")
    assert (report["sharing"]["by"], report["sharing"]["t"], report["sharing"]["space"]) == ("nothing", None, "median")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"global", "report.json", "report.png"}
    assert sorted(report["files"]) == sorted(
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()
    )


def test_planted_row_spaces_are_evidence_by_rows_and_turned_ones_by_columns(tmp_path):
    from folders import write_all

    turned = lambda up, down: (down.T.copy(), up.T.copy())
    for space, change in {"rows": None, "columns": turned}.items():
        found = refined(write_all(tmp_path / space, bad=(), change=change))
        report = cj.adapters.save(found, tmp_path / f"out-{space}")
        assert (report["sharing"]["space"], report["sharing"]["by"], report["sharing"]["t"]) == (space, "evidence", 0)
        assert report["sharing"]["evidence"][space] > 0.9
        assert {module["shared_rank"] for module in report["modules"].values()} == {1}


def test_a_shared_rank_that_is_said_is_used_and_reported(written, tmp_path):
    found = cj.adapters.refine(written[1].adapters, shared="columns", shared_rank=2, include=written[1].members)
    report = cj.adapters.save(found, tmp_path / "out")
    assert {module["shared_rank"] for module in report["modules"].values()} == {2}
    assert report["sharing"]["by"] == "asked" and report["sharing"]["space"] == "columns"


@pytest.mark.parametrize(("tasks", "t"), [("one", 0.0), ("own", 1.0)])
@pytest.mark.parametrize("start", [5, None])
def test_halves_tell_shared_tasks_from_own_ones(tasks, t, start, tmp_path):
    task = (lambda k: 1) if tasks == "one" else (lambda k: 10 + k)
    folders = fleet(tmp_path / "in", task, start=start)
    for half in ("half-a", "half-b"):
        seed = {"half-a": 50, "half-b": 60}[half]
        made = fleet(tmp_path / half, task, start=start, noise=0.6)
        for k, folder in enumerate(made):
            stored = tensors(folder)
            own = np.random.default_rng([seed, k])
            stored = {key: (one + 0.3 * own.normal(size=one.shape) * ("lora_B" in key)) for key, one in stored.items()}
            from safetensors.numpy import save_file

            save_file(
                {key: one.astype(np.float32) for key, one in stored.items()}, folder / "adapter_model.safetensors"
            )
            folder.rename(folders[k] / half)
    report = cj.adapters.save(refined(folders), tmp_path / "out")
    assert (report["sharing"]["by"], report["sharing"]["t"]) == ("halves", t)


def test_for_servers_all_modules_have_one_rank_and_scale_1(tmp_path):
    patterns = {"rank_pattern": {"mlp.up": 4}, "alpha_pattern": {"mlp.up": 3}}
    folders = fleet(tmp_path / "in", lambda k: 1, config=patterns)
    found = refined(folders)
    for out, serving in {"plain": False, "served": True}.items():
        cj.adapters.save(found, tmp_path / out, blend=0.5, serving=serving)
    made = [config(tmp_path / "served" / name) for name in ("global", *NAMES)]
    (rank,) = {fields["r"] for fields in made}
    for name, fields in zip(("global", *NAMES), made, strict=True):
        assert fields["lora_alpha"] == rank and not fields["rank_pattern"] and not fields["alpha_pattern"]
        plain, served = (updates(tmp_path / out / name) for out in ("plain", "served"))
        np.testing.assert_allclose(served, plain, atol=1e-6 * np.abs(plain).max())


def test_own_adapters_at_any_scale_are_served_at_scale_1(tmp_path):
    folders = fleet(tmp_path / "in", lambda k: 1)
    cj.adapters.save(refined(folders), tmp_path / "out", blend=1, serving=True)
    assert {
        config(tmp_path / "out" / name)["lora_alpha"] / config(tmp_path / "out" / name)["r"] for name in NAMES
    } == {1}
    np.testing.assert_allclose(updates(tmp_path / "out" / "client0"), updates(folders[0]), rtol=1e-5)


def test_a_clients_model_card_goes_with_its_adapter(together, tmp_path):
    found = refined(together)
    (together[2] / "README.md").write_text("# Ours", encoding="utf-8")
    try:
        cj.adapters.save(found, tmp_path / "out", blend=0.5)
        cards = {path.parent.name: path.read_text() for path in (tmp_path / "out").rglob("README.md")}
        assert cards == {"client2": "# Ours"}
        cj.adapters.save(found, tmp_path / "out", blend=0.5, force=True)
    finally:
        (together[2] / "README.md").unlink()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"blend": 2}, "blend must be a number from 0 to 1, got 2."),
        ({"blend": 0.5, "evaluate": len}, "blend must be None where evaluate chooses it, got 0.5."),
        (
            {"evaluate": lambda *_: float("nan")},
            "the loss of client client0 at t = 0 must be a finite number, got nan.",
        ),
        ({"samples": {"client0": 3}}, "samples must be of every member, got none of client client1."),
        ({"samples": {"stranger": 3}}, "samples must be of the clients, client0, client1, client2, client3, client4"),
        ({"samples": dict.fromkeys(NAMES, 0)}, "samples of client client0 must be a positive number, got 0."),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(how, message, together, tmp_path):
    with pytest.raises(ValueError) as caught:
        cj.adapters.save(refined(together), tmp_path / "out", **how)
    assert str(caught.value).startswith(message) and not list(tmp_path.iterdir())


def test_reports_are_what_the_schema_says(together, tmp_path):
    """`docs/report.schema.json`, of a dry run, of the median alone, of own parts, and of a client who is unusable."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    found = refined(together)
    losses = lambda client, adapter: float(np.sum([np.abs(value).sum() for value in adapter.values()]))
    reports = [cj.adapters.report(found), cj.adapters.save(found, tmp_path / "a")]
    reports += [
        cj.adapters.save(found, tmp_path / "b", blend=0.5),
        cj.adapters.save(refined(together, shared="rows"), tmp_path / "c"),
    ]
    reports.append(cj.adapters.save(found, tmp_path / "d", evaluate=losses))
    for report in reports:
        jsonschema.validate(json.loads(json.dumps(report)), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(reports[0] | {"format": "another"}, schema)


@pytest.mark.parametrize("include", [(), ("client1",)], ids=["no member", "one member"])
def test_where_nobody_has_company_everybody_keeps_what_it_has(tmp_path, include):
    """Three tasks: the report says so, and no adapter is written, however it was asked for."""
    loaded = cj.adapters.load(fleet(tmp_path / "in", lambda k: k, count=3))
    found = cj.adapters.refine(loaded, include=list(include))
    assert found.members == list(include)
    for number, how in enumerate(({}, {"blend": 0.5}, {"evaluate": lambda client, adapter: 1.0})):
        report = cj.adapters.save(found, tmp_path / f"out{number}", **how)
        assert report["sharing"]["by"] == "undecided" and report["global"] is None
        assert {path.name for path in (tmp_path / f"out{number}").iterdir()} == {"report.json", "report.png"}
