"""Runs the command that is asked for, and turns errors into messages and exit codes."""

from __future__ import annotations

import io
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdebug.cli.parser import as_flags, parse_and_run
from qdebug.cli.process import (
    discard,
    interrupted_code,
    output_error,
    results_apart,
    signalled,
    standard_output,
)
from qdebug.config.commands import Command
from qdebug.errors import (
    BackendError,
    QdebugError,
    UsageError,
    is_about_memory,
    out_of_memory,
)
from qdebug.wording import Spelling, printable, spelled_by

if TYPE_CHECKING:
    from qdebug.config.resolve import Place


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; never raises on bad input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    begun: list[Command] = []

    def run(command: Command, given: Mapping[str, Any], shown: Mapping[str, Any]) -> int:
        begun.append(command)
        return _run(command, given, shown)

    try:
        code = parse_and_run(arguments, run)
        with standard_output():
            return code
    except KeyboardInterrupt:
        pass
    except SystemExit:  # Rich's, where the reader of a help text went away
        return 0
    except Exception as error:
        if not signalled():  # foreign code may make an error of its own of a Ctrl-C
            if isinstance(error, OSError) and not begun:  # only help was printed
                error = output_error(error)
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


def spelling(command: Command, places: Mapping[str, Place] | None = None) -> Spelling:
    """Settings of a command as its command line has them, or its configuration file at `places`;
    see wording.option."""
    as_flag = as_flags(command)

    def spelled(name: str, value: str | None) -> str:
        place = (places or {}).get(name)
        return place.spelled(value) if place else as_flag(name, value)

    return spelled


def _run(command: Command, given: Mapping[str, Any], shown: Mapping[str, Any]) -> int:
    # Imported here: --help must not wait for the numeric packages.
    from qdebug.cli.common import set_verbosity
    from qdebug.commands.preflight import check_files, planned_model
    from qdebug.config.resolve import from_flags, places_in_file, validated

    with spelled_by(spelling(command)), results_apart():
        _check_directory()
        show = command.shown(**validated(command.shown, shown))
        set_verbosity(show.verbose)
        file = getattr(show, "config", None)
        places = places_in_file(command.settings, given, file)
        try:
            with spelled_by(spelling(command, places)):
                settings = from_flags(command.settings, given, file, planned_model)
                check_files(settings, show)
                run = import_module(f"qdebug.cli.{command.name}").run
                try:
                    return int(run(settings, show))
                except KeyboardInterrupt:
                    if getattr(settings, "cache", False):
                        _say("qdebug: progress is saved: the same command goes on from there\n")
                    raise
        except SystemExit as stopped:  # would end us with its code, which may well be 0
            raise UsageError(
                f"your script called sys.exit({stopped.code!r})",
                "A script or metric that qdebug loads must not end the program.",
                code="QD-USAGE-SCRIPT-EXIT",
            ) from None


def _check_directory() -> None:
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(
            f"the working directory cannot be used: {error.strerror}",
            "Change to a directory that exists.",
            code="QD-USAGE-DIRECTORY",
        ) from error


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


_LONGEST = 1000
_DEFECT = "This is a defect of qdebug; -vv shows the traceback."
