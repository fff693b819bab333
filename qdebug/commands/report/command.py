"""`qdebug report`, whole: open what is to be shown, and write one page of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from qdebug.commands.report.sources import Source, joined, of_engine, of_json, of_result, of_run
from qdebug.config.report import ReportSettings
from qdebug.engine_info.files.opening import engine_file_kind
from qdebug.errors import UsageError
from qdebug.inmemory import InMemory
from qdebug.outputfiles import check_distinct, check_new, write_bytes
from qdebug.page.data import Missing, PageData, RunData, TensorDetails
from qdebug.page.html import DETAILS_BYTES, Chunks, assets, packed, page_html
from qdebug.results.recorded import is_run
from qdebug.results.report import ReportedRun, ReportResult
from qdebug.store.reader import RunReader
from qdebug.wording import counted, option


def report(settings: ReportSettings) -> ReportResult:
    """Write a page of the results that `settings` name.

    Raises:
        UsageError: no output is given for a result in memory, or a file holds no result.
        QdebugError: another file that cannot be read, or an existing output.
    """
    output = _output(settings)
    with ExitStack() as stack:
        sources = [_opened(stack, run, more, settings.model) for run, more in joined(settings.runs)]
        return write_page(sources, output, "output", force=settings.force)


def write_page(
    sources: Sequence[Source], output: str, setting: str, *, force: bool
) -> ReportResult:
    """Write a page of results, the details of the worst layers' tensors in it.

    Args:
        sources: the results.
        output: the file, given by `setting`.
        setting: for messages.
        force: replace an existing file.

    Raises:
        StoreError: a run file is damaged, or the page cannot be written.
    """
    room = DETAILS_BYTES // len(sources)
    chunks = [packed(_details(source), source.order, room) for source in sources]
    runs = tuple(map(_with_chunks, sources, chunks))
    text = page_html(PageData.now(runs), [c.blocks for c in chunks], assets())
    data = text.encode("utf-8", "replace")
    write_bytes(output, data, option(setting), force=force)
    shown = tuple(
        ReportedRun(run.label, run.headline, len(c.where))
        for run, c in zip(runs, chunks, strict=True)
    )
    return ReportResult(Path(output), len(data), shown, tuple(_notes(runs)))


def _output(settings: ReportSettings) -> str:
    """The file to write, which may be written.

    Raises:
        UsageError: none is given for a result in memory.
        StoreError: it exists, or cannot be written.
    """
    first = settings.runs[0]
    if settings.output is None and isinstance(first, InMemory):
        raise UsageError(
            f"{option('output')} is missing: {first} has no file to write beside",
            "Give the path of the file to write.",
            code="QD-USAGE-REQUIRED",
        )
    if not isinstance(first, InMemory) and not Path(first).name:
        raise UsageError(
            f"{first!r}: no such file",
            "Give a run file of compare, or the JSON of a result.",
            code="QD-USAGE-FILE-UNREADABLE",
        )
    output = settings.output or f"{Path(first).with_suffix('')}.html"
    reads = {f"the run {run}": run for run in settings.runs if not isinstance(run, InMemory)}
    check_distinct({option("output"): output}, reads)
    check_new(output, option("output"), force=settings.force)
    return output


def _opened(stack: ExitStack, run: str, more: Mapping[str, str], model: str | None) -> Source:
    if isinstance(run, InMemory):
        return of_result(run.value, model)
    if is_run(run):
        return of_run(stack.enter_context(RunReader(run)), model)
    if engine_file_kind(Path(run)) == "layers":
        return of_engine(run, more, model)
    return of_json(run, model)


def _details(source: Source) -> Iterator[TensorDetails]:
    for tensor in source.order if source.kept else ():
        found = source.kept.details(tensor) if source.kept else None
        if found is not None:
            yield found


def _with_chunks(source: Source, chunks: Chunks) -> RunData:
    """The data of a run with where its details are, and what of them had no room."""
    data = source.data
    if chunks.left_out:
        count = counted(chunks.left_out, "tensor")
        missing = Missing(
            "details",
            f"The page has no room for the activations of {count}, those of the better layers.",
            f"`qdebug view {shlex.quote(data.label)}` shows them all.",
        )
        data = replace(data, missing=(*data.missing, missing))
    return replace(data, details=chunks.where or None)


def _notes(runs: Sequence[RunData]) -> Iterator[str]:
    """What the user must know of a page: what it lacks, and runs that are not alike."""
    models = {str((run.result or {}).get("model", {}).get("sha256")) for run in runs}
    if len(models) > 1:
        yield "The runs are of different models: layers are matched by their names."
    for run in runs:
        where = f"{run.label}: " if len(runs) > 1 else ""
        for missing in run.missing:
            yield f"{where}{missing.reason} {missing.remedy}".rstrip()
