"""`qdebug diff`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit, exit_code
from qdebug.config.commands import ShownDifference
from qdebug.config.diff import DiffSettings
from qdebug.display.diff import view


def run(settings: DiffSettings, shown: ShownDifference) -> int:
    """Show where two runs diverge; 1 where the gate failed."""
    result = api.diff(settings)
    emit(shown.json_to, result, lambda: view(result, top=shown.top), force=settings.force)
    return exit_code(result, passed=result.passed)
