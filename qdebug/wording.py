"""What a setting is called in a message: a Python keyword, or a flag on the command line.

A message that names a setting does so with `option`, so that `calib_data` reads `--calib-data` on
the command line and stays a keyword for those who call qdebug from Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta

Spelling = Callable[[str, str | None], str]
"""Takes the name of a setting, and a value to set it to or None."""


def as_keyword(name: str, value: str | None) -> str:
    """`name`, `name='value'` or `name=8`: as a Python caller writes it."""
    if value is None:
        return name
    try:
        float(value)
    except ValueError:
        return f"{name}={value!r}"
    return f"{name}={value}"


_SPELLING: ContextVar[Spelling] = ContextVar("spelling", default=as_keyword)


def option(name: str, value: str | None = None) -> str:
    """The setting `name` as the user knows it, such as `weights` or `--weights`; with a value as
    the user would set it, such as `weights='per-channel'` or `--weights per-channel`."""
    return _SPELLING.get()(name, value)


def as_known(word: str, known: Iterable[str]) -> str:
    """The one of `known` words that differs from `word` in case only, or in _ and - for each other;
    `word` itself where none does."""
    return next((each for each in known if _folded(each) == _folded(word)), word)


def _folded(word: str) -> str:
    return word.strip().casefold().replace("_", "-")


def printable(text: str, kept: str = "") -> str:
    """Foreign text with what would move the cursor, colour the terminal or end the line written as
    an escape; characters in `kept` stay."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )


def counted(items: int | Sized, what: str) -> str:
    """A number, or that of some items, with its noun, such as "1 tensor" or "3 tensors"."""
    count = items if isinstance(items, int) else len(items)
    return f"{count} {what}{'s' if count != 1 else ''}"


_PARTS = {2: "half", 3: "a third of", 4: "a quarter of", 5: "a fifth of", 10: "a tenth of"}
_NEARLY = 0.12


def part_of(ratio: float, what: str) -> str:
    """A part of something, such as "a quarter of a typical value", or how many times as large."""
    for count, words in _PARTS.items():
        if abs(ratio * count - 1) <= _NEARLY:
            return f"{words} {what}"
    if abs(ratio - 1) <= _NEARLY:
        return f"as large as {what}"
    return f"{ratio:.2g} times {what}" if ratio > 1 else f"{100 * ratio:.2g}% of {what}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: 0:01:30."""
    return str(timedelta(seconds=round(seconds)))


@contextmanager
def spelled_by(spelling: Spelling) -> Iterator[None]:
    """Within, `option` spells settings this way: for the command line. Threads that others start,
    beside it, are not concerned; those of the work within are `run.stream.Threads`."""
    token = _SPELLING.set(spelling)
    try:
        yield
    finally:
        _SPELLING.reset(token)
