"""`qdebug sweep`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit, exit_code, progress_bars
from qdebug.config.commands import ShownWithProgress
from qdebug.config.sweep import SweepSettings
from qdebug.display.blocks import TERMS
from qdebug.display.sweep import view
from qdebug.errors import BackendError


def run(settings: SweepSettings, shown: ShownWithProgress) -> int:
    """Try every combination; 1 where none meets the gate.

    Raises:
        BackendError: none could be built; what is known of each has been printed and written.
    """
    with progress_bars(shown) as progress:
        result = api.sweep(settings, progress=progress)
    written = [settings.output]
    if settings.save_engines and result.built:
        written.append(f"{settings.save_engines}: N.engine and N.log are those of row #N.")
    written.append(settings.html)
    detailed = bool(shown.verbose)
    emit(
        shown.json_to,
        result,
        lambda: [*view(result, detailed=detailed), TERMS],
        written,
        force=settings.force,
    )
    if not result.built:
        first = next(row.failure for row in result.combinations if row.failure)
        raise BackendError(
            f"{result.model.path}: no combination could be built; the first: {first.message}",
            first.hint,
            code="QD-BACKEND-NONE-BUILT",
        )
    return exit_code(result, passed=result.passed)
