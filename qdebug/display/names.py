"""Names where there is no room for them: shortened so that they still differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    alike: dict[str, list[str]] = {}
    for name, short in shown.items():
        alike.setdefault(short, []).append(name)
    for group in alike.values():
        if len(group) > 1:
            others = {short for name, short in shown.items() if name not in group}
            shown.update(zip(group, _apart(group, width, others), strict=True))
    return [shown[name] for name in names]


def _usual(name: str, ending: str, width: int) -> str:
    short = name.removesuffix(ending)
    if cell_len(name) > width and short != name and cell_len(short) < width:
        return f"{short}…"
    return tail(name, width)


def _apart(group: Sequence[str], width: int, others: set[str]) -> list[str]:
    """The names of `group`, which are too long and end alike, each different and none in `others`.

    Of their common beginning little or nothing stays; then as much as tells them apart, and as much
    of the end as there is room for.
    """
    for start in _starts(group):
        rest = [name[start:] for name in group]
        for head in range(1, width - 2):
            ending = width - 2 - head
            found = [f"…{_ends(text, head, ending)}" for text in rest]
            if len({*found, *others}) == len(found) + len(others):
                return found
    # They differ in places too far apart to be shown at once.
    numbers = [f"…#{k}" for k in range(1, len(group) + 1)]
    return [shorten(n, width - len(k)) + k for n, k in zip(group, numbers, strict=True)]


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
