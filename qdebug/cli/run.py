"""What the command line does with a command: call the API, show the result, name the files."""

from __future__ import annotations

import inspect
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from rich.console import Console

from qdebug import api
from qdebug.cli.arguments import as_flags
from qdebug.cli.process import check_directory, output, results_apart, standard_output
from qdebug.commands.preflight import check_files
from qdebug.config.commands import Command, Shown
from qdebug.config.flag import ENGINE, settings_of
from qdebug.config.validate import Place, settings_in_file, settled
from qdebug.display.blocks import TERMS, Block, Line, read_data
from qdebug.display.compare import run_file_line
from qdebug.display.junit import junit_xml
from qdebug.display.progress import ProgressBars
from qdebug.display.terminal import print_view, print_written
from qdebug.errors import BackendError, UsageError
from qdebug.outputfiles import write_text
from qdebug.plan.repaired import record_in
from qdebug.stages import INTERNAL
from qdebug.types import Progress
from qdebug.wording import Spelling, option, printable, spelled_by

if TYPE_CHECKING:
    from qdebug.commands.report.view import LivePage, View

_EXPLAINED = ("compare", "calibrate", "bisect", "repair", "sweep")
"""The commands whose result ends with the terms that it uses."""
_TOP = {"inspect": 20}


def run(command: Command, given: Mapping[str, Any]) -> int:
    """Run a command with what was given of its settings and display options; the exit code.

    Raises:
        QdebugError: bad input, or a runtime that failed.
    """
    with spelled_by(as_flags(command)), results_apart():
        check_directory()
        shown = settled(Shown, {s.name: given[s.name] for s in command.display})
        _set_verbosity(shown.verbose)
        names = {setting.name for setting in settings_of(command.settings)}
        flags = {n: v for n, v in given.items() if n in names and v is not None}
        file = settings_in_file(command, shown.config)
        places = {name: place for name, place in file.items() if name not in flags}
        with spelled_by(_spelling(command, places)), _nothing_exits():
            values = {name: place.value for name, place in places.items()}
            settings = settled(command.settings, values | flags)
            check_files(settings, shown)
            if command.name == "view":
                return _serve(settings)
            with _live(settings) if shown.view else nullcontext() as page:
                result = _result(command, settings, shown, page)
                return _finish(command, settings, shown, result)


def _spelling(command: Command, places: Mapping[str, Place]) -> Spelling:
    """Settings as the command line has them, or its configuration file at `places`."""
    as_flag = as_flags(command)

    def spelled(name: str, value: str | None) -> str:
        place = places.get(name)
        return place.spelled(value) if place else as_flag(name, value)

    return spelled


@contextmanager
def _nothing_exits() -> Iterator[None]:
    """Within, no script of the user ends the program: with its code, which may well be 0.

    Raises:
        UsageError: one tried to.
    """
    try:
        yield
    except SystemExit as stopped:
        raise UsageError(
            f"your script called sys.exit({stopped.code!r})",
            "A script or metric that qdebug loads must not end the program.",
            code="QD-USAGE-SCRIPT-EXIT",
        ) from None


def _result(command: Command, settings: Any, shown: Shown, page: LivePage | None) -> Any:
    """What the function of the API gives; its progress is shown, on a page as well."""
    function = getattr(api, command.name)
    if command.name == "doctor":
        return function()
    if "progress" not in command.shown:
        return function(settings)
    bars = ProgressBars(Console(file=sys.stderr, highlight=False), enabled=shown.progress)

    def show(progress: Progress) -> None:
        bars(progress)
        if page is not None:
            page.show_progress(progress)

    try:
        with bars:
            return function(settings, progress=show)
    except KeyboardInterrupt:
        best = record_in(settings.output or "") if command.name == "repair" else None
        if best is not None and best.unfinished:
            print(f"qdebug: {settings.output} has the best so far: {best.told}", file=sys.stderr)
        if getattr(settings, "cache", False):
            saved = "qdebug: progress is saved: the same command goes on from there"
            print(saved, file=sys.stderr)
        raise


def _finish(command: Command, settings: Any, shown: Shown, result: Any) -> int:
    """Write and show a result, and name the files that were written; the exit code: 1 where the
    gate failed, or that of stages that failed, whose errors are said when all is shown.

    Raises:
        StoreError: a file or the standard output cannot be written.
        BackendError: nothing could be built.
    """
    force = shown.force or getattr(settings, "force", False)
    if shown.junit:
        write_text(shown.junit, junit_xml(result), option("junit"), force=force)
    with standard_output():
        if shown.json_to:
            text = json.dumps(result.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
            if shown.json_to == "-":
                print(text, file=output())
            else:
                write_text(shown.json_to, f"{text}\n", option("json_to"), force=force)
        if shown.json_to != "-":
            wide = None if output().isatty() else 4096  # off a terminal nothing is wrapped
            console = _OutputConsole(file=output(), highlight=False, width=wide)
            blocks = _blocks(command, settings, shown, result)
            print_view(console, [*read_data(result), *blocks])
            missing = {failure.file for failure in result.failed}
            files = [*_written(command, settings, result), shown.junit]
            print_written(console, *(file for file in files if file not in missing))
    if command.name == "sweep" and not result.built:
        first = next(row.failure for row in result.combinations if row.failure)
        raise BackendError(
            f"{result.model.path}: no combination could be built; the first: {first.message}",
            first.hint,
            code="QD-BACKEND-NONE-BUILT",
        )
    for failure in result.failed:
        kind = "internal error" if failure.code == INTERNAL else "error"
        print(printable(f"qdebug: {kind}: {failure}", kept="\n"), file=sys.stderr)
    passed = getattr(result, "passed", True) is not False
    return max((f.exit_code for f in result.failed), default=0 if passed else 1)


class _OutputConsole(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process with exit code 1, which means a failed gate here."""
        raise  # the BrokenPipeError that is being handled


def _written(command: Command, settings: Any, result: Any) -> list[str | None]:
    """The files that a command writes, as far as there was something to write."""
    declared = sorted(
        (s for s in settings_of(command.settings) if s.written in ("new", "resumed")),
        key=lambda s: (s.name == "html", s.group is ENGINE),
    )
    lacking = {"output"} if command.name == "compare" else set[str]()  # it has a line of its own
    if command.name == "bisect":
        lacking |= set() if result.found else {"output"}
        lacking |= set() if result.engine else {"save_engine", "save_log"}
    files = [getattr(settings, s.name) for s in declared if s.name not in lacking]
    if command.name == "report":
        files.append(str(result.file))
    if command.name == "sweep" and settings.save_engines and result.built:
        files.append(f"{settings.save_engines}: N.engine and N.log are those of row #N.")
    return files


def _blocks(command: Command, settings: Any, shown: Shown, result: Any) -> list[Block]:
    """A result as it is shown, with what belongs to the command line."""
    view = resolve_name(f"qdebug.display.{command.name}:view")
    options = {"top": shown.top or _TOP.get(command.name, 10), "detailed": bool(shown.verbose)}
    if command.name == "ranges":
        top = max(settings.top, len(settings.tensors))
        options = {"top": top, "detailed": bool(settings.tensors)}
    taken = inspect.signature(view).parameters
    blocks = list(view(result, **{n: value for n, value in options.items() if n in taken}))
    if command.name == "compare":
        blocks.append(run_file_line(result.run_file))
    if command.name == "calibrate" and not (settings.output or settings.trt_cache):
        keeps = f"{option('output', 'scales.yaml')} keeps them for {option('calibration')}"
        blocks.append(Line(f"No ranges were written ({keeps} of the other commands).", "muted"))
    if command.name == "repair" and not any(_written(command, settings, result)):
        lost = f"No model was written ({option('output', 'model.int8.onnx')} keeps it)."
        blocks.append(Line(lost, "muted"))
    return [*blocks, TERMS] if command.name in _EXPLAINED else blocks


def _serve(settings: Any) -> int:
    """Serve the page of `view` until the user interrupts."""
    with api.view(settings) as served:
        _announce(served, settings.browser)
        with suppress(KeyboardInterrupt):
            served.wait()
    return 0


@contextmanager
def _live(settings: Any) -> Iterator[LivePage]:
    """The page of a run that is about to be written, served as long as the block runs and then
    until the user interrupts.

    Raises:
        UsageError: no run file is to be written.
    """
    if not settings.output:
        raise UsageError(
            f"{option('view')} shows a run file, but none is written",
            f"Add {option('output', 'run.h5')}.",
            code="QD-USAGE-REQUIRED",
        )
    from qdebug.commands.report.view import LivePage, View  # most runs serve nothing

    page = LivePage([settings.output], None, awaited=True)
    with View(page, port=0, browser=True) as served:
        _announce(served, browser=True)
        yield page
        with suppress(KeyboardInterrupt):
            served.wait()


def _announce(served: View, browser: bool) -> None:
    """Say where the page is, and how to end it."""
    missing = browser and not served.opened
    hint = "No browser was found: open that address. " if missing else ""
    print(f"Serving at {served.url}\n{hint}Ctrl-C ends.", file=output(), flush=True)


def _set_verbosity(level: int) -> None:
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
