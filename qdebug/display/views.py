"""How results show themselves, in a notebook and as text; `Result.VIEWS` is this.

The modules that make the views are imported when something is shown: this one is a part of
`import qdebug`.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from qdebug.result import Result


class ResultViews:
    """See results.Views."""

    def html(self, result: Result) -> str:
        """See results.Views."""
        from qdebug.display.blocks import read_data
        from qdebug.display.html import to_html

        command = result.SCHEMA.removeprefix("qdebug.").partition("/")[0]
        view = resolve_name(f"qdebug.display.{command}:view")
        return to_html([*read_data(result), *view(result)])

    def summary(self, result: Any) -> str:
        """See results.Views."""
        from qdebug.display.summary import sentence

        return sentence(result)

    def plan_text(self, result: Any) -> str:
        """See results.Views."""
        command = result.SCHEMA.removeprefix("qdebug.").partition("/")[0]
        text: str = resolve_name(f"qdebug.display.{command}:plan_text")(result)
        return text


Result.VIEWS = ResultViews()
