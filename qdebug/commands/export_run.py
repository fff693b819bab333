"""`qdebug export` of a comparison: its figures, written for another tool."""

from __future__ import annotations

from pathlib import Path

from qdebug.display.tables import rendered
from qdebug.errors import UsageError
from qdebug.outputfiles import check_distinct, check_new, write_all
from qdebug.plan.export import ExportResult
from qdebug.results.recorded import Run, is_run
from qdebug.wording import option


def export_run(source: str, target: str, *, output: str | None, force: bool) -> ExportResult:
    """Write the figures of a comparison for `target`, one of RUN_TARGETS.

    Args:
        source: its run file.
        target: what to write.
        output: a name that those of the files begin with, less its suffix; None takes that of the
            run file.
        force: replace existing files.

    Raises:
        UsageError: `source` is no run file.
        StoreError: it cannot be read, or a file exists or cannot be written.
    """
    if not is_run(source):
        raise UsageError(
            f"{source}: not a run file, which {option('to', target)} is made of",
            "Give the run file that `qdebug compare` wrote.",
            code="QD-USAGE-EXPORT-SOURCE",
        )
    with Run(source) as run:
        contents = rendered(target, run.result)
    stem = str(Path(output or source).with_suffix(""))
    files = {Path(f"{stem}{end}"): data for end, data in contents.items()}
    check_distinct({option("output"): str(next(iter(files)))}, {"the run": source})
    for path in files:
        check_new(str(path), option("output"), force=force)
    write_all(files, option("output"), force=force)
    return ExportResult(target, tuple(files), ())
