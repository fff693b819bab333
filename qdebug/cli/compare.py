"""`qdebug compare`."""

from __future__ import annotations

from rich.console import Console

from qdebug import api
from qdebug.cli.common import emit, progress_bars
from qdebug.config.commands import ShownWithLayers
from qdebug.config.compare import CompareSettings
from qdebug.report.compare import print_compare
from qdebug.report.terminal import print_written


def run(settings: CompareSettings, shown: ShownWithLayers) -> int:
    """Compare, and show the worst layers; 1 where the gate failed."""
    with progress_bars(shown) as progress:
        result = api.compare(settings, progress=progress)

    def show(console: Console) -> None:
        print_compare(console, result, top=shown.top, run_file=result.run_file)
        print_written(console, settings.save_plan, settings.save_engine, settings.save_log)

    emit(shown.json_to, result.to_dict, show)
    return 0 if result.passed else 1
