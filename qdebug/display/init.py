"""What a person sees of a configuration that was written."""

from __future__ import annotations

from qdebug.display.blocks import Block, Facts, Line, flat
from qdebug.display.check import finding_lines
from qdebug.results.init import InitResult
from qdebug.wording import printable


def view(result: InitResult) -> list[Block]:
    """The settings that were chosen, what is wrong with the samples, and what to run next."""
    return flat(
        Facts(tuple((setting.key, printable(setting.value)) for setting in result.settings)),
        map(finding_lines, result.findings),
        Line(f"Next: qdebug compare --config {printable(str(result.file))}"),
    )
