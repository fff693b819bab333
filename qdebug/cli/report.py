"""`qdebug report`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit
from qdebug.config.commands import ShownReport
from qdebug.config.report import ReportSettings
from qdebug.display.report import view


def run(settings: ReportSettings, shown: ShownReport) -> int:
    """Write the page, and say what it cannot show."""
    result = api.report(settings)
    emit(shown.json_to, result, lambda: view(result), [str(result.file)], force=settings.force)
    return 0
