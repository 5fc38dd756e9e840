"""What strategies have in common whose clients train: how, and for how many epochs of a round."""

import equinox as eqx

from .. import _validate
from ._local import Local
from ._strategy import Strategy


class LocalStrategy(Strategy):
    """A strategy whose clients train for `epochs` of a round, as `local` says."""

    local: Local = Local()
    epochs: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        _validate.at_least(self.epochs, "epochs", 1)
