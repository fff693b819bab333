"""`qdebug calibrate`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit, exit_code, progress_bars
from qdebug.config.calibrate import CalibrateSettings
from qdebug.config.commands import ShownWithProgress
from qdebug.display.calibrate import view


def run(settings: CalibrateSettings, shown: ShownWithProgress) -> int:
    """Calibrate, and write the best ranges."""
    with progress_bars(shown) as progress:
        result = api.calibrate(settings, progress=progress)
    emit(
        shown.json_to,
        result,
        lambda: view(result),
        [settings.output, settings.trt_cache, settings.html],
        force=settings.force,
    )
    return exit_code(result, passed=True)
