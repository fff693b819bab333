"""Settings of a command: defaults, then a configuration file, then flags or keywords, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from qdebug.config.commands import Command, command_of
from qdebug.config.flag import Setting, settings_of
from qdebug.config.removed import REMOVED
from qdebug.config.words import suggestion, unknown_word
from qdebug.errors import UsageError, given_by
from qdebug.plan.planfile import model_for, named_model
from qdebug.wording import as_known, option
from qdebug.yamlfile import read_keys, taken_by

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SettingsT = TypeVar("SettingsT")
_SHORT = (str, int, float, type(None))
_SHOWN = 200
"""How many characters of a value are shown in a message."""
_NUMBERS = {"float_parsing": "number", "int_parsing": "whole number"}


@dataclass(frozen=True)
class Place:
    """Where a configuration file sets something.

    Attributes:
        where: file and line.
        text: the value as it is written there; "" of a list.
    """

    where: str
    key: str
    text: str
    value: Any

    def spelled(self, value: str | None) -> str:
        """What a message calls the setting; `value` is that of the file, or another one, as advice
        has it. See wording.option."""
        if value is None:
            return f"{self.where}: {self.key}"
        return (
            f"{self.key}: {value}" if value != self.text else f"{self.where}: {self.key}: {value}"
        )


def settings_in_file(command: Command, file: str | None) -> dict[str, Place]:
    """What a configuration file sets, by name; a key without a value stands for the default.

    Raises:
        UsageError: it cannot be read, is for another command, or has a key or a value of no use.
    """
    if file is None:
        return {}
    with given_by("config"):
        found = read_keys(Path(file), UsageError)
        settings = {s.name: s for s in settings_of(command.settings)}
        places = {}
        for key, (line, text, value) in found.items():
            name, wrong, hint = key.replace("-", "_"), "", ""
            if key == "command":
                if value not in (command.name, None):
                    wrong = f"command: must be '{command.name}' (got {value!r})"
                    hint = f"Run it with 'qdebug {value} --config FILE'."
            elif name not in settings:
                wrong = f"{key}: unknown key"
                known = ", ".join(s.key for s in settings.values())
                known = f"Known keys: {known}."
                hint = (taken_by(value) if key == "schema" else REMOVED.get(name)) or known
            elif not _is_plain(value, is_list=settings[name].is_list):
                wrong = f"{key}: must be one value{' or a list' * settings[name].is_list}"
            elif value is not None:
                places[name] = Place(f"{file}:{line}", key, text, value)
            if wrong:
                raise UsageError(f"{file}:{line}: {wrong}", hint, code="QD-USAGE-CONFIG-FILE")
    return places


def _is_plain(value: object, *, is_list: bool) -> bool:
    if isinstance(value, list):
        return is_list and not any(isinstance(item, list | dict) for item in value)
    return not isinstance(value, dict)


def settled(kind: type[SettingsT], given: Mapping[str, Any]) -> SettingsT:
    """Settings of a command, of values by name; None stands for the default. Where a plan is given
    and no model, the model is the one that the plan names.

    Raises:
        UsageError: an unknown name, a value that is not accepted, or a setting without a default
            is not given.
        QdebugError: an object in memory that cannot be used.
    """
    known = {setting.name: setting for setting in settings_of(kind)}
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise UsageError(
            f"{command_of(kind).name}() has no keyword '{unknown}'",
            REMOVED.get(unknown) or suggestion(unknown, known),
            code="QD-USAGE-KEYWORD",
        )
    values = {
        name: _plain(known[name], value)
        for name, value in given.items()
        if value is not None and not (_is_empty(value) and known[name].required)
    }
    if "model" in known and known["model"].required and "model" not in values:
        values |= _planned_model(values.get("plan"))
    for name, setting in known.items():
        if setting.required and name not in values:
            command = command_of(kind)
            raise UsageError(
                f"{option(name)} is missing",
                f"Write for example: {command.command_line}\n"
                f"  'qdebug {command.name} --help' lists the flags.",
                code="QD-USAGE-REQUIRED",
            )
    try:
        return kind(**values)
    except ValidationError as problem:
        raise _refusal(known, problem.errors()[0]) from None


def _planned_model(plans: Any) -> dict[str, str]:
    """The model that a plan names; of several plans the first that names one.

    Raises:
        PlanError: a plan cannot be read, or names no model that is there.
    """
    several = plans if isinstance(plans, list | tuple) else [plans]
    texts: list[str] = [plan for plan in several if isinstance(plan, str)]
    if not texts:
        return {}
    with given_by("plan"):
        named = {plan: named_model(plan) for plan in texts}
        plan = next((plan for plan, model in named.items() if model), texts[0])
        return {"model": model_for(plan, named[plan], hint=f"Give {option('model')}.")}


def _plain(setting: Setting, value: Any) -> Any:
    """A value as its type expects it: paths as text, one value as a list, known words as they are
    spelled.

    Raises:
        UsageError: text that nothing can be called.
    """
    several = list(value) if isinstance(value, list | tuple) else [value]
    if not setting.takes_objects:
        several = [os.fspath(v) if isinstance(v, os.PathLike) else v for v in several]
    for text in (v for v in several if isinstance(v, str)):
        if wrong := _wrong_with(text):
            raise _wrong_value(setting.name, text, wrong)
    if setting.choices:
        several = [as_known(v, setting.choices) if isinstance(v, str) else v for v in several]
    return several if setting.is_list or isinstance(value, list | tuple) else several[0]


def _is_empty(value: object) -> bool:
    """Whether it is what a variable that is not set leaves on a command line."""
    return isinstance(value, str) and not value


def _wrong_with(text: str) -> str:
    if not text:
        return "it is empty; give a value, or leave it out"
    if "\0" in text:
        return "it holds a zero byte"
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return "it holds half a character"
    return ""


def _refusal(known: Mapping[str, Setting], problem: ErrorDetails) -> UsageError:
    """The first problem that pydantic found, in words that name the setting."""
    name, value, what = str(problem["loc"][0]), problem["input"], problem["type"]
    if what == "literal_error":
        return unknown_word(name, _shown(value), str(value), known[name].choices)
    if what in _NUMBERS:
        about = (known[name].parameter.help or "").partition(". ")[0].rstrip(".")
        return UsageError(
            f"{option(name)}: {_shown(value)} is not a {_NUMBERS[what]}",
            f"What it is for: {about}.",
            code="QD-USAGE-VALUE",
        )
    message = str(problem["msg"]).removeprefix("Value error, ")
    return _wrong_value(name, value, message.replace("Input should be", "must be"))


def _wrong_value(name: str, value: object, wrong: str) -> UsageError:
    """The error of a value; after "; ", `wrong` may say what to write."""
    message, _, hint = wrong.partition("; ")
    message = message[0].lower() + message[1:]
    said = f"{_shown(value)}: {message}" if hint else f"{message}, not {_shown(value)}"
    return UsageError(
        f"{option(name)}: {said}",
        f"{hint[:1].upper()}{hint[1:]}." if hint else "",
        code="QD-USAGE-VALUE",
    )


def _shown(value: object) -> str:
    """A value in a message: as it was given, cut where it is long; of an object only its type."""
    if isinstance(value, list | tuple) and all(isinstance(item, _SHORT) for item in value):
        value = ",".join(map(str, value))
    if not isinstance(value, _SHORT):
        return f"a value of type {type(value).__name__}"
    text = str(value)
    return f"'{text}'" if len(text) <= _SHOWN else f"'{text[:_SHOWN]}…'"
