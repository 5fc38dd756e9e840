"""The reference, one page a room, from the doors of the package: what a door shows is on its page.

Docstrings are Markdown. They are put into MyST pages as they stand, but for three things: a doctest becomes a fenced
block, a public name in backticks a link, and `_` and `*` of mathematics plain characters.
"""

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx

import clairjax


def public() -> dict[str, Any]:
    """The names that `import clairjax` gives."""
    return {name: getattr(clairjax, name) for name in sorted(clairjax.__all__)}


def rooms() -> dict[str, types.ModuleType]:
    """The public rooms by name; of two names of one room the first stands."""
    found: dict[int, tuple[str, types.ModuleType]] = {}
    for name, value in public().items():
        if inspect.ismodule(value) and value.__name__.startswith("clairjax."):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def members(room: types.ModuleType) -> dict[str, Any]:
    """What the door of a room shows."""
    return {
        name: value
        for name, value in sorted(vars(room).items())
        if not name.startswith("_") and not inspect.ismodule(value)
    }


class Links:
    """Where a name in backticks leads: the room's own and the package's names as they are, others as `room.name`."""

    def __init__(self) -> None:
        self.shown = {name: members(room) for name, room in rooms().items()}
        self.short: dict[str, str] = {}
        for room, names in self.shown.items():
            for name, value in names.items():
                if public().get(name) is value:
                    self.short[name] = f"clairjax.{room}.{name}"
        self.alone = [name for name, value in public().items() if not (inspect.ismodule(value) or name in self.short)]
        self.short |= {name: f"clairjax.{name}" for name in self.alone}
        self.room = ""

    def target(self, text: str) -> str | None:
        *_, room, name = (self.room, *text.split("."))
        if name in self.shown.get(room, ()):
            return f"clairjax.{room}.{name}"
        return self.short.get(name) if text.removeprefix("cj.").removeprefix("clairjax.") == name else None


def pages() -> dict[str, str]:
    """Each page's text by its file name."""
    links = Links()
    texts = {"index.md": _index(links)}
    for name, room in rooms().items():
        links.room = name
        texts[f"{name}.md"] = _room(name, room, links)
    return texts


def write(folder: Path) -> None:
    """Write the pages; those that say what they said keep their time, and those of rooms that are gone go."""
    folder.mkdir(exist_ok=True)
    texts = pages()
    for old in folder.glob("*.md"):
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        page = folder / name
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def _index(links: Links) -> str:
    doors = [f"| [clairjax.{name}]({name}.md) | {_summary(room, links)} |" for name, room in rooms().items()]
    names = [
        f"| {{py:obj}}`clairjax.{name} <{links.short[name]}>` | {_summary(value, links)} |"
        for name, value in public().items()
        if name in links.short
    ]
    head = ["# Reference", "", "`import clairjax as cj` gives these names; a room holds more of its kind.", ""]
    tables = ["| room | |", "| :-- | :-- |", *doors, "", "| name | |", "| :-- | :-- |", *names, ""]
    entries = [_entry("clairjax", name, public()[name], links) for name in links.alone]
    return "\n".join([*head, *tables, *entries, "```{toctree}", ":hidden:", "", *rooms(), "```", ""])


def _room(name: str, module: types.ModuleType, links: Links) -> str:
    entries = [_entry(f"clairjax.{name}", each, value, links) for each, value in members(module).items()]
    return "\n".join([f"# clairjax.{name}", "", markdown(inspect.getdoc(module) or "", links), "", *entries])


def _entry(module: str, name: str, value: Any, links: Links) -> str:
    """A function, or a class with its methods, as a directive of Sphinx's Python domain."""
    text = markdown(inspect.getdoc(value) or "", links)
    if inspect.isclass(value):
        return _directive("class", f"{module}.{name}{_constructor(value)}", [text, *_parts(value, links)])
    if callable(value):
        return _directive("function", f"{module}.{name}{_signature(value)}", [text])
    return _directive("data", f"{module}.{name}", [])


def _parts(cls: type, links: Links) -> Iterator[str]:
    """The public methods and properties of a class, those of its bases in this package among them."""
    if issubclass(cls, eqx.Enumeration):
        for name in cls._name_to_item:
            yield _directive("attribute", name, [cls[getattr(cls, name)]])
        return
    parts: dict[str, Any] = {}
    for base in _bases(cls):
        for name, value in vars(base).items():
            if not name.startswith("_"):
                parts.setdefault(name, value)
    for name, value in parts.items():
        text = markdown(inspect.getdoc(value) or "", links)
        function = getattr(value, "fget", getattr(value, "__wrapped__", value))
        if isinstance(value, property):
            returns = _tree(function).returns
            yield _directive("property", name, [text], type=_text(returns) if returns else "")
        elif inspect.isfunction(function):
            kind = type(value).__name__ if isinstance(value, classmethod | staticmethod) else "method"
            yield _directive(kind, name + _signature(function, bound=kind != "staticmethod"), [text])


def _directive(kind: str, signature: str, body: list[str], **options: str) -> str:
    text = "\n\n".join(part for part in body if part)
    fence = ":" * (3 + max((len(run) for run in re.findall(r"^:{3,}", text, re.MULTILINE)), default=0))
    lines = [f"{fence}{{py:{kind}}} {signature}", *(f":{name}: {value}" for name, value in options.items() if value)]
    return "\n".join([*lines, "", text, fence, ""])


def _signature(function: Any, *, bound: bool = False) -> str:
    """As the source has it: annotations in its words, not the objects that they made."""
    tree = _tree(inspect.unwrap(function))
    if bound:
        del (tree.args.posonlyargs or tree.args.args)[0]
    returns = f" -> {_text(tree.returns)}" if tree.returns else ""
    return f"({_text(tree.args)}){returns}"


def _constructor(cls: type) -> str:
    """The arguments of a class: of its own constructor, or its fields."""
    if issubclass(cls, eqx.Enumeration):
        return ""
    own = vars(cls).get("__init__")
    if inspect.isfunction(own) and own.__code__.co_filename == inspect.getsourcefile(cls):
        return _signature(own, bound=True)
    fields: dict[str, str] = {}
    for base in reversed(_bases(cls)):
        for line in _tree(base).body:
            if isinstance(line, ast.AnnAssign) and "AbstractVar" not in (kind := _text(line.annotation)):
                default = _default(line.value)
                fields[_text(line.target)] = f": {kind}" + (f" = {_text(default)}" if default is not None else "")
    return f"({', '.join(name + rest for name, rest in fields.items())})"


def _default(value: ast.expr | None) -> ast.expr | None:
    """Of a field: what is written there, or the `default` of `eqx.field` and the like."""
    if isinstance(value, ast.Call):
        named = {keyword.arg: keyword.value for keyword in value.keywords}
        return named.get("default", None if "static" in named or "converter" in named else value)
    return value


def _bases(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.startswith("clairjax")]


def _tree(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _text(tree: ast.AST) -> str:
    """On one line; shapes of one axis without the space that linters need there."""
    return re.sub(r", ' ", ", '", " ".join(ast.unparse(tree).split()))


def _first(value: Any) -> str:
    return (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")


def _summary(value: Any, links: Links) -> str:
    return _prose(_first(value), links).replace("|", r"\|")


def markdown(text: str, links: Links) -> str:
    """A docstring as MyST."""
    parts = re.split(r"((?:^ *>>> .*\n?)(?:^.*\S.*\n?)*)", text, flags=re.MULTILINE)
    return "".join(
        f"```pycon\n{part.rstrip()}\n```\n" if place % 2 else _prose(part, links) for place, part in enumerate(parts)
    )


def _prose(text: str, links: Links) -> str:
    """An argument's own name, first in its list item, is no link."""
    parts = re.split(r"(^ *- `[^`]+`|`[^`]+`)", text, flags=re.MULTILINE)
    return "".join(_code(part, links) if part.startswith("`") else _plain(part) for part in parts)


def _code(span: str, links: Links) -> str:
    text = span.strip("`")
    target = links.target(text)
    return f"{{py:obj}}`{text} <{target}>`" if target else span


def _plain(text: str) -> str:
    """Underscores, single asterisks, < and a line's first + as characters; a pair of asterisks stays bold."""
    if re.fullmatch(r" *- `[^`]+`", text):
        return text
    text = re.sub(r"(?<!\*)\*(?!\*)|_|<", r"\\\g<0>", text)
    return re.sub(r"^( *)\+ ", r"\1\\+ ", text, flags=re.MULTILINE)
