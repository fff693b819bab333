"""`qdebug ranges`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit, progress_bars
from qdebug.config.commands import ShownWithProgress
from qdebug.config.ranges import RangesSettings
from qdebug.display.ranges import view


def run(settings: RangesSettings, shown: ShownWithProgress) -> int:
    """Show the ranges of a run file or of a model."""
    with progress_bars(shown) as progress:
        result = api.ranges(settings, progress=progress)
    top, detailed = max(settings.top, len(settings.tensors)), bool(settings.tensors)
    emit(
        shown.json_to,
        result,
        lambda: view(result, top=top, detailed=detailed),
        force=settings.force,
    )
    return 0
