"""`qdebug ranges`."""

from __future__ import annotations

import logging

from qdebug import api
from qdebug.cli.common import emit, progress_bars
from qdebug.config.commands import ShownWithProgress
from qdebug.config.ranges import RangesSettings
from qdebug.display.plotfiles import drawn_files
from qdebug.display.ranges import view


def run(settings: RangesSettings, shown: ShownWithProgress) -> int:
    """Show the ranges of a run file or of a model, and draw them."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # -vv is about qdebug
    with progress_bars(shown) as progress:
        result = api.ranges(settings, progress=progress)
    drawn = []
    if settings.plot:
        drawn = drawn_files(settings.plot, settings.tensors, settings.top, result)
    top, detailed = max(settings.top, len(settings.tensors)), bool(settings.tensors)
    emit(
        shown.json_to,
        result,
        lambda: view(result, top=top, detailed=detailed),
        drawn,
        force=settings.force,
    )
    return 0
