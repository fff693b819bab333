"""`qdebug bisect`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit, exit_code, progress_bars
from qdebug.config.bisect import BisectSettings
from qdebug.config.commands import ShownWithProgress
from qdebug.display.bisect import view
from qdebug.display.blocks import TERMS


def run(settings: BisectSettings, shown: ShownWithProgress) -> int:
    """Search, and write the plan that was found; 1 where the target is not met."""
    with progress_bars(shown) as progress:
        result = api.bisect(settings, progress=progress)
    written = [settings.output] if result.found else []
    if result.engine:
        written += [settings.save_engine, settings.save_log]
    written.append(settings.html)
    emit(shown.json_to, result, lambda: [*view(result), TERMS], written, force=settings.force)
    return exit_code(result, passed=result.passed)
