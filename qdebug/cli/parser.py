"""From declared settings to a command line: the only module that knows the library that parses
it."""

from __future__ import annotations

import difflib
import inspect
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.exceptions import (
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from qdebug import __version__
from qdebug.backends.registry import spec_of, specs, takers
from qdebug.config.commands import COMMANDS, Command
from qdebug.config.option import GROUPS, Setting, flags_of, settings_of
from qdebug.config.removed import REMOVED
from qdebug.errors import UsageError
from qdebug.wording import Spelling

Run = Callable[[Command, Mapping[str, Any], Mapping[str, Any]], int]
"""Runs a command: takes what was given of its settings, and of how its result is shown."""

_ABOUT = "Find out where, why and how cheaply to fix the accuracy an INT8 or FP16 network lost."
_EXIT_CODES = (
    "Exit codes: 0 done, and the gate or the target holds; 1 the gate failed, or no answer meets "
    "the target; 2 bad input or usage; 3 a backend failed; 130 interrupted; 143 terminated."
)
_GROUPS = {name: Group(name, sort_key=k) for k, name in enumerate(GROUPS) if name}
_EVERYTHING = "--help-all"
_MORE = (
    "qdebug COMMAND --help shows the flags of a command, --help-all also those of backends that "
    "are not installed. To start: qdebug compare model.onnx --inputs samples.npz"
)


def parse_and_run(arguments: list[str], run: Run) -> int:
    """Parse a command line and run the command it names; help and version are printed.

    Raises:
        UsageError: an unknown command or flag, or a flag without its value.
    """
    try:
        code = _app(arguments, run, whole=_shows_help(arguments))(arguments)
    except CycloptsError:
        try:
            code = _app(arguments, run, whole=True)(arguments)
        except CycloptsError as problem:
            raise (_removed_option(problem) or _usage_error(problem)) from None
    return UsageError.exit_code if not arguments else int(code or 0)


def _shows_help(arguments: list[str]) -> bool:
    """Whether help may be asked for, also among short flags that are written together."""
    return not arguments or any(
        word in ("--help", _EVERYTHING) or re.fullmatch("-[A-Za-z]*h[A-Za-z]*", word)
        for word in arguments
    )


def _app(arguments: list[str], run: Run, *, whole: bool) -> App:
    """What parses a command line. It knows all commands and all flags of the one that is named, as
    help and suggestions need; or, where it is not to be `whole`, those that occur: parsing takes a
    seventh of the time then, and what it takes it understands alike."""
    app = App(
        name="qdebug",
        help=f"{_ABOUT}\n\n{_MORE}\n\n{_EXIT_CODES}",
        help_format="plaintext",
        help_flags=["--help", "-h", _EVERYTHING],
        version=f"qdebug {__version__}",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for place, command in enumerate(COMMANDS.values()):
        is_named = command.name in arguments
        if not (whole or is_named):
            continue
        folded = _folded(command) if is_named and whole and _EVERYTHING not in arguments else {}

        def is_needed(setting: Setting, is_named: bool = is_named) -> bool:
            return is_named and (whole or _occurs(setting, arguments))

        app.command(
            _function(command, run, folded, is_needed),
            name=command.name,
            usage=f"Usage: {_usage(command)}",
            help_epilogue=_epilogue(command, folded),
            sort_key=place,
        )
    return app


def _occurs(setting: Setting, arguments: list[str]) -> bool:
    """Whether a setting may be among the words: by its flag, short or long, or by its place."""
    if setting.option.positional or setting.option.short:
        return True
    return any(word.partition("=")[0] == setting.flag for word in arguments)


def _folded(command: Command) -> dict[str, tuple[str, ...]]:
    """Settings that only backends take which are not installed, and these backends."""
    found = {setting.name: takers(setting.name) for setting in command.declared}
    return {
        name: backends
        for name, backends in found.items()
        if backends and not any(spec_of(backend).installed for backend in backends)
    }


def _epilogue(command: Command, folded: Mapping[str, tuple[str, ...]]) -> str | None:
    """What a help text says of the flags that it leaves out."""
    if not folded:
        return None
    backends = dict.fromkeys(name for names in folded.values() for name in names)
    flags = "1 flag" if len(folded) == 1 else f"{len(folded)} flags"
    return (
        f"Not shown: {flags} of backends that are not installed ({', '.join(backends)}). "
        f"qdebug {command.name} {_EVERYTHING} shows everything."
    )


def _function(
    command: Command,
    run: Run,
    folded: Mapping[str, tuple[str, ...]],
    is_needed: Callable[[Setting], bool],
) -> Callable[..., int]:
    """A function whose parameters are the flags of a command that are needed; without any it is
    only listed: those of all commands take 20 ms."""
    declared = settings_of(command.settings)
    shown = settings_of(command.shown)

    def function(*positional: Any, **flags: Any) -> int:
        names = [s.name for s in declared if s.option.positional]
        flags |= dict(zip(names, positional, strict=False))
        given = {s.name: _given(s, flags.get(s.name)) for s in (*declared, *shown)}
        settings = {s.name: given[s.name] for s in declared}
        return run(command, settings, {s.name: given[s.name] for s in shown})

    parameters = [
        _parameter(setting, group, shown=setting.name not in folded)
        for group, members in command.grouped.items()
        for setting in members
        if is_needed(setting)
    ]
    about = (command.about, command.more, command.example and f"Example: {command.command_line}")
    function.__name__ = command.name
    function.__doc__ = "\n\n".join(filter(None, about))
    with_signature: Any = function  # which types do not know
    with_signature.__signature__ = inspect.Signature(parameters)
    return function


def _parameter(setting: Setting, group: str, *, shown: bool) -> inspect.Parameter:
    """A setting as a parameter. Values stay text: the settings' own checks give the messages."""
    option = setting.option
    kind, default = _type_and_default(setting)
    about = Parameter(
        name=[setting.flag, *filter(None, [option.short])],
        help=_help(setting),
        metavar=None if setting.is_switch or option.count else _metavar(setting),
        group=_GROUPS.get(group, "Arguments"),
        show=shown,
        negative=(),
        # A flag that is counted may be repeated anyway; told so, cyclopts 5 counts it once.
        allow_repeating=None if option.count else setting.is_list or setting.is_switch,
        count=option.count or None,
        show_default=False,
        allow_leading_hyphen="-" in option.metavar,
    )
    place = (
        inspect.Parameter.POSITIONAL_ONLY if option.positional else inspect.Parameter.KEYWORD_ONLY
    )
    return inspect.Parameter(
        setting.name, place, default=default, annotation=Annotated[kind, about]
    )


def _type_and_default(setting: Setting) -> tuple[Any, Any]:
    if setting.is_switch:
        return bool, False
    if setting.option.count:
        return int, 0
    return (list[str] if setting.is_list else str) | None, None


def _usage(command: Command) -> str:
    return " ".join(("qdebug", command.name, *_arguments(command).values(), "[OPTIONS]"))


def _arguments(command: Command) -> dict[str, str]:
    """The settings that are given by their place, as usage shows them, by name."""
    return {s.name: s.flag for s in settings_of(command.settings) if s.option.positional}


def _metavar(setting: Setting) -> str:
    return setting.option.metavar or "NAME"


def _help(setting: Setting) -> str:
    """Its help, with its choices and its default."""
    if setting.is_switch:
        return setting.option.off if setting.default is True else setting.option.help
    parts = [setting.option.help]
    if setting.required and not setting.option.positional:
        parts.append("[required]")
    if setting.choices and not setting.option.words:
        parts.append(f"[{', '.join(setting.choices)}]")
    if setting.name == "backend":
        listed = [spec for spec in specs() if f"{spec.name} (" in setting.option.help]
        installed = [spec.name for spec in listed if spec.installed]
        parts.append(f"[installed: {', '.join(installed)}]")
    if setting.shown_default and not setting.option.count:
        parts.append(f"[default: {setting.shown_default}]")
    return " ".join(parts)


def _given(setting: Setting, value: Any) -> Any:
    """The value of a flag; None where it was not given."""
    if setting.is_switch:
        return (setting.default is not True) if value else None
    return value or None if setting.option.count or setting.is_list else value


def as_flags(command: Command) -> Spelling:
    """Settings as the command line of a command has them; see wording.option."""
    flags = flags_of(command.settings) | flags_of(command.shown)

    def as_flag(name: str, value: str | None) -> str:
        flag = flags.get(name, "--" + name.replace("_", "-"))
        if value is None or (flag.startswith("--no-") and value.lower() in ("false", "off")):
            return flag
        # A switch takes no value: a setting of that name with one is another command's.
        named = "--" + name.replace("_", "-") if flag.startswith("--no-") else flag
        return f"{named} {shlex.quote(value)}"

    return as_flag


def _samples_hint(command: Command | None) -> str:
    """By which flag a command takes its samples; "" where it takes none."""
    flags = [s.flag for s in command.declared if s.required and s.option.reads] if command else []
    found = [flag for flag in flags if flag.startswith("--")]
    return f"Samples are given with {found[0]}." if found else ""


def _is_near(flag: str, command: Command) -> bool:
    """Whether a command has a flag that is spelled nearly as this one of another command."""
    known = [setting.flag for setting in command.declared]
    return bool(difflib.get_close_matches(flag, known, n=1, cutoff=_NEARLY))


_NEARLY = 0.8


def _removed_option(problem: CycloptsError) -> UsageError | None:
    """What a flag of an earlier version gives: an error that says what to use instead."""
    if not isinstance(problem, UnknownOptionError):
        return None
    flag = (problem.token.keyword or problem.token.value).partition("=")[0]
    hint = REMOVED.get(flag.removeprefix("--").removeprefix("no-").replace("-", "_"))
    if hint is None:
        return None
    return UsageError(f"{flag} is no longer there", hint, code="QD-USAGE-COMMAND-LINE")


def _usage_error(problem: CycloptsError) -> UsageError:
    problem.verbose = False
    chain = " ".join(("qdebug", *(problem.command_chain or ())))
    command = COMMANDS.get(next(iter(problem.command_chain or ()), ""))
    message = str(problem).strip()
    hint = ""
    if isinstance(problem, UnusedCliTokensError) and problem.unused_tokens:
        message = f"unexpected argument '{problem.unused_tokens[0]}'"
        hint = _samples_hint(command)
        if Path(problem.unused_tokens[0]).suffix in (".h5", ".hdf5"):
            hint = "Two run files: 'qdebug diff FIRST SECOND' says where they diverge."
    if isinstance(problem, UnknownOptionError):
        flag = (problem.token.keyword or problem.token.value).partition("=")[0]
        others = [c.name for c in COMMANDS.values() if flag in {s.flag for s in c.declared}]
        if command is not None and flag == "--model":
            message, hint = f"unknown option {flag}", f"Write {_usage(command)}."
        elif command is not None and others and not _is_near(flag, command):
            have = "has" if len(others) == 1 else "have"
            message = f"{command.name} has no {flag}; {', '.join(others)} {have}"
            hint = f"'qdebug {others[0]} --help' says what it does there."
            if flag == "--inputs" and "inputs" in _arguments(command):
                hint = f"Write {_usage(command)}."
    if isinstance(problem, UnknownCommandError) and problem.unused_tokens:
        word = problem.unused_tokens[0]
        close = difflib.get_close_matches(word, COMMANDS, n=1)
        meant = f"Did you mean '{close[0]}'? " if close else ""
        if Path(word).suffix:
            meant = f"Write a command first, such as 'qdebug compare {word} …'. "
        message, hint = f"unknown command '{word}'", f"{meant}Commands: {', '.join(COMMANDS)}."
    if isinstance(problem, RepeatArgumentError):
        message = f"{problem.token.keyword} takes one value, and was given several times"
    return UsageError(
        message[0].lower() + message[1:],
        "\n  ".join(filter(None, (hint, f"'{chain} --help' lists what it takes."))),
        code="QD-USAGE-COMMAND-LINE",
    )
