"""`qdebug calibrate`."""

from __future__ import annotations

from rich.console import Console

from qdebug import api
from qdebug.cli.common import emit, progress_bars
from qdebug.config.calibrate import CalibrateSettings
from qdebug.config.commands import ShownWithProgress
from qdebug.report.calibrate import print_calibrate
from qdebug.report.terminal import print_written


def run(settings: CalibrateSettings, shown: ShownWithProgress) -> int:
    """Calibrate, and write the best ranges."""
    with progress_bars(shown) as progress:
        result = api.calibrate(settings, progress=progress)

    def show(console: Console) -> None:
        print_calibrate(console, result)
        print_written(console, settings.output, settings.trt_cache)

    emit(shown.json_to, result.to_dict, show)
    return 0
