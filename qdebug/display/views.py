"""How results show themselves, in a notebook and as text; `Result.VIEWS` is this.

The modules that make the views are imported when something is shown: this one is a part of
`import qdebug`.
"""

from __future__ import annotations

from typing import Any

from qdebug.result import Result


class ResultViews:
    """See results.Views."""

    def html(self, result: Result) -> str:
        """See results.Views."""
        from qdebug.display import (
            bisect,
            calibrate,
            check,
            compare,
            doctor,
            export,
            init,
            inspect,
            ranges,
            repair,
            report,
            sweep,
        )
        from qdebug.display.blocks import read_data
        from qdebug.display.html import to_html

        modules: tuple[Any, ...] = (
            *(bisect, calibrate, check, compare, doctor, export, init),
            *(inspect, ranges, repair, report, sweep),
        )
        shown_by = {module.__name__.rpartition(".")[2]: module for module in modules}
        command = result.SCHEMA.removeprefix("qdebug.").partition("/")[0]
        return to_html([*read_data(result), *shown_by[command].view(result)])

    def summary(self, result: Any) -> str:
        """See results.Views."""
        from qdebug.display.summary import sentence

        return sentence(result)

    def plan_text(self, result: Any) -> str:
        """See results.Views."""
        from qdebug.decide.bisect.result import BisectResult
        from qdebug.display import bisect, repair

        if isinstance(result, BisectResult):
            return bisect.plan_text(result)
        return repair.plan_text(result)


Result.VIEWS = ResultViews()
