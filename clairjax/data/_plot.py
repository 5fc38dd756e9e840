"""A picture of who has which classes."""

import os
from pathlib import Path

import numpy as np

from .._files import replace_file
from ._federation import Federation


def plot_partition(clients: Federation, path: str | os.PathLike[str]) -> None:
    """Write a picture (PNG) of the training samples that each client has of each class: a stacked bar a client.

    **Raises:** `ImportError` without matplotlib.

    **Cost:** below a second for a hundred clients.

    >>> import jax, numpy as np, os, tempfile
    >>> from clairjax.data import Shards, partition, plot_partition
    >>> images, labels = np.zeros((60, 8, 8), np.uint8), np.arange(60) % 3
    >>> clients = partition(images, labels, scheme=Shards(2), clients=4, key=jax.random.key(0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_partition(clients, os.path.join(folder, "clients.png"))
    ...     os.listdir(folder)
    ['clients.png']
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Pictures need matplotlib: install it with pip install matplotlib.") from error

    table = clients.table
    figure = Figure((max(4.0, min(12.0, 0.15 * len(table))), 3), layout="constrained")
    axes = figure.subplots()
    below = np.zeros(len(table))
    for number in range(clients.classes):
        axes.bar(np.arange(len(table)), table[:, number], 0.9, bottom=below, label=str(number))
        below = below + table[:, number]
    axes.set(xlabel="client", ylabel="training samples", xlim=(-0.6, len(table) - 0.4))
    if clients.classes <= 20:
        axes.legend(title="class", fontsize="x-small", ncols=2, loc="center left", bbox_to_anchor=(1, 0.5))
    replace_file(Path(path), lambda beside: figure.savefig(beside, format="png"))
