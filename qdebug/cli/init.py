"""`qdebug init`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit, exit_code, progress_bars
from qdebug.config.commands import ShownAsJsonWithProgress
from qdebug.config.init import InitSettings
from qdebug.display.init import view


def run(settings: InitSettings, shown: ShownAsJsonWithProgress) -> int:
    """Write a configuration, and show it."""
    with progress_bars(shown) as progress:
        result = api.init(settings, progress=progress)
    emit(shown.json_to, result, lambda: view(result), [settings.output], force=settings.force)
    return exit_code(result, passed=True)
