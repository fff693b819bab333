"""Puts the subcommands together and turns errors into messages and exit codes."""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress

import typer

from qdebug import __version__
from qdebug.cli.bisect import bisect_command
from qdebug.cli.calibrate import calibrate_command
from qdebug.cli.compare import compare_command
from qdebug.cli.doctor import doctor_command
from qdebug.cli.export import export_command
from qdebug.cli.inspect import inspect_command
from qdebug.cli.interrupts import noting_interrupts
from qdebug.cli.ranges import ranges_command
from qdebug.cli.sweep import sweep_command
from qdebug.errors import BackendError, QdebugError, UsageError
from qdebug.wording import spelled_by

INTERRUPTED = 130

app = typer.Typer(
    name="qdebug",
    help="Find out where, why and how cheaply to fix the accuracy an INT8 or FP16 network lost.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compare")(compare_command)
app.command("calibrate")(calibrate_command)
app.command("ranges")(ranges_command)
app.command("inspect")(inspect_command)
app.command("bisect")(bisect_command)
app.command("sweep")(sweep_command)
app.command("export")(export_command)
app.command("doctor")(doctor_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"qdebug {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Exit codes: 0 held, 1 the gate failed, 2 bad input or usage, 3 a backend failed,
    130 interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; never raises on bad input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    interrupted = threading.Event()
    try:
        with noting_interrupts(interrupted), spelled_by(as_flag):
            return _run(arguments)
    except (KeyboardInterrupt, typer.Abort):
        pass
    except Exception as error:
        # Where Ctrl-C meets foreign code, that may make an error of its own of it: the import of an
        # extension "fails", a file "cannot be closed".
        if not interrupted.is_set():
            return _report(error, arguments)
        if _wants_traceback(arguments):
            traceback.print_exception(error)
    print("qdebug: interrupted; nothing half-written was left behind", file=sys.stderr)
    return INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    command = typer.main.get_command(app)
    try:
        code = command.main(args=list(arguments), prog_name="qdebug", standalone_mode=False)
    except SystemExit as stopped:  # would end us with its code, which may well be 0
        raise UsageError(
            f"a script of yours called sys.exit({stopped.code!r})",
            "A script or metric that qdebug loads must not end the program.",
        ) from None
    if code == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


_FLAGS = {"tactic_sources": "--tactic-source", "tensors": "--tensor"}
"""Settings whose flag is not their name."""


def as_flag(name: str, value: str | None) -> str:
    """A setting as the command line has it; see wording.option."""
    flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
    return flag if value is None else f"{flag} {shlex.quote(value)}"


def entry() -> None:
    """Run the command line as a program: ends the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that the locale cannot show
    code = main()
    if code == INTERRUPTED:
        # At once: whatever had to be put away was, on the way here. Ending in order would wait for
        # threads of the user's scripts, and tear down runtimes that were interrupted half-loaded,
        # which aborts.
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _wants_traceback(arguments: Sequence[str]) -> bool:
    """Whether -v was given twice."""
    short = sum(len(a) - 1 for a in arguments if re.fullmatch("-v+", a))
    return short + arguments.count("--verbose") > 1


def _report(error: Exception, arguments: Sequence[str]) -> int:
    """Say what went wrong, and give the exit code."""
    if isinstance(error, typer.TyperException):
        message = error.format_message()
        if message:  # none with "qdebug" alone, which has shown the help
            print(f"qdebug: error: {message}", file=sys.stderr)
        return UsageError.exit_code
    if _wants_traceback(arguments):
        traceback.print_exception(error)
    if isinstance(error, QdebugError):
        print(f"qdebug: error: {error}", file=sys.stderr)
        return error.exit_code
    # A defect of ours: said without a page of traceback.
    last = traceback.format_exception_only(error)[-1].strip()
    print(
        f"qdebug: internal error: {last}\n  This is a defect of qdebug; -vv shows the traceback.",
        file=sys.stderr,
    )
    return BackendError.exit_code
