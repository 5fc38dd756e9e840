"""The server: nothing but the strategy. It is not told that a node is poisoned."""

from flwr.serverapp import ServerApp
from peft import get_peft_model_state_dict

from clairjax.flower import ClairStrategy, arrays

from .task import LORA, base


app = ServerApp()


def run(grid, rounds, **options):
    strategy = ClairStrategy(LORA.to_dict(), **options)
    strategy.start(grid, arrays(get_peft_model_state_dict(base())), num_rounds=rounds)
    return strategy


@app.main()
def main(grid, context):
    strategy = run(grid, int(context.run_config["rounds"]))
    strategy.save(str(context.run_config["keep"]))
