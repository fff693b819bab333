"""`qdebug inspect`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit, exit_code
from qdebug.config.commands import ShownInspection
from qdebug.config.inspect import InspectSettings
from qdebug.display.inspect import view


def run(settings: InspectSettings, shown: ShownInspection) -> int:
    """Show what an engine is; 1 where it is not as expected."""
    result = api.inspect(settings)
    detailed = bool(shown.verbose)
    emit(
        shown.json_to,
        result,
        lambda: view(result, top=shown.top, detailed=detailed),
        [settings.csv, settings.html],
        force=settings.force,
    )
    return exit_code(result, passed=result.passed)
