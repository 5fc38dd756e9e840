"""Federated low-rank adaptation and shared representations in JAX."""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from ._surface import *  # noqa: F403
    from ._surface import __version__ as __version__
else:

    def __getattr__(name):
        """The public names, imported when one is asked for: a command starts, and can be stopped, before JAX does."""
        if not name.startswith("_") or name in ("__all__", "__version__"):
            from importlib import import_module

            surface = vars(import_module("._surface", __name__))
            if name == "__all__":
                return [public for public in surface if not public.startswith("_")]
            if name in surface:
                return globals().setdefault(name, surface[name])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")} - {"TYPE_CHECKING"})
