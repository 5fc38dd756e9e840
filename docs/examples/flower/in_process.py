"""The app without a network: six nodes in this process, one of them poisoned, and a plot of their losses.

`python in_process.py OUT.png` needs clairjax[flower], peft, torch, transformers and matplotlib.
"""

import sys

from clairdemo.client_app import app
from clairdemo.server_app import run
from matplotlib.figure import Figure

from clairjax.flower import LocalGrid


NODES, POISONED, ROUNDS = 6, 3, 4


def rounds(**options):
    grid = LocalGrid(app, {node: {"partition-id": node, "poisoned": POISONED} for node in range(NODES)})
    return run(grid, ROUNDS, **options).rounds


def losses(node, found):
    """A node keeps what is better for it: what it was sent, or its own."""
    return [min(one.losses[node].values()) for one in found]


def main(out):
    found, alone = rounds(), rounds(blend=1.0)
    for one in found:
        print(f"round {one.number}: t = {one.t:g}, excluded {sorted(one.excluded)}")
    members = [node for node in range(NODES) if node != POISONED]
    for name, those in (("with CLAIR", found), ("alone", alone)):
        print(f"{name}: {sum(losses(node, those)[-1] for node in members) / len(members):.3f}")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for node in range(NODES):
        style, colour = ("x", "C3") if node == POISONED else ("o", f"C{node}")
        label = f"{node}, poisoned" if node == POISONED else f"{node}"
        axes.plot(range(1, ROUNDS + 1), losses(node, found), f"{style}-", color=colour, label=label)
        axes.plot(range(1, ROUNDS + 1), losses(node, alone), ":", color=colour)
    axes.set(xlabel="round", ylabel="loss on data it was not trained on", xticks=range(1, ROUNDS + 1))
    axes.set_title("with CLAIR, and alone (dotted)")
    axes.legend(title="node")
    figure.savefig(out)


if __name__ == "__main__":
    main(sys.argv[1])
