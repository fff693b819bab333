"""Objects that a caller gives where the command line takes the path of a file."""

from __future__ import annotations

from typing import Any, Self


class InMemory(str):
    """The name of an object in messages, records and files, and the object itself.

    Settings hold text, so that they can be compared, written down and shown. Code that opens what
    a setting names asks first whether the text is one of these, and then takes its `value`.
    """

    value: Any

    def __new__(cls, name: str, value: object) -> Self:
        """The text `name`, with `value`."""
        self = super().__new__(cls, name)
        self.value = value
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self  # as text is; a copy of a model would be large, one of a generator impossible


def path_in(text: str) -> str:
    """`text`, or "" where it names no file but an object in memory."""
    return "" if isinstance(text, InMemory) else text
