"""What a node gets has the bits of what `clairjax refine` writes for the same adapters in folders of that rank."""

import json

import numpy as np
import pytest


pytest.importorskip("flwr")

import nodes
from flwr.app import ConfigRecord
from safetensors.numpy import load_file, save_file

from clairjax import adapters
from clairjax.flower import tensors


def written(root, strategy, ranks):
    """Each node's last adapter as a folder."""
    for node, context in strategy.grid.contexts.items():
        folder = root / f"{node}"
        folder.mkdir(parents=True)
        save_file(tensors(context.state["clairjax-own"]), folder / "adapter_model.safetensors")
        fields = json.dumps(nodes.config(ranks[node - 1000]))
        (folder / "adapter_config.json").write_text(fields, encoding="utf-8")
    return sorted(root.iterdir())


def at_scale_1(state, rank):
    """A node's B as in a file of `save`, whose scale is 1, if the node's is a power of two."""
    return {key: each * np.float32(nodes.ALPHA / rank) if ".lora_B." in key else each for key, each in state.items()}


@pytest.mark.parametrize(
    ("ranks", "how"),
    [
        ([4] * 5, {}),
        ([4] * 5, {"blend": 0.0}),
        ([4] * 5, {"blend": 0.5}),
        ([4] * 5, {"shared": "columns"}),
        ([4] * 5, {"shared": "rows", "blend": 0.5}),
        ([2, 4, 8, 4, 2], {"blend": 0.0}),
        ([2, 4, 8, 4, 2], {"blend": 0.25}),
    ],
)
def test_bit_for_bit(run, tmp_path, ranks, how):
    strategy = run(ranks, {3: "contaminated"}, rounds=1, fraction_evaluate=0.0, **how)
    folders = written(tmp_path / "in", strategy, ranks)
    options = {name: value for name, value in how.items() if name != "blend"}
    messages = strategy.configure_train(2, strategy.result.arrays, ConfigRecord(), strategy.grid)
    sent = {each.metadata.dst_node_id: tensors(each.content["arrays"]) for each in messages}
    for rank in set(ranks):
        found = adapters.refine(adapters.load(folders), rank=rank, **options)
        report = adapters.save(found, tmp_path / f"out{rank}", blend=how.get("blend"))
        assert report["sharing"]["t"] == strategy.rounds[0].t
        assert {int(name): each for name, each in found.verdicts.items()} == {
            node: each for node, each in strategy.rounds[0].verdicts.items()
        }
        for node, mine in sent.items():
            if ranks[node - 1000] == rank:
                out = tmp_path / f"out{rank}" / f"{node}" / "adapter_model.safetensors"
                if out.exists():
                    mine = at_scale_1(mine, rank)
                else:  # nobody's, or a stranger's
                    assert node == 1003 or report["sharing"]["t"] is None
                    out = tmp_path / "in" / f"{node}" / "adapter_model.safetensors"
                np.testing.assert_equal(mine, load_file(out))
    everyone = load_file(tmp_path / "out4" / "global" / "adapter_model.safetensors")
    np.testing.assert_equal(at_scale_1(tensors(strategy.result.arrays), 4), everyone)
