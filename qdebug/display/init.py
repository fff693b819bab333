"""What a person sees of a configuration that was written."""

from __future__ import annotations

from qdebug.display.blocks import Block, Facts, Line
from qdebug.display.check import finding_lines
from qdebug.results.init import InitResult
from qdebug.wording import printable


def view(result: InitResult) -> list[Block]:
    """The settings that were chosen, what is wrong with the samples, and what to run next."""
    return [
        Facts(tuple((setting.key, printable(setting.value)) for setting in result.settings)),
        *(line for finding in result.findings for line in finding_lines(finding)),
        Line(f"Next: qdebug compare --config {printable(str(result.file))}"),
    ]
