"""`qdebug ranges`."""

from __future__ import annotations

import logging

from rich.console import Console

from qdebug import api
from qdebug.cli.common import emit, progress_bars
from qdebug.config.commands import ShownWithProgress
from qdebug.config.ranges import RangesSettings
from qdebug.report.plotfiles import drawn_files
from qdebug.report.ranges import view
from qdebug.report.terminal import print_view, print_written


def run(settings: RangesSettings, shown: ShownWithProgress) -> int:
    """Show the ranges of a run file or of a model, and draw them."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # -vv is about qdebug
    with progress_bars(shown) as progress:
        result = api.ranges(settings, progress=progress)

    def show(console: Console) -> None:
        top = max(settings.top, len(settings.tensors))
        print_view(console, view(result, top=top, detailed=bool(settings.tensors)))
        if settings.plot:
            drawn = drawn_files(settings.plot, settings.tensors, settings.top, result)
            print_written(console, *drawn)

    emit(shown.json_to, result.to_dict, show)
    return 0
