"""What a node does: keep what is better for it, fit what came at another rank, and send what survives transport."""

import json
import subprocess
import sys

import numpy as np
import pytest


pytest.importorskip("flwr")

import nodes
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from clairjax.flower import LocalGrid, arrays, fit, measured, reply, start_from, tensors
from clairjax.flower._records import with_config


PROBE = """
import sys
import clairjax
assert not {"flwr", "jax"} & sys.modules.keys()
from clairjax.flower import arrays, fit, measured, reply, start_from, tensors
assert not {"jax", "equinox", "torch", "ray", "safetensors"} & sys.modules.keys()
assert "clairjax.adapters" not in sys.modules
"""


def test_a_node_needs_numpy_and_flwr_alone_and_clairjax_no_flwr():
    done = subprocess.run([sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def message():
    """What a server sends: the initial arrays, twice as large, of rank 4 and their configuration."""
    LocalGrid(nodes.make_app(), {})  # says whose messages these are, as Flower does within a run
    content = {"arrays": arrays(received()), "config": with_config(ConfigRecord({"lr": 0.1}), nodes.config(4))}
    return Message(RecordDict(content), dst_node_id=7, message_type=MessageType.TRAIN)


def received():
    rng = np.random.default_rng(2)
    return {key: rng.normal(size=each.shape).astype("f4") for key, each in nodes.start(4).items()}


def context():
    return Context(1, 7, {}, RecordDict(), {})


def size(state):
    return float(sum(np.square(each).sum() for each in state.values()))


@pytest.mark.parametrize(("factor", "own"), [(0.5, True), (2.0, False), (np.nan, False), (1.0, False)])
def test_a_node_goes_on_with_what_is_better_for_it(message, factor, own):
    mine, here = {key: np.float32(factor) * each for key, each in received().items()}, context()
    reply(message, here, mine, nodes.config(4), examples=5)
    found = start_from(message, here, nodes.config(4), size)
    np.testing.assert_equal(found, mine if own else received())
    np.testing.assert_equal(start_from(message, here, nodes.config(4)), received())
    np.testing.assert_equal(start_from(message, context(), nodes.config(4), size), received())


def test_an_evaluation_tells_both_losses(message):
    here = context()
    alone = measured(message, here, nodes.config(4), size, examples=5)
    assert dict(alone.content["metrics"]) == {"num-examples": 5, "loss": size(received())}
    reply(message, here, {key: 0 * each for key, each in received().items()}, nodes.config(4), examples=5)
    both = measured(message, here, nodes.config(4), size, examples=5)
    assert dict(both.content["metrics"]) == {"num-examples": 5, "loss": size(received()), "loss-own": 0.0}


@pytest.mark.parametrize("rank", [2, 4, 8])
@pytest.mark.parametrize("rslora", [False, True])
def test_another_rank_and_scale_keep_the_update(rank, rslora):
    """Of the columns that are left; what is added changes nothing and can be trained."""
    given, mine = nodes.config(4), nodes.config(rank) | {"lora_alpha": 5, "use_rslora": rslora}
    state = received()
    found = fit(state, given, mine)
    kept = min(rank, 4)
    for module in nodes.MODULES:
        up, down = (state[nodes.key(module, side)].astype(float) for side in "BA")
        new_up, new_down = (found[nodes.key(module, side)] for side in "BA")
        assert new_up.shape == (nodes.OUT, rank) and new_down.shape == (rank, nodes.IN) and new_up.dtype == "f4"
        scale = 5 / rank**0.5 if rslora else 5 / rank
        np.testing.assert_allclose(scale * new_up @ new_down, 2.0 * up[:, :kept] @ down[:kept], rtol=0, atol=1e-5)
        assert np.linalg.matrix_rank(new_down) == rank


def test_ranks_by_module_are_fitted_to_themselves_alone():
    by_module = nodes.config(4) | {"rank_pattern": {"q_proj": 2}}
    assert fit(received(), by_module, by_module).keys() == received().keys()
    with pytest.raises(ValueError, match="rank_pattern and alpha_pattern must be the same"):
        fit(received(), nodes.config(4), by_module)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lora_alpha": 0}, r"lora_alpha of {} configuration must be a positive number, got 0\."),
        ({"lora_alpha": float("nan")}, r"lora_alpha of {} configuration must be a positive number, got nan\."),
        ({"lora_alpha": None}, r"lora_alpha of {} configuration must be a positive number, got None\."),
        ({"r": 0}, r"r of {} configuration must be a positive integer, got 0\."),
        ({"r": 4.0}, r"r of {} configuration must be a positive integer, got 4\.0\."),
    ],
)
def test_no_rank_and_no_scale_are_refused_on_either_side(changed, message):
    """Also where both sides have the same, or one leaves it out: 0 is not PEFT's default."""
    good = nodes.config(4)
    bad = good | changed
    for given, mine, whose in ((bad, good, "the received"), (good, bad, "the node's own"), (bad, bad, "the received")):
        with pytest.raises(ValueError, match=message.format(whose)):
            fit(received(), given, mine)


def test_bfloat16_is_refused_where_it_is_sent(message):
    """NumPy's file format has no such type: it would arrive as two bytes that mean nothing."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = {key: each.astype(ml_dtypes.bfloat16) for key, each in received().items()}
    for send in (arrays, lambda state: reply(message, context(), state, nodes.config(4), examples=5)):
        with pytest.raises(ValueError, match="send float16 or float32: bfloat16 does not survive"):
            send(half)

    class Tensor:  # as torch's
        def detach(self):
            return self

        cpu = detach

        def __array__(self, *arguments, **options):
            raise TypeError("Got unsupported ScalarType BFloat16")

    with pytest.raises(ValueError, match=r"w must be of a type that NumPy has, .* send float16 or float32"):
        arrays({"w": Tensor()})


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int64", "bool"])
def test_other_types_arrive_as_they_were(kind):
    sent = {"w": np.arange(6).reshape(2, 3).astype(kind)}
    np.testing.assert_array_equal(tensors(arrays(sent))["w"], sent["w"], strict=True)


def test_a_configuration_with_none_arrives(message):
    with pytest.raises(TypeError):
        ConfigRecord({"revision": None})
    seen = []

    def app(message, context):
        seen.append(json.loads(message.content["config"]["adapter-config"]))
        return message

    grid = LocalGrid(app, {7: {}})
    grid.send_and_receive([message])
    assert seen == [nodes.config(4)] and seen[0]["revision"] is None
    fields = nodes.config(4) | {"target_modules": {"v_proj", "q_proj"}}  # as PEFT's own, before it is a file
    assert json.loads(with_config({}, fields)["adapter-config"])["target_modules"] == ["q_proj", "v_proj"]
