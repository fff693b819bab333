"""Defaults, then a configuration file, then flags, into one frozen record of settings."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model
from pydantic import Field as FileField

from qdebug.errors import UsageError, given_by
from qdebug.yamlfile import read_yaml

SettingsT = TypeVar("SettingsT")


def parse_bytes(flag: str, text: object) -> int:
    """Bytes for "512M", "2G", "1.5GiB" or a plain number, given for `flag`.

    Raises:
        UsageError: it is none of these.
    """
    units = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
    body = str(text).strip().lower().removesuffix("b").removesuffix("i")
    unit = body[-1:] if body[-1:] in units else ""
    try:
        value = float(body.removesuffix(unit) if unit else body)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{flag}: '{text}' is no size", "Write for example 512M or 2G.")
    return int(value * 2 ** units[unit])


MemoryBudget = Annotated[int, BeforeValidator(partial(parse_bytes, "--memory-budget"))]
Workspace = Annotated[int, BeforeValidator(partial(parse_bytes, "--workspace"))]
"""Sizes, which may be written as 512M."""

_EXAMPLES = {
    "compare": "model.onnx --inputs samples.npz",
    "calibrate": "model.onnx --calib-data calib.npz -o scales.yaml",
    "bisect": "model.onnx --inputs samples.npz --target 'output.cosine>=0.999'",
    "sweep": "model.onnx --inputs samples.npz --precision int8,fp16",
}

Positive = Annotated[int, FileField(gt=0)]
Share = Annotated[float, FileField(gt=0, lt=1)]


def values_of(given: object) -> tuple[str, ...]:
    """Several values, each once, from "a,b", from one value, or from a list of either."""
    items = given if isinstance(given, (list, tuple)) else [given]
    # YAML reads off and on as truth values.
    texts = [{True: "on", False: "off"}[i] if isinstance(i, bool) else str(i) for i in items]
    parts = (part.strip() for text in texts for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def resolve(
    kind: type[SettingsT],
    command: str,
    flags: Mapping[str, Any],
    file: Path | None,
    derive: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> SettingsT:
    """Settings from the defaults of `kind`, then `file`, then `flags` (one that is None or empty
    was not given).

    Args:
        derive: more settings, from those that were given.

    Raises:
        UsageError: the file is not valid, a value is none of the choices, or a setting without a
            default is nowhere.
    """
    values: dict[str, Any] = {}
    if file is not None:
        with given_by("config"):
            read = read_yaml(file, file_schema(kind, command), UsageError)
        values = {k: v for k, v in read.model_dump().items() if v is not None and k != "command"}
    values |= {k: v for k, v in flags.items() if v is not None and v != ()}
    values |= derive(values) if derive is not None else {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        required = field.default is dataclasses.MISSING
        if required and not values.get(field.name):
            flag = "MODEL" if field.name == "model" else flag_of(field.name)
            raise UsageError(f"{flag} is missing", _example(command))
    for name, hint in _hints(kind).items():
        if name in values:
            values[name] = _checked(name, values[name], hint)
    return kind(**values)


def file_schema(kind: type[Any], command: str) -> type[BaseModel]:
    """What a configuration file for `kind` may hold: every setting, under the flag's name.
    Paths in it are relative to the working directory."""
    fields: dict[str, Any] = {"command": (Literal[command], command)}
    for name, hint in _hints(kind).items():
        fields[name] = (hint | None, FileField(None))
    options = ConfigDict(
        extra="forbid", alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )
    return create_model(f"{kind.__name__}File", __config__=options, **fields)


def flag_of(name: str) -> str:
    """The flag that gives the setting `name`."""
    return f"--{name.replace('_', '-')}"


def _example(command: str) -> str:
    example = _EXAMPLES.get(command)
    more = f"'qdebug {command} --help' lists all flags."
    return f"Write for example: qdebug {command} {example}\n  {more}" if example else more


def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _checked(name: str, value: Any, hint: Any) -> Any:
    """`value`, a flag's, as its type asks; files were checked while they were read."""
    for kind in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if get_origin(kind) is Annotated:
            validators: list[Any] = [v for v in get_args(kind)[1:] if hasattr(v, "func")]
            for validator in validators:
                value = validator.func(value)
        plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        if get_origin(plain) is Literal:
            _check_choice(name, value, get_args(plain))
        if get_origin(plain) is tuple:
            for each in value:
                _checked(name, each, get_args(plain)[0])
    return value


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        close = difflib.get_close_matches(value, known, n=1)
        hint = f"Did you mean '{close[0]}'? " if close else ""
        raise UsageError(
            f"{flag_of(name)}: unknown value '{value}'", f"{hint}Known: {', '.join(known)}."
        )
