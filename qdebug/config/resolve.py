"""Defaults, then a configuration file, then flags or keywords, into one frozen settings record."""

from __future__ import annotations

import difflib
import functools
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from qdebug.config.commands import command_of
from qdebug.config.option import AsObject, Setting, settings_of
from qdebug.config.removed import REMOVED
from qdebug.errors import UsageError, given_by
from qdebug.wording import as_known, option
from qdebug.yamlfile import keys_in, read_yaml

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SettingsT = TypeVar("SettingsT")
_FEW = 12
"""How many known names are listed where one is unknown, besides the closest one."""
_SHORT = (str, int, float, type(None))
_SHOWN = 200
"""How many characters of a value are shown in a message."""
Derive = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def from_flags(
    kind: type[SettingsT],
    flags: Mapping[str, Any],
    file: str | None = None,
    derive: Derive | None = None,
) -> SettingsT:
    """Settings from the defaults of `kind`, then the configuration `file`, then `flags`.

    Args:
        kind: a settings dataclass.
        flags: by the names of the settings, as text where they are not switches.
        file: the path of a YAML file.
        derive: further settings, from those that were given, where one is missing.

    Raises:
        UsageError: the file is not valid, a value is not accepted, or a setting without a default
            is given nowhere.
    """
    command = command_of(kind)
    values: dict[str, Any] = {}
    if file is not None:
        with given_by("config"):
            read = read_yaml(Path(file), file_schema(kind), UsageError)
        values = {name: getattr(read, name) for name in read.model_fields_set - {"command"}}
        values = {name: value for name, value in values.items() if value is not None}
    values |= validated(kind, flags)
    more = f"'qdebug {command.name} --help' lists all flags."
    return _settled(kind, values, derive, f"Write for example: {command.command_line}\n  {more}")


@dataclass(frozen=True)
class Place:
    """Where a configuration file sets something: `where` is file and line; see `places_in_file`."""

    where: str
    key: str
    text: str

    def spelled(self, value: str | None) -> str:
        """What a message calls the setting; `value` is that of the file, or another one, as advice
        has it. See wording.option."""
        if value is None:
            return f"{self.where}: {self.key}"
        return (
            f"{self.key}: {value}" if value != self.text else f"{self.where}: {self.key}: {value}"
        )


def places_in_file(kind: type[Any], flags: Mapping[str, Any], file: str | None) -> dict[str, Place]:
    """Where the configuration file sets what no flag sets, by name. Nothing of a file that cannot
    be read."""
    keys = keys_in(Path(file)) if file is not None else {}
    found = {}
    for setting in settings_of(kind):
        name = setting.name
        key = next((k for k in (name.replace("_", "-"), name) if k in keys), None)
        if key is not None and flags.get(name) is None:
            line, text = keys[key]
            found[name] = Place(f"{file}:{line}", key, text)
    return found


def from_keywords(
    kind: type[SettingsT], given: Mapping[str, Any], derive: Derive | None = None
) -> SettingsT:
    """Settings from the defaults of `kind`, then Python keywords.

    The same checks as for flags; objects as well as paths, where the settings allow them.

    Raises:
        UsageError: an unknown keyword, a value that is not accepted, or a setting without a default
            is not given.
    """
    return _settled(kind, validated(kind, given, in_memory=True), derive, "")


def file_schema(kind: type[Any]) -> type[BaseModel]:
    """What a configuration file for `kind` may hold: every setting, under its name with hyphens.
    Paths in it are relative to the working directory."""
    return _schema(kind, in_memory=False)


def _settled(
    kind: type[SettingsT], values: dict[str, Any], derive: Derive | None, example: str
) -> SettingsT:
    def missing() -> list[str]:
        required = (s.name for s in settings_of(kind) if s.required)
        return [
            name
            for name in required
            if values.get(name) is None or (isinstance(values[name], str) and not values[name])
        ]

    if derive is not None and missing():
        values |= derive(values)
    if names := missing():
        raise UsageError(f"{option(names[0])} is missing", example, code="QD-USAGE-REQUIRED")
    return kind(**values)


def validated(
    kind: type[Any], given: Mapping[str, Any], *, in_memory: bool = False
) -> dict[str, Any]:
    """What was given, less what is None, checked and converted as the types of `kind` ask.

    Args:
        kind: a dataclass that declares settings.
        given: by their names.
        in_memory: also take objects, where the settings allow them.

    Raises:
        UsageError: an unknown name, or a value that is not accepted.
    """
    values = {name: value for name, value in given.items() if value is not None}
    try:
        read = _schema(kind, in_memory=in_memory).model_validate(values)
    except ValidationError as problem:
        raise _error(kind, problem.errors()) from None
    return {name: getattr(read, name) for name in values}


def _schema(kind: type[Any], *, in_memory: bool) -> type[BaseModel]:
    if (kind, in_memory) not in _SCHEMAS:
        _SCHEMAS[kind, in_memory] = _schema_of(kind, in_memory=in_memory)
    return _SCHEMAS[kind, in_memory]


_SCHEMAS: dict[tuple[type[Any], bool], type[BaseModel]] = {}
"""Each takes pydantic 10 ms."""


def _schema_of(kind: type[Any], *, in_memory: bool) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    if not in_memory:
        fields["command"] = (Literal[command_of(kind).name], Field(None))
    for setting in settings_of(kind):
        accepted = _accepted(setting, in_memory=in_memory)
        fields[setting.name] = (accepted | None, Field(None))
    options = ConfigDict(
        extra="forbid",
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
        arbitrary_types_allowed=True,
        coerce_numbers_to_str=True,
    )
    return create_model(f"{kind.__name__}Given", __config__=options, **fields)


def _accepted(setting: Setting, *, in_memory: bool) -> Any:
    """The type of a setting for pydantic."""
    hint = setting.hint if in_memory else _as_text(setting.hint)
    if setting.option.words:
        hint = Literal[setting.option.words]
    if setting.choices:
        known = functools.partial(_spelled_as, known=setting.choices)
        hint = Annotated[hint, BeforeValidator(known)]
    parse = setting.option.parse
    if parse is not None:
        hint = Annotated[hint, BeforeValidator(lambda v: None if v is None else parse(v))]
    if setting.is_list:
        hint = Annotated[hint, BeforeValidator(_as_list)]
    if not setting.required:  # else it counts as missing
        hint = Annotated[hint, BeforeValidator(_not_empty)]
    return Annotated[hint, BeforeValidator(_as_path)]


def _as_text(hint: Any) -> Any:
    """`hint`, where everything that may be an object in memory is text."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated and any(isinstance(mark, AsObject) for mark in parts[1:]):
        return str
    if origin in (None, Annotated, Literal):
        return hint
    if origin is tuple:
        return GenericAlias(tuple, (_as_text(parts[0]), ...))
    return functools.reduce(operator.or_, map(_as_text, parts))


def _spelled_as(value: object, known: tuple[str, ...]) -> object:
    """One or several words, spelled as `known` has them: INT8 is int8."""
    if isinstance(value, list | tuple):
        return type(value)(_spelled_as(item, known) for item in value)
    return as_known(value, known) if isinstance(value, str) else value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) or callable(value) else value


def _not_empty(value: object) -> object:
    """Not what a variable that is not set leaves on a command line."""
    if any(isinstance(v, str) and not v for v in (value if isinstance(value, list) else [value])):
        raise ValueError("it is empty; give a value, or leave it out")
    return value


def _as_path(value: object) -> object:
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("it holds a zero byte")
        try:
            os.fsencode(value)
        except UnicodeEncodeError as error:
            raise ValueError("it holds half a character") from error
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _error(kind: type[Any], problems: list[ErrorDetails]) -> UsageError:
    """The first problem, in words that name the setting."""
    problem = problems[0]
    name, value = str(problem["loc"][0]), problem["input"]
    shown = _shown(value)
    known = {setting.name: setting for setting in settings_of(kind)}
    if problem["type"] == "extra_forbidden":
        return UsageError(
            f"{command_of(kind).name}() has no keyword '{name}'",
            REMOVED.get(name) or _suggestion(name, tuple(known)),
            code="QD-USAGE-KEYWORD",
        )
    if problem["type"] == "literal_error":
        return UsageError(
            f"{option(name)}: unknown value {shown}",
            REMOVED.get(f"{name}={value}") or _suggestion(str(value), known[name].choices),
            code="QD-USAGE-CHOICE",
        )
    if problem["type"] in ("float_parsing", "int_parsing"):
        return UsageError(
            f"{option(name)}: {shown} is not a {_NUMBERS[problem['type']]}",
            f"What it is for: {known[name].option.help.partition('. ')[0].rstrip('.')}.",
            code="QD-USAGE-VALUE",
        )
    message = str(problem["msg"]).removeprefix("Value error, ")
    message = message.replace("Input should be", "must be")
    message, _, hint = message.partition("; ")
    return UsageError(
        f"{option(name)}: {message[0].lower()}{message[1:]}, not {shown}"
        if not hint
        else f"{option(name)}: {shown}: {message}",
        f"{hint[:1].upper()}{hint[1:]}." if hint else "",
        code="QD-USAGE-VALUE",
    )


_NUMBERS = {"float_parsing": "number", "int_parsing": "whole number"}


def _shown(value: object) -> str:
    """A value in a message: as it was given, cut where it is long; of an object only its type."""
    if isinstance(value, list | tuple) and all(isinstance(item, _SHORT) for item in value):
        value = ",".join(map(str, value))
    if not isinstance(value, _SHORT):
        return f"a value of type {type(value).__name__}"
    text = str(value)
    return f"'{text}'" if len(text) <= _SHOWN else f"'{text[:_SHOWN]}…'"


_OTHER_FORMATS = frozenset(("int4", "int16", "uint8", "fp4", "fp64", "tf32"))
"""Formats that exist, and that nobody means another one by."""


def _suggestion(word: str, known: tuple[str, ...]) -> str:
    typed = word.lower() not in _OTHER_FORMATS
    close = difflib.get_close_matches(word, known, n=1) if typed else []
    meant = f"Did you mean '{close[0]}'?{' ' * (len(known) <= _FEW)}" if close else ""
    return meant if meant and len(known) > _FEW else f"{meant}Known: {', '.join(known)}."
