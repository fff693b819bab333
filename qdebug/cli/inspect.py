"""`qdebug inspect`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit
from qdebug.config.commands import ShownInspection
from qdebug.config.inspect import InspectSettings
from qdebug.report.inspect import view
from qdebug.report.terminal import print_view


def run(settings: InspectSettings, shown: ShownInspection) -> int:
    """Show what an engine is; 1 where it is not as expected."""
    result = api.inspect(settings)
    emit(
        shown.json_to,
        result.to_dict,
        lambda console: print_view(
            console, view(result, top=shown.top, detailed=bool(shown.verbose))
        ),
    )
    return 0 if result.passed else 1
