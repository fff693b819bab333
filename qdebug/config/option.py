"""How a setting is declared: once, in a settings dataclass, next to its type.

    precision: Annotated[PrecisionName | None, Option("Precision of …", WHAT, unset="int8")] = None

The command line, configuration files, Python keywords, help texts and the reference pages derive
from these declarations; nothing here knows the library that parses a command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Lt

FIRST = "The flags that matter first"
WHAT, AXES = "For the usual work", "What to try (several values with commas)"
PRECISIONS = "For choosing precisions and ranges yourself"
SAMPLED = "For choosing the samples"
QUANTIZED = "For models that are already quantized"
LOOK = "For a closer look at the result"
SEARCH, GATE = "For steering the search", "For acceptance limits, as in CI"
LARGE = "For large or unusual models"
ENGINE, TENSORRT = "For running on another backend", "For TensorRT engines"
CLUSTER = "For several processes or machines"
WRITE, OUTPUT = "For writing more files", "For scripts and the terminal"
GROUPS = (
    *("", FIRST, WHAT, AXES, QUANTIZED, SAMPLED, PRECISIONS, LOOK, GATE, SEARCH, LARGE),
    *(ENGINE, TENSORRT, CLUSTER, WRITE, OUTPUT),
)
"""Headings of help texts and reference pages, in their order, which say for whom the flags are; ""
is for positional arguments. Those that a command names as first stand under FIRST."""


@dataclass(frozen=True)
class Option:
    """What is declared of a setting besides its name, type and default.

    Attributes:
        help: one or two sentences; of a switch, what it does when it is on.
        group: the heading that it stands under.
        metavar: what stands for its value in help texts; "" for the choices or the type.
        flag: the flag, where it is not the setting's name.
        short: a one-letter flag, such as "-o".
        positional: given by position on the command line; `metavar` is then its name in messages.
        unset: what a default of None or () means, for help texts.
        off: of a switch that is on by default: help of the flag that turns it off.
        parse: turns a value as a user writes it into what the type describes. Raises ValueError.
        words: those that it takes, where a registry lists them.
        reads: the path of a file that is read.
        writes: the path of a file that is written: "new" may replace one only where the setting
            `force` is on, "resumed" also where it is what an unfinished repair left, "any" always
            may. "own" is checked by the command itself.
        suffixes: of a file that is written, how its name may end; a name that ends as another kind
            of file does is refused.
        count: how often the flag is given is its value.
    """

    help: str
    group: str = ""
    metavar: str = ""
    flag: str = ""
    short: str = ""
    positional: bool = False
    unset: str = ""
    off: str = ""
    parse: Callable[[Any], Any] | None = None
    words: tuple[str, ...] = ()
    reads: bool = False
    writes: Literal["", "new", "resumed", "any", "own"] = ""
    suffixes: tuple[str, ...] = ()
    count: bool = False


@dataclass(frozen=True)
class AsObject:
    """Marks a type that Python callers may give as an object; as text it is a path or a name.

    Attributes:
        what: how it is converted, in config.objects.
        python: the annotation for Python callers.
        takes_sequences: a list or a tuple is one such object, not several.
    """

    what: str
    python: str
    takes_sequences: bool = False


_PATH = "str | os.PathLike[str]"
_DATA = f"{_PATH} | Mapping[str, ArrayLike] | Iterable[Feeds]"
_CALIBRATION = f"{_PATH} | CalibrateResult | PrecisionPlan | Mapping[str, float]"
_RESULT = (
    "CompareResult | CalibrateResult | RangesResult | BisectResult | RepairResult | SweepResult | "
    "InspectResult"
)

ModelLike = Annotated[Any, AsObject("model", f"{_PATH} | onnx.ModelProto")]
DataLike = Annotated[Any, AsObject("data", _DATA, takes_sequences=True)]
MetricLike = Annotated[Any, AsObject("metric", "str | Callable[..., float]")]
CalibratorLike = Annotated[Any, AsObject("calibrator", "str | Callable[..., float]")]
CalibrationLike = Annotated[Any, AsObject("calibration", _CALIBRATION)]
PreprocessingLike = Annotated[Any, AsObject("preprocessing", f"{_PATH} | Preprocessing")]
PlanLike = Annotated[Any, AsObject("plan", f"{_PATH} | PrecisionPlan | BisectResult | Run")]
ResultLike = Annotated[Any, AsObject("result", f"{_PATH} | Run | {_RESULT}")]
RunLike = Annotated[Any, AsObject("run", f"{_PATH} | CompareResult | Run")]

Positive = Annotated[int, Gt(0)]
BlockSize = Annotated[int, Ge(16)]
Share = Annotated[float, Gt(0), Lt(1)]
Level = Annotated[int, Ge(0), Lt(6)]


@dataclass(frozen=True)
class Setting:
    """One declared setting.

    Attributes:
        name: as Python callers write it.
        hint: its type, with what restricts it, without the Option.
        default: dataclasses.MISSING where it must be given.
    """

    name: str
    hint: Any
    default: Any
    option: Option

    @property
    def key(self) -> str:
        """The name in configuration files."""
        return self.name.replace("_", "-")

    @property
    def flag(self) -> str:
        """The flag, or the metavar of a positional argument."""
        if self.option.positional:
            return self.option.metavar or self.name.upper()
        return self.option.flag or f"--{'no-' * (self.default is True)}{self.key}"

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is dataclasses.MISSING

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.hint is bool

    @property
    def is_list(self) -> bool:
        """Whether it takes several values."""
        return any(get_origin(part) is tuple for part in _parts(self.hint))

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it takes, where these are words."""
        return self.option.words or tuple(
            word
            for part in _parts(self.hint)
            if get_origin(part) is Literal
            for word in get_args(part)
        )

    @property
    def type_name(self) -> str:
        """The kind of value, in a word."""
        if self.is_switch:
            return "switch"
        if self.choices:
            return "choice"
        parts = set(_parts(self.hint))
        return "integer" if int in parts else "number" if float in parts else "text"

    @property
    def shown_default(self) -> str:
        """The default as a user would write it, or what leaving it out means; "" for none."""
        if self.option.unset or self.required or self.default in (None, (), ""):
            return self.option.unset
        if self.is_switch:
            return "on" if self.default else "off"
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        return str(self.default)

    @property
    def python_type(self) -> str:
        """The annotation that a Python caller sees."""
        return _python(self.hint)

    @property
    def keyword_type(self) -> str:
        """The same with what is converted: a Path for a file, and text where text is parsed."""
        found = self.python_type
        if (self.option.reads or self.option.writes) and _PATH not in found:
            found = found.replace("str", _PATH)
        if self.option.parse is not None and found.startswith("int"):
            found = "int | str" + found.removeprefix("int")
        return found

    @property
    def as_object(self) -> AsObject | None:
        """What Python callers may give in place of a path or a name."""
        return next((part for part in _parts(self.hint) if isinstance(part, AsObject)), None)


def settings_of(kind: type[Any]) -> tuple[Setting, ...]:
    """What a settings dataclass declares, in the order of its groups."""
    if kind not in _KNOWN:
        _KNOWN[kind] = _settings_of(kind)
    return _KNOWN[kind]


_KNOWN: dict[type[Any], tuple[Setting, ...]] = {}


def _settings_of(kind: type[Any]) -> tuple[Setting, ...]:
    hints = get_type_hints(kind, include_extras=True)
    found = [_setting(field, hints[field.name]) for field in dataclasses.fields(kind)]
    return tuple(sorted(found, key=lambda s: (GROUPS.index(s.option.group), s.option.count)))


def flags_of(kind: type[Any]) -> dict[str, str]:
    """The flag of each setting that `kind` declares, by its name."""
    return {setting.name: setting.flag for setting in settings_of(kind)}


def _setting(field: dataclasses.Field[Any], hint: Any) -> Setting:
    options = [extra for extra in get_args(hint) if isinstance(extra, Option)]
    assert options, f"the setting '{field.name}' is declared without an Option"
    others = tuple(extra for extra in get_args(hint)[1:] if not isinstance(extra, Option))
    bare = get_args(hint)[0]
    bare = Annotated[(bare, *others)] if others else bare
    return Setting(field.name, bare, field.default, options[0])


def _parts(hint: Any) -> list[Any]:
    """The types and marks that a hint is made of."""
    inner = [] if get_origin(hint) is Literal else get_args(hint)
    return [hint, *(part for each in inner for part in _parts(each))]


def _python(hint: Any) -> str:
    """The source of an annotation, without marks and bounds."""
    origin = get_origin(hint)
    if origin is Annotated:
        marks = [m.python for m in get_args(hint)[1:] if isinstance(m, AsObject)]
        return marks[0] if marks else _python(get_args(hint)[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, get_args(hint)))}]"
    if origin is tuple:
        return f"Sequence[{_python(get_args(hint)[0])}]"
    if origin is not None:
        return " | ".join(_python(part) for part in get_args(hint))
    return "None" if hint is type(None) else str(hint.__name__)
