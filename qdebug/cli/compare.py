"""`qdebug compare`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from qdebug import api
from qdebug.cli.common import emit, exit_code, progress_bars
from qdebug.config.commands import ShownWithLayers
from qdebug.config.compare import CompareSettings
from qdebug.display.blocks import TERMS
from qdebug.display.compare import run_file_line, view
from qdebug.display.junit import junit_xml
from qdebug.errors import UsageError
from qdebug.outputfiles import write_text
from qdebug.types import Progress, ProgressCallback
from qdebug.wording import option

if TYPE_CHECKING:
    from qdebug.commands.report.live import LivePage


def run(settings: CompareSettings, shown: ShownWithLayers) -> int:
    """Compare, and show the worst layers; 1 where the gate failed."""
    detailed = bool(shown.verbose)
    with _shown_live(settings, shown) as live:
        with progress_bars(shown) as progress:
            result = api.compare(settings, progress=_both(progress, live))
        if shown.junit:
            write_text(shown.junit, junit_xml(result), option("junit"), force=settings.force)
        emit(
            shown.json_to,
            result,
            lambda: [
                *view(result, top=shown.top, detailed=detailed),
                run_file_line(result.run_file),
                TERMS,
            ],
            [
                settings.save_plan,
                settings.save_engine,
                settings.save_log,
                settings.html,
                shown.junit,
            ],
            force=settings.force,
        )
    return exit_code(result, passed=result.passed)


@contextmanager
def _shown_live(settings: CompareSettings, shown: ShownWithLayers) -> Iterator[LivePage | None]:
    """The page of a run that is about to be written, served as long as the block runs and then
    until the user interrupts; None where nobody asked for it.

    Raises:
        UsageError: no run file is to be written.
    """
    if not shown.view:
        yield None
        return
    if not settings.output:
        raise UsageError(
            f"{option('view')} shows a run file, but none is written",
            f"Add {option('output', 'run.h5')}.",
            code="QD-USAGE-REQUIRED",
        )
    from qdebug.cli.view import announce
    from qdebug.commands.report.live import LivePage
    from qdebug.commands.report.view import View

    page = LivePage([settings.output], None, awaited=True)
    with View(page, port=0, browser=True) as served:
        announce(served, browser=True)
        yield page
        with suppress(KeyboardInterrupt):
            served.wait()


def _both(bars: ProgressCallback, live: LivePage | None) -> ProgressCallback:
    if live is None:
        return bars

    def show(progress: Progress) -> None:
        bars(progress)
        live.show_progress(progress)

    return show
