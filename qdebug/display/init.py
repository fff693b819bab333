"""What a person sees of a configuration that was written."""

from __future__ import annotations

from qdebug.display.blocks import Block, Facts, Line
from qdebug.results.init import InitResult
from qdebug.wording import printable


def view(result: InitResult) -> list[Block]:
    """The settings that were chosen, and what to run next."""
    return [
        Facts(tuple((setting.key, printable(setting.value)) for setting in result.settings)),
        Line(f"Next: qdebug compare --config {printable(str(result.file))}"),
    ]
