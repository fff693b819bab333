"""`qdebug check`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit, exit_code, progress_bars
from qdebug.config.check import CheckSettings
from qdebug.config.commands import ShownExaminationWithProgress
from qdebug.display.check import view


def run(settings: CheckSettings, shown: ShownExaminationWithProgress) -> int:
    """Look at a model and its samples; 1 where something is certainly wrong."""
    with progress_bars(shown) as progress:
        result = api.check(settings, progress=progress)
    emit(shown.json_to, result, lambda: view(result), force=shown.force)
    return exit_code(result, passed=result.passed)
