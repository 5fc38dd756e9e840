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
        if not isinstance(self.local, Local):
            raise _validate.fail("local", "a Local", repr(self.local))
        _validate.at_least(self.epochs, "epochs", 1)
        for name in ("head_epochs", "own_epochs", "tune"):
            _validate.at_least(getattr(self, name, 0), name, 0)
