"""What subcommands share: consoles, verbosity, writing JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console

from qdebug.cli.process import output, standard_output
from qdebug.config.commands import ShownWithProgress
from qdebug.display.blocks import Block, read_data
from qdebug.display.progress import ProgressBars
from qdebug.display.terminal import print_view, print_written
from qdebug.outputfiles import write_text
from qdebug.result import Result
from qdebug.stages import INTERNAL
from qdebug.wording import option, printable


class _OutputConsole(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process with exit code 1, which means a failed gate here."""
        raise  # the BrokenPipeError that is being handled


def output_console() -> Console:
    """Where results go. Off a terminal nothing is wrapped or coloured."""
    terminal = output().isatty()
    return _OutputConsole(file=output(), highlight=False, width=None if terminal else 4096)


def progress_bars(shown: ShownWithProgress) -> ProgressBars:
    """Progress bars on the error stream, unless they are switched off."""
    return ProgressBars(Console(file=sys.stderr, highlight=False), enabled=shown.progress)


def set_verbosity(level: int) -> None:
    """0 shows warnings, 1 (-v) what is done, 2 (-vv) everything and tracebacks."""
    levels = [logging.WARNING, logging.INFO, logging.DEBUG]
    handler = logging.StreamHandler()
    handler.setFormatter(_Escaped("qdebug: %(levelname)s: %(message)s"))
    logging.basicConfig(level=levels[min(level, 2)], handlers=[handler], force=True)
    # Warnings of libraries are about their callers' code: they are shown with -v.
    logging.captureWarnings(True)
    logging.getLogger("py.warnings").setLevel(logging.WARNING if level else logging.ERROR)


class _Escaped(logging.Formatter):
    """Foreign text in a log moves no cursor."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's name)
        return printable(super().formatException(ei), kept="\n")


def write_json(data: dict[str, Any], target: str, *, force: bool) -> None:
    """Write `data` to a file, or to the standard output for "-".

    Raises:
        StoreError: the file cannot be written.
    """
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    if target == "-":
        print(text, file=output())
    else:
        write_text(target, text + "\n", option("json_to"), force=force)


def emit(
    json_target: str | None,
    result: Result,
    view: Callable[[], Iterable[Block]],
    written: Sequence[str | None] = (),
    *,
    force: bool,
) -> None:
    """Write a result where --json says; unless that is the standard output, show its view, then
    which files were `written` (None for one that was not requested). `force` replaces a file.

    Raises:
        StoreError: the file or the standard output cannot be written.
    """
    with standard_output():
        if json_target:
            write_json(result.to_dict(), json_target, force=force)
        if json_target != "-":
            console = output_console()
            print_view(console, [*read_data(result), *view()])
            missing = {failure.file for failure in result.failed}
            print_written(console, *(None if file in missing else file for file in written))


def exit_code(result: Result, *, passed: bool) -> int:
    """What a command ends with: 0, 1 where the gate failed, or what stages ended with that failed;
    their errors are said now, when all that was measured is shown and written."""
    for failure in result.failed:
        kind = "internal error" if failure.code == INTERNAL else "error"
        print(printable(f"qdebug: {kind}: {failure}", kept="\n"), file=sys.stderr)
    return max((f.exit_code for f in result.failed), default=0 if passed else 1)
