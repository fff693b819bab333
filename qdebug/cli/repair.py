"""`qdebug repair`."""

from __future__ import annotations

import sys

from qdebug import api
from qdebug.cli.common import emit, exit_code, progress_bars
from qdebug.config.commands import ShownWithProgress
from qdebug.config.repair import RepairSettings
from qdebug.display.blocks import TERMS, Block, Line
from qdebug.display.repair import view
from qdebug.plan.repaired import record_in
from qdebug.wording import option


def run(settings: RepairSettings, shown: ShownWithProgress) -> int:
    """Repair, and write the model; 1 where a target is not reached."""
    try:
        with progress_bars(shown) as progress:
            result = api.repair(settings, progress=progress)
    except KeyboardInterrupt:
        best = record_in(settings.output) if settings.output else None
        if best is not None and best.unfinished:
            print(f"qdebug: {settings.output} has the best so far: {best.told}", file=sys.stderr)
        raise
    written = [
        settings.output,
        settings.save_plan,
        settings.save_fp32,
        settings.trt_cache,
        settings.html,
    ]

    def blocks() -> list[Block]:
        lost = f"No model was written ({option('output', 'model.int8.onnx')} keeps it)."
        return [*view(result), *([] if any(written) else [Line(lost, "muted")]), TERMS]

    emit(shown.json_to, result, blocks, written, force=settings.force)
    return exit_code(result, passed=result.passed is not False)
