"""A node: trains from what is better for it, sends its adapter, and tells what it thinks of what it received."""

from flwr.clientapp import ClientApp
from peft import get_peft_model_state_dict

from clairjax.flower import measured, reply, start_from

from .task import LORA, OURS, WRONG, fit, loss, sentences, with_adapter


app = ClientApp()
FIELDS = LORA.to_dict()


def about(context):
    """A node's number, its sentences for training, and others for validation."""
    node = int(context.node_config["partition-id"])
    poisoned = node == context.node_config.get("poisoned", context.run_config.get("poisoned"))
    language = WRONG if poisoned else OURS
    return node, sentences(language, 60, 100 + node), sentences(language, 60, 200 + node)


@app.train()
def train(message, context):
    node, text, held_out = about(context)
    model = with_adapter(start_from(message, context, FIELDS, lambda state: loss(state, held_out)))
    fit(model, text, 30, 1e-2, node)
    return reply(message, context, get_peft_model_state_dict(model), FIELDS, examples=len(text))


@app.evaluate()
def evaluate(message, context):
    _, _, held_out = about(context)
    return measured(message, context, FIELDS, lambda state: loss(state, held_out), examples=len(held_out))
