"""`--set FIELD=VALUE`: fields of cells replaced by what a user writes, read by the type that the cell declares."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints


_WORDS: dict[Any, dict[str, bool | None]] = {bool: {"true": True, "false": False}, NoneType: {"none": None}}

C = TypeVar("C")


def change(cells: Sequence[C], changes: Mapping[str, Any]) -> tuple[C, ...]:
    """The cells, with some fields replaced in those that have them."""
    names = list(map(field_names, cells))
    if unknown := [name for name in changes if not any(name in own for own in names)]:
        known = dict.fromkeys(name for own in names for name in own)
        raise ValueError(f"changes: each must be one of {', '.join(known)}, got {', '.join(unknown)}.")
    return tuple(
        _replaced(cell, {name: changes[name] for name in own if name in changes})
        for cell, own in zip(cells, names, strict=True)
    )


def parse(cells: Sequence[Any], changes: Sequence[str]) -> dict[str, Any]:
    """What `FIELD=VALUE` asks `change` for: each value of the type that the cells' class declares."""
    kinds: dict[str, Any] = {}
    for one in dict.fromkeys(map(type, cells)):
        kinds = {**kinds, **get_type_hints(one), **kinds}  # the first class decides
    values: dict[str, Any] = {}
    for text in changes:
        name, separator, value = text.partition("=")
        if not separator or name not in kinds:
            raise ValueError(f"--set must be FIELD=VALUE with FIELD one of {', '.join(kinds)}, got {text}.")
        try:
            values[name] = _value(value, kinds[name])
        except ValueError as error:
            raise ValueError(f"--set {name} must be {_wanted(kinds[name])}, got {value}.") from error
    return values


def field_names(cell: Any) -> tuple[str, ...]:
    """Of a NamedTuple or a dataclass."""
    return cell._fields if hasattr(cell, "_fields") else tuple(field.name for field in dataclasses.fields(cell))


def _replaced(cell: Any, changes: dict[str, Any]) -> Any:
    return cell._replace(**changes) if hasattr(cell, "_replace") else dataclasses.replace(cell, **changes)


def _value(text: str, kind: Any) -> Any:
    """`text` as a value of the annotated type `kind`: a tuple with commas between its elements."""
    if kind in (int, float, str):
        return kind(text)
    if kind in _WORDS and text.lower() in _WORDS[kind]:
        return _WORDS[kind][text.lower()]
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return _first(text, arguments)
    if get_origin(kind) is Literal and text in map(str, arguments):
        return next(value for value in arguments if str(value) == text)
    if get_origin(kind) is tuple and arguments[1:] == (...,):
        return tuple(_value(item, arguments[0]) for item in text.split(","))
    raise ValueError(text)


def _first(text: str, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds:
        try:
            return _value(text, kind)
        except ValueError:
            continue
    raise ValueError(text)


def _wanted(kind: Any) -> str:
    arguments = get_args(kind)
    if kind in _WORDS:
        return " or ".join(_WORDS[kind])
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_wanted, arguments))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if get_origin(kind) is tuple and arguments[1:] == (...,):
        return f"{_wanted(arguments[0])}, with commas between several"
    return f"of type {kind.__name__}" if kind in (int, float, str) else "left as it is"
