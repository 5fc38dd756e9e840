"""How members are to share, looked at before the work."""

from .. import _validate


AUTO, ROWS, COLUMNS = "auto", "rows", "columns"


def check_options(
    *, blend: float | None = None, shared: str = AUTO, shared_rank: int | None = None, shrink: bool = False
) -> None:
    """Refuse what `refine`, `save` and `hand_out` would refuse.

    **Args:** `shared`, `shared_rank`, `shrink`: as in `refine`; `blend`: as in `save`.

    **Raises:** `ValueError` naming the argument.

    **Cost:** none.

    >>> import clairjax as cj
    >>> cj.adapters.check_options(blend=2)
    Traceback (most recent call last):
    ValueError: blend must be a number from 0 to 1, got 2.
    """
    if blend is not None and (isinstance(blend, bool) or not isinstance(blend, int | float) or not 0 <= blend <= 1):
        raise _validate.fail("blend", "a number from 0 to 1", repr(blend))
    _validate.flag(shrink, "shrink")
    if shared not in (AUTO, ROWS, COLUMNS):
        raise _validate.fail("shared", "'auto', 'rows' or 'columns'", repr(shared))
    if shared_rank is not None:
        _validate.at_least(shared_rank, "shared_rank", 1)
