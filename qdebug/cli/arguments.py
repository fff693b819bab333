"""From declared settings to a command line that cyclopts parses, and its errors in our words."""

from __future__ import annotations

import difflib
import inspect
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter
from cyclopts.exceptions import (
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from qdebug import __version__
from qdebug.config.commands import COMMANDS, Command
from qdebug.config.flag import ARGUMENT, FIRST, OUTPUT, Setting
from qdebug.config.removed import REMOVED
from qdebug.errors import UsageError
from qdebug.wording import Spelling

Run = Callable[[Command, Mapping[str, Any]], int]
"""Runs a command with what was given of its settings and display options."""

EVERYTHING = "--help-all"
HELP = ("--help", "-h", EVERYTHING)
_ABOUT = "Find out where, why and how cheaply to fix the accuracy an INT8 or FP16 network lost."
_EXIT_CODES = (
    "Exit codes: 0 done, and the gate or the target holds; 1 the gate failed, or no answer meets "
    "the target; 2 bad input or usage; 3 a backend failed; 130 interrupted; 143 terminated."
)
_MORE = (
    "qdebug COMMAND --help shows the flags of a command that matter first, --help-all all of them. "
    "To start: qdebug compare model.onnx --inputs samples.npz"
)
_NEARLY = 0.8


def app_of(arguments: list[str], run: Run) -> App:
    """What parses a command line: it knows all commands, and the flags of the one that is named."""
    app = App(
        name="qdebug",
        help=f"{_ABOUT}\n\n{_MORE}\n\n{_EXIT_CODES}",
        help_format="plaintext",
        help_flags=HELP,
        version=f"qdebug {__version__}",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for place, command in enumerate(COMMANDS.values()):
        hidden: tuple[Setting, ...] = ()
        if command.first and EVERYTHING not in arguments:
            shown = (FIRST, OUTPUT)
            hidden = tuple(
                setting
                for group, members in command.grouped.items()
                if group not in shown
                for setting in members
                if not setting.positional
            )
        app.command(
            _function(command, run, hidden) if command.name in arguments else _listed(command),
            name=command.name,
            usage=f"Usage: {command.usage}",
            help_epilogue=f"{len(hidden)} more flags: qdebug {command.name} {EVERYTHING}"
            if hidden
            else None,
            sort_key=place,
        )
    return app


def _listed(command: Command) -> Callable[[], None]:
    """A function for the list of commands: the parameters of all would take 20 ms."""

    def function() -> None: ...

    function.__doc__ = command.about
    return function


def _function(command: Command, run: Run, hidden: tuple[Setting, ...]) -> Callable[..., int]:
    """A function whose parameters are the flags of a command. Their values stay text: the checks of
    the settings give the messages."""
    declared = [(group, s) for group, members in command.grouped.items() for s in members]

    def function(*positional: Any, **flags: Any) -> int:
        names = (s.name for _, s in declared if s.positional)
        flags |= dict(zip(names, positional, strict=False))
        return run(command, {s.name: _given(s, flags.get(s.name)) for _, s in declared})

    about = (command.about, command.more, command.example and f"Example: {command.command_line}")
    function.__doc__ = "\n\n".join(filter(None, about))
    parameters = [
        _parameter(
            setting,
            Parameter(
                # cyclopts has a group of that name.
                group=group.name if group is ARGUMENT else group,
                show=setting not in hidden,
            ),
        )
        for group, setting in declared
    ]
    with_signature: Any = function  # which types do not know
    with_signature.__signature__ = inspect.Signature(parameters)
    return function


def _parameter(setting: Setting, place: Parameter) -> inspect.Parameter:
    """A setting as a parameter of a function."""
    bare = setting.is_switch or setting.counts
    kind: Any = bool if setting.is_switch else int if setting.counts else str | None
    choices = f" [{', '.join(setting.choices)}]" if setting.choices else ""
    required = " [required]" if setting.required and not setting.positional else ""
    own = Parameter(
        name=setting.flags,
        help=f"{setting.parameter.help}{required}{choices}",
        metavar=None if bare else setting.parameter.metavar or "NAME",
        negative=(),
        # A flag that is counted may be repeated anyway; told so, cyclopts 5 counts it once.
        allow_repeating=None if setting.counts else setting.is_list or setting.is_switch,
        show_default=False if bare else setting.shown_default or False,
        allow_leading_hyphen="-" in (setting.parameter.metavar or ""),
    )
    about = Parameter.combine(setting.parameter, own, place)
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.POSITIONAL_ONLY if setting.positional else inspect.Parameter.KEYWORD_ONLY,
        default=(False if setting.is_switch else 0) if bare else None,
        annotation=Annotated[list[str] | None if setting.is_list else kind, about],
    )


def _given(setting: Setting, value: Any) -> Any:
    """The value of a flag; None where it was not given."""
    if setting.is_switch:
        return setting.default is not True if value else None
    return value or None if setting.counts or setting.is_list else value


def as_flags(command: Command) -> Spelling:
    """Settings as the command line of a command has them; see wording.option."""
    flags = {setting.name: setting.flag for setting in command.declared}

    def as_flag(name: str, value: str | None) -> str:
        named = "--" + name.replace("_", "-")
        flag = flags.get(name, named)
        if value is None or (flag.startswith("--no-") and value.lower() in ("false", "off")):
            return flag
        # A switch takes no value: a setting of that name with one is another command's.
        return f"{named if flag.startswith('--no-') else flag} {shlex.quote(value)}"

    return as_flag


def usage_error(problem: CycloptsError) -> UsageError:
    """The error of a line that cannot be parsed, with the next step."""
    problem.verbose = False
    chain = " ".join(("qdebug", *(problem.command_chain or ())))
    command = COMMANDS.get(next(iter(problem.command_chain or ()), ""))
    message, hint = str(problem).strip(), ""
    if isinstance(problem, UnknownOptionError):
        flag = (problem.token.keyword or problem.token.value).partition("=")[0]
        gone = REMOVED.get(flag.removeprefix("--").removeprefix("no-").replace("-", "_"))
        if gone is not None:
            return UsageError(f"{flag} is no longer there", gone, code="QD-USAGE-COMMAND-LINE")
        if command is not None:
            message, hint = _unknown_option(flag, command) or (message, "")
    elif isinstance(problem, RepeatArgumentError):
        message = f"{problem.token.keyword} takes one value, and was given several times"
    elif isinstance(problem, UnknownCommandError) and problem.unused_tokens:
        word = problem.unused_tokens[0]
        close = difflib.get_close_matches(word, COMMANDS, n=1)
        meant = f"Did you mean '{close[0]}'? " if close else ""
        if Path(word).suffix:
            meant = f"Write a command first, such as 'qdebug compare {word} …'. "
        message, hint = f"unknown command '{word}'", f"{meant}Commands: {', '.join(COMMANDS)}."
    elif isinstance(problem, UnusedCliTokensError) and problem.unused_tokens:
        word = problem.unused_tokens[0]
        message = f"unexpected argument '{word}'"
        needed = [s.flag for s in command.declared if s.required and s.file] if command else []
        flags = [flag for flag in needed if flag.startswith("--")]
        hint = f"Samples are given with {flags[0]}." if flags else ""
        if Path(word).suffix in (".h5", ".hdf5"):
            hint = "Two run files: 'qdebug diff FIRST SECOND' says where they diverge."
    return UsageError(
        message[0].lower() + message[1:],
        "\n  ".join(filter(None, (hint, f"'{chain} {EVERYTHING}' lists what it takes."))),
        code="QD-USAGE-COMMAND-LINE",
    )


def _unknown_option(flag: str, command: Command) -> tuple[str, str] | None:
    """What is said of a flag that other commands have; None where a flag of this one is meant."""
    if flag == "--model":
        return f"unknown option {flag}", f"Write {command.usage}."
    own = [setting.flag for setting in command.declared]
    others = [c.name for c in COMMANDS.values() if flag in {s.flag for s in c.declared}]
    if not others or difflib.get_close_matches(flag, own, n=1, cutoff=_NEARLY):
        return None
    hint = f"'qdebug {others[0]} --help-all' says what it does there."
    if flag == "--inputs" and any(s.name == "inputs" for s in command.declared):
        hint = f"Write {command.usage}."
    have = "has" if len(others) == 1 else "have"
    return f"{command.name} has no {flag}; {', '.join(others)} {have}", hint
