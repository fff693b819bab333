"""Names where there is no room for them: shortened so that they still differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from rich.cells import cell_len, set_cell_size


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` cells, its middle left out."""
    if cell_len(text) <= width:
        return text
    ending = (width - 1) * 2 // 3
    return _ends(text, width - 1 - ending, ending)


def tail(text: str, width: int) -> str:
    """The end of `text` in at most `width` cells."""
    return text if cell_len(text) <= width else f"…{_last_cells(text, width - 1)}"


def shorten_names(names: Sequence[str], width: int, endings: Sequence[str] = ()) -> list[str]:
    """A column of names in at most `width` cells (12 or more), different names still different.

    Exporters put the scope first and the operator last: where it suffices the end of a name is
    kept, without its ending (the operator of a layer, which has a column of its own). Names that
    would look alike then keep what they differ in too, and lose what is between.
    """
    ending_of = dict(zip(names, endings, strict=True)) if endings else {}
    shown = {name: _usual(name, ending_of.get(name, ""), width) for name in names}
    for group in _alike(shown):  # by their endings only, perhaps
        shown.update({name: tail(name, width) for name in group})
    for group in _alike(shown):
        shown |= _apart(group, width, _others(shown, group)) or {}
    rest = [name for group in _alike(shown) for name in group]
    if rest:
        others = _others(shown, rest)
        shown |= _apart(rest, width, others) or _numbered(rest, width, others)
    return [shown[name] for name in names]


def _alike(shown: Mapping[str, str]) -> list[list[str]]:
    """The groups of names that are shown alike."""
    groups: dict[str, list[str]] = {}
    for name, short in shown.items():
        groups.setdefault(short, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _others(shown: Mapping[str, str], group: Sequence[str]) -> set[str]:
    """What the names that are not in `group` are shown as."""
    chosen = set(group)
    return {short for name, short in shown.items() if name not in chosen}


def _usual(name: str, ending: str, width: int) -> str:
    short = name.removesuffix(ending)
    if cell_len(name) > width and short != name and cell_len(short) < width:
        return f"{short}…"
    return tail(name, width)


def _apart(group: Sequence[str], width: int, others: set[str]) -> dict[str, str] | None:
    """The names of `group`, which are too long and end alike, each different and none in `others`;
    None where they differ in places too far apart to be shown at once.

    Of their common beginning little or nothing stays; then as much as tells them apart, and as much
    of the end as there is room for.
    """
    for start in _starts(group):
        rest = [name[start:] for name in group]
        for head in range(1, width - 2):
            ending = width - 2 - head
            found = [f"…{_ends(text, head, ending)}" for text in rest]
            if len({*found, *others}) == len(found) + len(others):
                return dict(zip(group, found, strict=True))
    return None


def _numbered(group: Sequence[str], width: int, others: set[str]) -> dict[str, str]:
    """The names of `group`, each with a number, and none in `others`."""
    found: dict[str, str] = {}
    marks = (f"…#{number}" for number in count(1))
    for name in group:
        numbered = (shorten(name, width - len(mark)) + mark for mark in marks)
        found[name] = next(short for short in numbered if short not in others)
    return found


def _starts(group: Sequence[str]) -> Iterator[int]:
    """Where to begin: at the part of the path in which the names differ first, and right where
    they do."""
    first, last = min(group), max(group)
    same = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first)
    )
    yield first.rfind("/", 0, same) + 1
    yield same


def _ends(text: str, head: int, ending: int) -> str:
    if cell_len(text) <= head + 1 + ending:
        return text
    return f"{set_cell_size(text, head).rstrip()}…{_last_cells(text, ending)}"


def _last_cells(text: str, width: int) -> str:
    """The end of `text` that fits `width` cells; a wide character takes two."""
    return set_cell_size(text[::-1], width).rstrip()[::-1]
