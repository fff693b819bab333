"""Results as data: frozen dataclasses whose fields are the JSON that programs read.

A result is a dataclass that derives from `Result`; the records in it are plain dataclasses. Their
fields are the keys of the JSON, in order, and properties marked with `in_json` follow them. What an
annotation cannot say by itself, a marker in it does: `Inline[Metrics]` puts the metrics' own keys
into the owner, `Hidden[…]` leaves a field out, and `MaybeText` is a string that is null where it is
empty. `to_json` and `json_schema` read the same declarations, so they cannot disagree.

JSON has no NaN and no infinities: such a number is null, and `non_finite` beside it says which it
was ("nan", "inf", "-inf"). In a list of numbers it is null.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, TypeVar

from qdebug.errors import required
from qdebug.outputfiles import check_new, write_bytes
from qdebug.wording import option

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Json:
    """How a field appears in the JSON, where that is not just its name and its value.

    Attributes:
        key: another key: for words that Python keeps to itself.
        inline: the keys of the field's record stand in the owner's object.
        hidden: it does not appear.
        empty_is_null: an empty string is null.
    """

    key: str = ""
    inline: bool = False
    hidden: bool = False
    empty_is_null: bool = False


Inline = Annotated[T, Json(inline=True)]
Hidden = Annotated[T, Json(hidden=True)]
MaybeText = Annotated[str, Json(empty_is_null=True)]


def in_json(getter: F) -> F:
    """Mark the getter of a property (below `@property`) as a part of the JSON."""
    marked: Any = getter
    marked.__in_json__ = True
    return getter


@dataclass(frozen=True)
class ModelRef:
    """The model that a result is about.

    Attributes:
        path: as the user gave it.
        sha256: of the file, in hexadecimal.
    """

    path: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's name, for titles."""
        return PurePath(self.path).name


@dataclass(frozen=True)
class FailedStage:
    """A stage of a command that ended in an error, after others had measured what the result holds.

    Attributes:
        stage: such as "causes", "page".
        code: a stable name of the error; "QD-INTERNAL" is a defect of qdebug.
        message: what went wrong, in one line. hint: what to do about it.
        exit_code: what the command line ends with.
        file: that was not written, where the stage was to write one.
    """

    stage: str
    code: str
    message: str
    hint: MaybeText
    exit_code: Hidden[int] = 3
    file: Hidden[str] = ""

    def __str__(self) -> str:
        hint = f"\n  {self.hint}" if self.hint else ""
        return f"{self.stage}: {self.message}{hint} [{self.code}]"


@dataclass(frozen=True)
class ReadData:
    """Samples that are no arrays, such as pictures, and how they became inputs of the model.

    Attributes:
        setting: that they were given by.
        path: as the user gave it.
        told: what they are, what was done to them, and where that was found.
        guess: nothing said what to do to them.
    """

    setting: str
    path: str
    told: str
    guess: bool


class Views(Protocol):
    """How results are shown to people."""

    def html(self, result: Result) -> str:
        """What the terminal shows, as HTML."""
        ...

    def summary(self, result: Any) -> str:
        """The sentences that open a comparison; "" where nothing was measured to say them."""
        ...

    def plan_text(self, result: Any) -> str:
        """The plan of a bisection or a repair as YAML, with the evidence as comments."""
        ...


class Result:
    """What a command found: to be read by programs, in notebooks, and by people.

    A subclass is a frozen dataclass (declared with `repr=False`) that names its JSON `SCHEMA`, such
    as "qdebug.compare/1", and in `ROWS` the field that `to_pandas` makes a table of.
    """

    SCHEMA: ClassVar[str]
    ROWS: ClassVar[str]
    VIEWS: ClassVar[Views]
    """How results are shown: `display`, which reads results and so stands above them, sets it when
    qdebug is imported."""
    failed: tuple[FailedStage, ...] = ()
    """Stages that ended in an error; a field of the results of commands that have several."""
    data: tuple[ReadData, ...] = ()
    """How samples were read that are no arrays; a field of the results of commands with samples."""

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON types: what `--json` writes, and what its JSON Schema describes."""
        return {"schema": self.SCHEMA, "headline": self.headline(), **to_json(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The result that `to_dict` made `data` of; what that leaves out has its default.

        Raises:
            ValueError: it is of another schema; see also `from_json`.
        """
        if data["schema"] != cls.SCHEMA:
            raise ValueError(f"the schema is {data['schema']!r}, not {cls.SCHEMA!r}")
        found: Self = from_json(cls, data)
        return found

    def to_pandas(self) -> Any:
        """The main table as a `pandas.DataFrame`: a row for each layer, tensor, method or
        combination, nested values under dotted names. NaN and infinities stay what they are.

        Raises:
            UsageError: pandas is not installed (QD-USAGE-PANDAS).
        """
        return data_frame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """The main table, a dict for each row; nested values are under dotted names."""
        found = getattr(self, self.ROWS)
        if isinstance(found, Mapping):
            return [{"name": name, **_flat(_plain(row))} for name, row in found.items()]
        return [_flat(_plain(row)) for row in found]

    def headline(self) -> str:
        """The result in one line."""
        return self.SCHEMA

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.headline()}>"

    def _repr_html_(self) -> str:
        """The result as a notebook shows it: what the terminal shows, as HTML."""
        return self.VIEWS.html(self)

    def _save(self, path: str | os.PathLike[str], text: str, force: bool) -> None:
        """Write a file that the result gives.

        Raises:
            StoreError: it exists and is not to be replaced, or cannot be written.
        """
        self._save_bytes(path, text.encode(), force)

    def _save_bytes(self, path: str | os.PathLike[str], data: bytes, force: bool) -> None:
        """Write a file that the result gives.

        Raises:
            StoreError: it exists and is not to be replaced, or cannot be written.
        """
        check_new(os.fspath(path), option("path"), force=force)
        write_bytes(os.fspath(path), data, option("path"), force=force)


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as a `pandas.DataFrame`.

    Raises:
        UsageError: pandas is not installed (QD-USAGE-PANDAS).
    """
    return required("pandas", "to_pandas", code="QD-USAGE-PANDAS").DataFrame(rows)


def to_json(value: Any) -> Any:
    """`value` as types that JSON has; see the module about NaN and infinities."""
    return _strict(_plain(value))


def from_json(kind: Any, data: Any) -> Any:
    """The value of type `kind` that `to_json` made `data` of.

    Fields that are hidden in the JSON, or that an earlier version did not write, get their
    defaults; keys that are not known are left out. A null in a list of numbers is NaN, whatever it
    was.

    Raises:
        TypeError: it was not made of such a value; or AttributeError, KeyError or ValueError.
    """
    kind, _ = _unmarked(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        if data is None and type(None) in arguments:
            return None
        kinds = tuple(a for a in arguments if a is not type(None))
        if len(kinds) == 1:
            return from_json(kinds[0], data)
        if not isinstance(data, kinds):  # of several, all are types that JSON has
            raise TypeError(f"{kind} is expected, not {data!r:.80}")
        return data
    if isinstance(origin, type) and issubclass(origin, Mapping):
        odd = data.get("non_finite", {})
        return {
            key: from_json(arguments[1], odd.get(key, value))
            for key, value in data.items()
            if key != "non_finite"
        }
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return tuple(from_json(arguments[0], item) for item in data)
    if kind is float:
        return math.nan if data is None else _float(data)
    if is_dataclass(kind):
        return _record_from(kind, data)
    if origin is None and not isinstance(data, kind) and not issubclass(kind, (Enum, PurePath)):
        raise TypeError(f"{kind.__name__} is expected, not {data!r:.80}")
    return data if origin is not None else kind(data)


def _float(data: Any) -> float:
    try:
        return float(data)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if data > 0 else -math.inf


def _record_from(record: Any, data: Mapping[str, Any]) -> Any:
    """A dataclass; its odd numbers are taken from "non_finite"."""
    odd = data.get("non_finite", {})
    own = {f.name for f in fields(record)}
    given: dict[str, Any] = {}
    for part in _parts(record):
        if part.attribute not in own:
            continue
        if part.how.inline:
            given[part.attribute] = from_json(part.kind, data)
        elif part.key in data:
            value = odd.get(part.key, data[part.key])
            empty = part.how.empty_is_null and value is None
            given[part.attribute] = "" if empty else from_json(part.kind, value)
    return record(**given)


@dataclass(frozen=True)
class _Part:
    """A key of a record's JSON: the attribute it is read from, and how."""

    attribute: str
    key: str
    kind: Any
    how: Json


@cache
def _parts(record: type) -> tuple[_Part, ...]:
    """The declared parts of a dataclass: its fields, then its marked properties."""
    hints = typing.get_type_hints(record, include_extras=True)
    found = [(f.name, hints[f.name]) for f in fields(record)]
    members = {n: m for base in reversed(record.__mro__) for n, m in vars(base).items()}
    for name, member in members.items():
        getter = getattr(member, "fget", None) or getattr(member, "func", None)
        if getattr(getter, "__in_json__", False):
            kind = typing.get_type_hints(getter, include_extras=True)["return"]
            found.append((name, kind))
    parts = []
    for name, annotated in found:
        kind, how = _unmarked(annotated)
        if not how.hidden:
            parts.append(_Part(name, how.key or name, kind, how))
    return tuple(parts)


def _unmarked(kind: Any) -> tuple[Any, Json]:
    """The type of an annotation, and how it appears."""
    if typing.get_origin(kind) is Annotated:
        inner, *marks = typing.get_args(kind)
        return inner, next((m for m in marks if isinstance(m, Json)), Json())
    return kind, Json()


def _plain(value: Any) -> Any:
    """`value` as dicts, lists and scalars, in which floats are what they are."""
    if is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {}
        for part in _parts(type(value)):
            item = getattr(value, part.attribute)
            if part.how.inline:
                found |= _plain(item)
            else:
                found[part.key] = None if part.how.empty_is_null and not item else _plain(item)
        return found
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):  # an array or a scalar of numpy
        return value.tolist()
    if isinstance(value, Set):
        return sorted(map(_plain, value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


def _strict(value: Any) -> Any:
    """`value` without NaN and infinities."""
    if isinstance(value, dict):
        flags = {key: _spelled(item) for key, item in value.items() if _odd(item)}
        cleaned = {key: _strict(item) for key, item in value.items()}
        return cleaned | {"non_finite": flags} if flags else cleaned
    if isinstance(value, list):
        return [_strict(item) for item in value]
    return None if _odd(value) else value


def _odd(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _spelled(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def json_schema(result: type[Result], *, closed: bool = False) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what `to_dict` of a result gives.

    Args:
        closed: refuse keys that are not declared. The published schemas do not: results may grow.
    """
    walk = _Schemas(closed)
    body = walk.record(result)
    properties = {
        "schema": {"const": result.SCHEMA},
        "headline": {"type": "string", "description": "The result in a sentence."},
        **body["properties"],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": result.SCHEMA,
        **body,
        "properties": properties,
        "required": ["schema", *body["required"]],
        "$defs": dict(sorted(walk.definitions.items())),
    }


class _Schemas:
    """Makes schemas of types; records go to `definitions`, each once."""

    def __init__(self, closed: bool) -> None:
        self.definitions: dict[str, Any] = {}
        self._closed = closed
        self._known: dict[str, type] = {}

    def record(self, record: type) -> dict[str, Any]:
        """Of a dataclass."""
        properties: dict[str, Any] = {}
        told = _told(record)
        for part in _parts(record):
            if part.how.inline:
                properties |= self.record(part.kind)["properties"]
                properties.pop("non_finite", None)
                continue
            schema = self.of(part.kind)
            if part.how.empty_is_null:
                schema = {"type": ["string", "null"]}
            text = told.get(part.attribute)
            properties[part.key] = {**schema, "description": text} if text else schema
        required = list(properties)
        if any(_may_be_odd(schema) for schema in properties.values()):
            properties["non_finite"] = _NON_FINITE
        found: dict[str, Any] = {"type": "object"}
        if summary := _summary(record):
            found["description"] = summary
        found |= {"properties": properties, "required": required}
        return found | ({"additionalProperties": False} if self._closed else {})

    def of(self, annotated: Any) -> dict[str, Any]:
        """Of any type that occurs in a result."""
        kind, how = _unmarked(annotated)
        if how.empty_is_null:
            return {"type": ["string", "null"]}
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind in _SCALARS:
            return dict(_SCALARS[kind])
        if origin in (typing.Union, UnionType):
            return _either([self.of(a) for a in arguments])
        if origin is Literal:
            return {"enum": list(arguments)}
        if isinstance(origin, type):
            return self._container(origin, arguments)
        if issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        record: type = kind
        return self._reference(record) if is_dataclass(kind) else {"type": "string"}  # a path

    def _container(self, origin: type, arguments: Sequence[Any]) -> dict[str, Any]:
        if issubclass(origin, Mapping):
            values = self.of(arguments[1])
            found = {"type": "object", "additionalProperties": values}
            return found | (
                {"properties": {"non_finite": _NON_FINITE}} if _may_be_odd(values) else {}
            )
        if issubclass(origin, (Sequence, Set)):
            return {"type": "array", "items": self.of(arguments[0])}
        raise TypeError(f"no JSON Schema is known for {origin.__name__}")

    def _reference(self, record: type) -> dict[str, Any]:
        name = record.__name__
        if self._known.setdefault(name, record) is not record:
            raise TypeError(f"two records are called {name}")
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = self.record(record)
        return {"$ref": f"#/$defs/{name}"}


_SCALARS: Mapping[Any, Mapping[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},
    type(None): {"type": "null"},
}
_NON_FINITE = {
    "type": "object",
    "description": "Which of the numbers here are null because they are not finite.",
    "additionalProperties": {"enum": ["nan", "inf", "-inf"]},
}


def _may_be_odd(schema: Mapping[str, Any]) -> bool:
    return "number" in schema.get("type", ())


def _either(options: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One schema for several; simple types share one list."""
    if all(set(option) == {"type"} for option in options):
        kinds: dict[str, None] = {}
        for option in options:
            kind = option["type"]
            kinds |= dict.fromkeys([kind] if isinstance(kind, str) else kind)
        return {"type": list(kinds)}
    return {"anyOf": list(options)}


def _summary(record: type) -> str:
    """The first paragraph of a docstring; nothing for one that Python wrote."""
    text = inspect.cleandoc(record.__doc__ or "")
    if text.startswith(f"{record.__name__}("):
        return ""
    return re.sub(r"\s+", " ", text.split("\n\n")[0])


@cache
def _told(record: type) -> Mapping[str, str]:
    """What the "Attributes:" of a docstring, the docstring of a property, or the metadata of a
    field ("description") say of each part."""
    told: dict[str, str] = {}
    if is_dataclass(record):
        about = ((f.name, f.metadata.get("description")) for f in fields(record))
        told = {name: text for name, text in about if text}
    for base in reversed(record.__mro__):
        for name, member in vars(base).items():
            if isinstance(member, property) and member.__doc__:
                told[name] = re.sub(r"\s+", " ", member.__doc__.strip())
        text = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        for names, words in re.findall(
            r"^    (\w[\w, ]*):((?:.*\n?(?:^     +.*\n?)*))", text, re.M
        ):
            told |= dict.fromkeys(names.split(", "), re.sub(r"\s+", " ", words).strip())
    return told
