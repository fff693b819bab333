"""`qdebug repair`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit, progress_bars, resumable
from qdebug.config.commands import ShownWithProgress
from qdebug.config.repair import RepairSettings
from qdebug.display.repair import view


def run(settings: RepairSettings, shown: ShownWithProgress) -> int:
    """Repair, and write the model; 1 where a target is not reached."""
    with resumable(settings.cache), progress_bars(shown) as progress:
        result = api.repair(settings, progress=progress)
    written = [
        settings.output,
        settings.save_plan,
        settings.save_fp32,
        settings.trt_cache,
        settings.html,
    ]
    emit(shown.json_to, result, lambda: view(result), written, force=settings.force)
    return 1 if result.passed is False else 0
