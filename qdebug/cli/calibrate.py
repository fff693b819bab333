"""`qdebug calibrate`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit, exit_code, progress_bars
from qdebug.config.calibrate import CalibrateSettings
from qdebug.config.commands import ShownWithProgress
from qdebug.display.blocks import TERMS, Block, Line
from qdebug.display.calibrate import view
from qdebug.wording import option


def run(settings: CalibrateSettings, shown: ShownWithProgress) -> int:
    """Calibrate, and write the best ranges."""
    with progress_bars(shown) as progress:
        result = api.calibrate(settings, progress=progress)
    written = [settings.output, settings.trt_cache, settings.html]

    def blocks() -> list[Block]:
        keeps = f"{option('output', 'scales.yaml')} keeps them for {option('calibration')}"
        lost = Line(f"No ranges were written ({keeps} of the other commands).", "muted")
        return [*view(result), *([] if any(written[:2]) else [lost]), TERMS]

    emit(shown.json_to, result, blocks, written, force=settings.force)
    return exit_code(result, passed=True)
