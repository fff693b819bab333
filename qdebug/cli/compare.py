"""`qdebug compare`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit, progress_bars
from qdebug.config.commands import ShownWithLayers
from qdebug.config.compare import CompareSettings
from qdebug.display.compare import run_file_line, view


def run(settings: CompareSettings, shown: ShownWithLayers) -> int:
    """Compare, and show the worst layers; 1 where the gate failed."""
    with progress_bars(shown) as progress:
        result = api.compare(settings, progress=progress)
    detailed = bool(shown.verbose)
    emit(
        shown.json_to,
        result,
        lambda: [
            *view(result, top=shown.top, detailed=detailed),
            run_file_line(result.run_file),
        ],
        [settings.save_plan, settings.save_engine, settings.save_log],
    )
    return 0 if result.passed else 1
