"""Settings whose values are words of a list, and what is said of a word that is not on it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import AfterValidator, ValidationInfo

from qdebug.config.removed import REMOVED
from qdebug.errors import UsageError
from qdebug.wording import as_known, option

_FEW = 12
"""How many known names are listed where one is unknown, besides the closest one."""
_OTHER_FORMATS = frozenset(("int4", "int16", "uint8", "fp4", "fp64", "tf32"))
"""Formats that exist, and that nobody means another one by."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Which of the known words may be meant, and all of them where they are few."""
    names = tuple(known)
    typed = word.lower() not in _OTHER_FORMATS
    close = difflib.get_close_matches(word, names, n=1) if typed else []
    meant = [f"Did you mean '{close[0]}'?"] if close else []
    listed = [] if meant and len(names) > _FEW else [f"Known: {', '.join(names)}."]
    return " ".join(meant + listed)


def unknown_word(setting: str, shown: str, word: str, known: Iterable[str]) -> UsageError:
    """The error of a value that is none of the known ones, or no longer one of them."""
    return UsageError(
        f"{option(setting)}: unknown value {shown}",
        REMOVED.get(f"{setting}={word}") or suggestion(word, known),
        code="QD-USAGE-CHOICE",
    )


def word_of(known: Iterable[str]) -> AfterValidator:
    """What checks that a value is one of the words that a registry lists."""
    names = tuple(known)

    def checked(value: str, info: ValidationInfo) -> str:
        word = as_known(value, names)
        if word not in names:
            raise unknown_word(info.field_name or "", f"'{word}'", word, names)
        return word

    return AfterValidator(checked)
