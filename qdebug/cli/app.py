"""The program: parses a command line, runs the command, and turns errors into messages and exit
codes."""

from __future__ import annotations

import io
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from cyclopts import CycloptsError

from qdebug.cli.arguments import HELP, app_of, usage_error
from qdebug.cli.process import (
    discard,
    interrupted_code,
    output_error,
    signalled,
    standard_output,
)
from qdebug.config.commands import Command
from qdebug.errors import BackendError, QdebugError, UsageError, is_about_memory, out_of_memory
from qdebug.wording import printable

_LONGEST = 1000
_DEFECT = "This is a defect of qdebug; -vv shows the traceback."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; never raises on bad input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            code = app_of(arguments, _run)(arguments)
        except CycloptsError as problem:
            raise usage_error(problem) from None
        with standard_output():
            return UsageError.exit_code if not arguments else int(code or 0)
    except KeyboardInterrupt:
        pass
    except SystemExit:  # Rich's, where the reader of a help text went away
        return 0
    except Exception as error:
        if isinstance(error, OSError) and (not arguments or {*HELP, "--version"} & {*arguments}):
            error = output_error(error)
        if not signalled():  # foreign code may make an error of its own of a Ctrl-C
            return _report(error, arguments)
        if _wants_traceback(arguments):
            _say("".join(traceback.format_exception(error)))
    _say("qdebug: interrupted; nothing half-written was left behind\n")
    return interrupted_code()


def entry() -> None:
    """Run the command line as a program: ends the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that the locale cannot show
    sys.exit(main())


def _run(command: Command, given: Mapping[str, Any]) -> int:
    from qdebug.cli.run import run  # --help must not wait for the numeric packages

    return run(command, given)


def _wants_traceback(arguments: Sequence[str]) -> bool:
    """Whether -v was given twice."""
    short = sum(len(a) - 1 for a in arguments if re.fullmatch("-v+", a))
    return short + arguments.count("--verbose") > 1


def _report(error: Exception, arguments: Sequence[str]) -> int:
    """Say what went wrong, and give the exit code."""
    if _wants_traceback(arguments):
        _say("".join(traceback.format_exception(error)))
    if not isinstance(error, QdebugError) and is_about_memory(error):
        error = out_of_memory(str(error))
    if isinstance(error, QdebugError):
        _print_error(f"qdebug: error: {error}\n")
        return error.exit_code
    # A defect of ours: said without a page of traceback.
    last = printable(traceback.format_exception_only(error)[-1].strip())
    _say(f"qdebug: internal error: {last[:_LONGEST]}\n  {_DEFECT}\n")
    return BackendError.exit_code


def _say(text: str) -> None:
    """Print foreign text on the error stream."""
    _print_error(printable(text, kept="\n"))


def _print_error(text: str) -> None:
    """Print on the error stream, if it takes anything: the exit code says as much."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:  # a full disk
        discard(sys.stderr)
