"""The page that a command writes beside its result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qdebug.commands.compare.command import compare
from qdebug.commands.report.command import write_page
from qdebug.commands.report.reproduction import reproduction_of_call
from qdebug.commands.report.sources import of_result, of_run
from qdebug.config.commands import command_of
from qdebug.config.compare import CompareSettings
from qdebug.errors import StoreError
from qdebug.inmemory import path_in
from qdebug.outputfiles import refuse_temporary
from qdebug.result import Result
from qdebug.results.compare import CompareResult
from qdebug.stages import attempted
from qdebug.store.reader import RunReader
from qdebug.types import ProgressCallback
from qdebug.wording import option


def compare_with_page(settings: CompareSettings, progress: ProgressCallback) -> CompareResult:
    """Compare, and write the page of it that is asked for, if any. What it shows of activations
    comes from the run file; where none is asked for, from a temporary one.

    Raises:
        QdebugError: as of `compare`.
        StoreError: the temporary file cannot be written.
    """
    html = settings.html
    if html is None:
        return compare(settings, progress)
    if settings.output:
        label = Path(settings.output).name
        return _with_run_page(compare(settings, progress), html, label, settings.force)
    with TemporaryDirectory(prefix="qdebug-page-") as folder:
        file = str(Path(folder) / "run.h5")
        try:
            result = compare(replace(settings, output=file), progress)
        except StoreError as error:
            if not error.message.startswith(file):
                raise
            what = "what the page shows of activations cannot be kept in a temporary file"
            refuse_temporary(Path(folder).parent, what, error)
        result = _with_run_page(result, html, result.model.name, settings.force)
    return replace(result, run_file=None)


def _with_run_page(result: CompareResult, html: str, label: str, force: bool) -> CompareResult:
    """`result`, with a page of its run file. Without that file there is none, which is said."""

    def written(done: CompareResult) -> CompareResult:
        if done.run_file is None:
            raise StoreError(
                f"{html}: there is no page, since the run file that it shows could not be written",
                code="QD-STORE-NOT-FOUND",
            )
        with RunReader(done.run_file) as reader:
            write_page([of_run(reader, None, label)], html, "html", force=force)
        return done

    return attempted(option("html"), result, written, file=html)


def write_result_page(settings: Any, html: str, model: str | None, result: Result) -> None:
    """Write a page of what a command found.

    Args:
        settings: of the command.
        html: the page.
        model: that the command ran; None where it ran none.
        result: what it found.

    Raises:
        StoreError: the page cannot be written.
    """
    command = command_of(type(settings)).name
    source = of_result(result, model, Path(path_in(model or "")).name)
    digest = (source.data.result or {}).get("model", {}).get("sha256")
    reproduction = reproduction_of_call(command, vars(settings), {"model": digest})
    data = replace(source.data, reproduction=reproduction)
    write_page([replace(source, data=data)], html, "html", force=settings.force)
