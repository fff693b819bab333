"""`qdebug sweep`."""

from __future__ import annotations

from rich.console import Console

from qdebug import api
from qdebug.cli.common import emit, progress_bars, resumable
from qdebug.config.commands import ShownWithProgress
from qdebug.config.sweep import SweepSettings
from qdebug.errors import BackendError
from qdebug.report.sweep import print_engines, print_sweep
from qdebug.report.terminal import print_written


def run(settings: SweepSettings, shown: ShownWithProgress) -> int:
    """Try every combination; 1 where none meets the gate, 3 where none could be built."""
    with resumable(settings.cache), progress_bars(shown) as progress:
        result = api.sweep(settings, progress=progress)

    def show(console: Console) -> None:
        print_sweep(console, result, detailed=bool(shown.verbose))
        print_written(console, settings.output)
        if settings.save_engines and result.built:
            print_engines(console, settings.save_engines)

    emit(shown.json_to, result.to_dict, show)
    if not result.built:
        return BackendError.exit_code
    return 0 if result.passed else 1
