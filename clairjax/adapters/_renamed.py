"""Clients whose modules are the others' under longer names, as where a wrapper put a word of its own before them."""

from collections.abc import Collection, Mapping


Words = tuple[str, ...]


def apart(modules: Mapping[str, Collection[str]]) -> dict[str, str]:
    """How the names of clients differ that share no module with the most, not even by way of others.

    Told only where the same words, left out, put in or exchanged, turn at least half of their names into the others'.
    """
    groups = _groups(modules)
    most = max(groups, key=len, default=[])
    usual = {tuple(name.split(".")) for client in most for name in modules[client]}
    return {
        client: how
        for group in groups
        if group is not most
        for client in group
        if (how := _how([tuple(name.split(".")) for name in modules[client]], usual))
    }


def _groups(modules: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Clients that are connected by modules of one name."""
    groups: list[tuple[list[str], set[str]]] = []
    for client, names in modules.items():
        mine, all_names = [client], set(names)
        for group in [each for each in groups if each[1] & all_names]:
            groups.remove(group)
            mine, all_names = group[0] + mine, group[1] | all_names
        groups.append((mine, all_names))
    return [group for group, _ in groups]


def _how(names: list[Words], usual: Collection[Words]) -> str:
    tried = set()
    for other in (each for each in usual if each[-1] == names[0][-1]):
        mine, theirs, start = _difference(names[0], other)
        if (mine, theirs) in tried or (mine and theirs and start):  # of exchanged words, only those at the start
            continue
        tried.add((mine, theirs))
        if not theirs:
            found = sum(_without(name, mine) in usual for name in names)
        elif not mine:
            found = len({_without(name, theirs) for name in usual} & set(names))
        else:
            found = sum(theirs + name[len(mine) :] in usual for name in names if name[: len(mine)] == mine)
        if 2 * found >= len(names):
            example = f"as {'.'.join(names[0])} for {'.'.join(other)}"
            return f"its module names have {_quoted(mine)} where the others' have {_quoted(theirs)}, {example}"
    return ""


def _difference(name: Words, other: Words) -> tuple[Words, Words, int]:
    """What is in one name and what in its place in the other, and how many words come before."""
    end = next((k for k, (a, b) in enumerate(zip(name[::-1], other[::-1], strict=False)) if a != b), -1)
    end = min(len(name), len(other)) if end < 0 else end
    name, other = name[: len(name) - end], other[: len(other) - end]
    start = next((k for k, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), -1)
    start = min(len(name), len(other)) if start < 0 else start
    return name[start:], other[start:], start


def _without(name: Words, words: Words) -> Words:
    places = range(len(name) - len(words) + 1)
    place = next((k for k in places if name[k : k + len(words)] == words), None)
    return name if place is None else name[:place] + name[place + len(words) :]


def _quoted(words: Words) -> str:
    return repr(".".join(words)) if words else "nothing"
