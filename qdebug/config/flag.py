"""How a setting is declared: once, in a frozen pydantic dataclass, as a field with its Parameter.

    samples: Annotated[Positive | None, Parameter(help="Use the first N …", group=SAMPLED)] = None

The command line, configuration files, Python keywords, help texts and the reference pages read
these fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Gt
from cyclopts import Group, Parameter
from pydantic import ConfigDict

CHECKED = ConfigDict(extra="forbid", coerce_numbers_to_str=True, defer_build=True)
"""How pydantic reads every settings class."""

GROUPS = tuple(
    Group(title, sort_key=place)
    for place, title in enumerate(
        (
            "Arguments",
            "The flags that matter first",
            "For the usual work",
            "What to try (several values with commas)",
            "For models that are already quantized",
            "For choosing the samples",
            "For choosing precisions and ranges yourself",
            "For a closer look at the result",
            "For acceptance limits, as in CI",
            "For steering the search",
            "For large or unusual models",
            "For running on another backend",
            "For TensorRT engines",
            "For several processes or machines",
            "For writing more files",
            "For scripts and the terminal",
        )
    )
)
"""Headings of help texts and reference pages, in their order. Those of the group ARGUMENT are given
by their place; the settings that a command names as first stand under FIRST."""
ARGUMENT, FIRST, WHAT, AXES, QUANTIZED, SAMPLED, PRECISIONS, LOOK = GROUPS[:8]
GATE, SEARCH, LARGE, ENGINE, TENSORRT, CLUSTER, WRITE, OUTPUT = GROUPS[8:]


@dataclass(frozen=True)
class File:
    """Marks a setting that is the path of a file.

    Attributes:
        written: "" of a file that is read. "new" may replace one only where the setting `force` is
            on, "resumed" also where it is what an unfinished repair left, "own" is checked by the
            command itself.
        suffixes: how the name of a file that is written may end, the usual one first; a name that
            ends as another kind of file does is refused.
    """

    written: Literal["", "new", "resumed", "own"] = ""
    suffixes: tuple[str, ...] = ()


@dataclass(frozen=True)
class InPython:
    """Marks a setting that takes objects besides paths or names: their types, for the reference."""

    types: str


ReadPath = Annotated[str, File()]
Positive = Annotated[int, Gt(0)]


@dataclass(frozen=True)
class Setting:
    """One field of a settings class.

    Attributes:
        name: as Python callers write it.
        parts: the types and marks that its type is made of.
        default: dataclasses.MISSING where it must be given.
    """

    name: str
    parts: tuple[Any, ...]
    default: Any
    parameter: Parameter

    @property
    def key(self) -> str:
        """The name in configuration files."""
        return self.name.replace("_", "-")

    @property
    def positional(self) -> bool:
        """Whether it is given by its place."""
        return self.group is ARGUMENT

    @property
    def group(self) -> Group:
        """The heading that it stands under."""
        groups: Any = self.parameter.group
        group: Group = groups[0]
        return group

    @property
    def flags(self) -> tuple[str, ...]:
        """The flag and a short one, or the metavar of an argument."""
        if self.positional:
            return (self.parameter.metavar or self.name.upper(),)
        long = f"--{'no-' * (self.default is True)}{self.key}"
        names: Any = self.parameter.name
        return tuple(names or ()) or (long,)

    @property
    def flag(self) -> str:
        """The flag that messages name."""
        return self.flags[0]

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is dataclasses.MISSING

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return bool in self.parts

    @property
    def counts(self) -> bool:
        """Whether it is how often its flag is given."""
        return bool(self.parameter.count)

    @property
    def is_list(self) -> bool:
        """Whether it takes several values."""
        return any(get_origin(part) is tuple for part in self.parts)

    @property
    def takes_objects(self) -> bool:
        """Whether a Python caller may give it as an object."""
        return any(isinstance(part, InPython) for part in self.parts)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it takes, where these are words."""
        literals = (get_args(part) for part in self.parts if get_origin(part) is Literal)
        return tuple(word for words in literals for word in words)

    @property
    def shown_default(self) -> str:
        """The default as a user would write it, or what leaving it out means; "" for none."""
        said = self.parameter.show_default
        if said or self.required or self.is_switch or self.default in (None, (), ""):
            return str(said or "")
        return ",".join(self.default) if isinstance(self.default, tuple) else str(self.default)

    @property
    def file(self) -> File | None:
        """How it names a file, if it does."""
        return next((part for part in self.parts if isinstance(part, File)), None)

    @property
    def written(self) -> str:
        """How it names a file that is written; "" where it names none."""
        return self.file.written if self.file else ""


def _settings_of(kind: type[Any]) -> tuple[Setting, ...]:
    hints = get_type_hints(kind, include_extras=True)
    found = [_setting(field, hints[field.name]) for field in dataclasses.fields(kind)]
    return tuple(sorted(found, key=lambda s: (GROUPS.index(s.group), s.counts)))


settings_of: Callable[[Any], tuple[Setting, ...]] = cache(_settings_of)
"""What a settings class declares, in the order of the groups."""


def _setting(field: dataclasses.Field[Any], hint: Any) -> Setting:
    parts = tuple(_parts(hint))
    parameter = next((part for part in parts if isinstance(part, Parameter)), None)
    assert parameter, f"the setting '{field.name}' is declared without a Parameter"
    return Setting(field.name, parts, field.default, parameter)


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for part in () if get_origin(hint) is Literal else get_args(hint):
        yield from _parts(part)
