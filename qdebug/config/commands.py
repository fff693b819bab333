"""The commands: the settings of each, and how its results are shown. Help and reference read
this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from qdebug.config.bisect import BisectSettings
from qdebug.config.calibrate import CalibrateSettings
from qdebug.config.candidate import FORCE
from qdebug.config.check import CheckSettings
from qdebug.config.compare import CompareSettings
from qdebug.config.diff import DiffSettings
from qdebug.config.export import ExportSettings
from qdebug.config.init import InitSettings
from qdebug.config.inspect import InspectSettings
from qdebug.config.option import (
    FIRST,
    GROUPS,
    LOOK,
    OUTPUT,
    WRITE,
    Option,
    Positive,
    Setting,
    settings_of,
)
from qdebug.config.ranges import RangesSettings
from qdebug.config.repair import RepairSettings
from qdebug.config.report import ReportSettings
from qdebug.config.sweep import SweepSettings
from qdebug.config.view import ViewSettings


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What only the command line has: how much it prints."""

    verbose: Annotated[
        int,
        Option(
            "Log what is done; -vv also shows where errors come from.",
            OUTPUT,
            short="-v",
            count=True,
        ),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class ShownAsJson(Shown):
    """Display options of a command with a result."""

    json_to: Annotated[
        str | None,
        Option(
            "Write the result as JSON to a file, or for '-' to the standard output.",
            OUTPUT,
            metavar="FILE|-",
            flag="--json",
            suffixes=(".json",),
            writes="new",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ShownWithConfig(Shown):
    """Those of a command whose settings may come from a file."""

    config: Annotated[
        str | None,
        Option(
            "Read settings from this file; flags override it.",
            OUTPUT,
            metavar="FILE.yaml",
            reads=True,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ShownWithProgress(ShownWithConfig, ShownAsJson):
    """Of a command that takes long."""

    progress: Annotated[
        bool,
        Option(
            "Show progress: bars, or off a terminal a line every 30 s.",
            OUTPUT,
            off="Show no progress: neither bars nor, off a terminal, a line every 30 s.",
        ),
    ] = True


@dataclass(frozen=True, kw_only=True)
class ShownWithLayers(ShownWithProgress):
    """Display options of `compare`."""

    top: Annotated[Positive, Option("How many layers to list.", LOOK, metavar="N")] = 10
    verbose: Annotated[
        int,
        Option(
            "Also show what each layer's error consists of, and log what is done; -vv also shows "
            "where errors come from.",
            LOOK,
            short="-v",
            count=True,
        ),
    ] = 0
    junit: Annotated[
        str | None,
        Option(
            "Write the conditions as JUnit's XML, which CI systems show beside other tests.",
            WRITE,
            metavar="FILE.xml",
            suffixes=(".xml",),
            writes="new",
        ),
    ] = None
    view: Annotated[
        bool,
        Option(
            "Show the run in a browser while it is made, until Ctrl-C; needs -o.",
            LOOK,
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ShownInspection(ShownWithConfig, ShownAsJson):
    """Display options of `inspect`."""

    top: Annotated[Positive, Option("How many layers to list.", LOOK, metavar="N")] = 20
    verbose: Annotated[
        int,
        Option(
            "Also show tactics, formats and all events of the build; -vv also shows where errors "
            "come from.",
            LOOK,
            short="-v",
            count=True,
        ),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class ShownReport(ShownWithConfig, ShownAsJson):
    """Display options of `report`."""


@dataclass(frozen=True, kw_only=True)
class ShownDifference(ShownWithConfig, ShownAsJson):
    """Display options of `diff`."""

    top: Annotated[Positive, Option("How many tensors to list.", LOOK, metavar="N")] = 10


@dataclass(frozen=True, kw_only=True)
class ShownExamination(ShownAsJson):
    """Display options of `doctor`."""

    force: Annotated[bool, FORCE] = False


@dataclass(frozen=True, kw_only=True)
class ShownExaminationWithProgress(ShownWithProgress, ShownExamination):
    """Display options of `check`."""


@dataclass(frozen=True, kw_only=True)
class ShownAsJsonWithProgress(ShownWithProgress):
    """Display options of `init`."""


@dataclass(frozen=True)
class DoctorSettings:
    """`qdebug doctor` has no settings."""


@dataclass(frozen=True)
class Command:
    """A command of the command line, and the function of that name in the Python API.

    Attributes:
        name: as users write it.
        settings: the dataclass that declares its settings.
        shown: the dataclass that declares how the command line shows the result.
        about: what it does, in a sentence.
        example: arguments to start from.
        more: what help texts add.
        first: the settings that matter first, in this order; the others are shown in groups. Of a
            command with few settings none.
    """

    name: str
    settings: type[Any]
    shown: type[Shown]
    about: str
    example: str = ""
    more: str = ""
    first: tuple[str, ...] = ()

    @property
    def declared(self) -> tuple[Setting, ...]:
        """Its settings, and those of how its result is shown."""
        return (*settings_of(self.settings), *settings_of(self.shown))

    @property
    def grouped(self) -> Mapping[str, tuple[Setting, ...]]:
        """All of them by their heading, in the order of help texts and reference pages."""
        known = {setting.name: setting for setting in self.declared}
        found: dict[str, list[Setting]] = {group: [] for group in GROUPS}
        found[FIRST] = [known[name] for name in self.first]
        for setting in self.declared:
            if setting.name not in self.first:
                found[setting.option.group].append(setting)
        return {group: tuple(members) for group, members in found.items() if members}

    @property
    def command_line(self) -> str:
        """The example, complete."""
        return f"qdebug {self.name} {self.example}".rstrip()


_ALL = (
    Command(
        "check",
        CheckSettings,
        ShownExaminationWithProgress,
        "Look at a model and its samples first: operators, preprocessing, labels, their number.",
        "model.onnx --inputs photos/",
        more="Ends with 1 where something is certainly wrong.",
        first=("inputs", "calib_data", "metric", "max_drop", "preprocess", "samples"),
    ),
    Command(
        "init",
        InitSettings,
        ShownAsJsonWithProgress,
        "Look at a model and its samples, and write a configuration that compare runs at once.",
        "model.onnx photos/ -o qdebug.yaml",
        first=("metric", "preprocess", "output"),
    ),
    Command(
        "compare",
        CompareSettings,
        ShownWithLayers,
        "Compare a quantized or FP16 model with its FP32 reference, tensor by tensor.",
        "model.onnx --inputs samples.npz --calib-data calib.npz -o run.h5",
        first=("inputs", "calib_data", "precision", "metric", "reference", "output"),
    ),
    Command(
        "calibrate",
        CalibrateSettings,
        ShownWithProgress,
        "Calibrate by several methods in one pass, and compare them on other samples.",
        "model.onnx --calib-data calib.npz -o scales.yaml",
        first=("calib_data", "method", "holdout", "metric", "output", "trt_cache"),
    ),
    Command(
        "ranges",
        RangesSettings,
        ShownWithProgress,
        "Range and histogram of every tensor, and how far other samples exceed the range.",
        "model.onnx --calib-data calib.npz --holdout others.npz",
        first=("calib_data", "holdout", "tensors", "sort", "top"),
    ),
    Command(
        "inspect",
        InspectSettings,
        ShownInspection,
        "What is in a model or an engine: precision, fusion, formats and kernels of its layers.",
        'build.log --expect precision.yaml --fail-on "int8_share>=0.8"',
        first=("expect", "fail_on", "profile", "diff", "model", "verbose"),
    ),
    Command(
        "diff",
        DiffSettings,
        ShownDifference,
        "Where two runs of one model, on two machines or backends, diverge.",
        'cpu.h5 server.h5 --fail-on "output.sqnr_db>=40"',
    ),
    Command(
        "bisect",
        BisectSettings,
        ShownWithProgress,
        "Find the cheapest set of layers to keep in higher precision, so that a target holds.",
        "model.onnx --inputs samples.npz --metric top1 --max-drop 0.01 -o precision.yaml",
        first=("inputs", "calib_data", "metric", "max_drop", "target", "output"),
    ),
    Command(
        "repair",
        RepairSettings,
        ShownWithProgress,
        "Get the accuracy of INT8 back without training, and keep few layers in higher precision.",
        "model.onnx --calib-data calib.npz --inputs samples.npz --metric top1 --max-drop 0.01 "
        "-o model.int8.onnx",
        more="A remedy is kept only where it helps on samples that it was not fitted to.",
        first=("calib_data", "inputs", "metric", "max_drop", "target", "output"),
    ),
    Command(
        "sweep",
        SweepSettings,
        ShownWithProgress,
        "Try precisions and builder settings: error, size, build time and latency of each.",
        "model.onnx --inputs samples.npz --precision int8,fp16 --optimization-level 0,3,5",
        more="What was built and measured is kept: the same command resumes an interrupted sweep.",
        first=("inputs", "calib_data", "precision", "backend", "metric", "output"),
    ),
    Command(
        "report",
        ReportSettings,
        ShownReport,
        "Write a page that shows a result: one HTML file that needs nothing else.",
        "run.h5 -o report.html",
        first=("output", "model"),
        more="Several results are compared in one page.",
    ),
    Command(
        "view",
        ViewSettings,
        Shown,
        "Show a result in a browser, with every activation that a run file keeps.",
        "run.h5",
        first=("port", "browser", "model"),
        more="A run that is still being written is shown when it is whole. Ctrl-C ends.",
    ),
    Command(
        "export",
        ExportSettings,
        ShownWithConfig,
        "Write a precision plan, a calibration or the figures of a run for another tool.",
        "precision.yaml --to onnx -o model.int8.onnx",
        first=("to", "model", "output"),
    ),
    Command(
        "doctor",
        DoctorSettings,
        ShownExamination,
        "Say what this machine can run, and what to install for the rest.",
    ),
)
COMMANDS: Mapping[str, Command] = {command.name: command for command in _ALL}
"""Every command by its name, in the order of the help text."""


def command_of(kind: type[Any]) -> Command:
    """The command that `kind` declares settings of, or how its results are shown.

    Raises:
        LookupError: there is none.
    """
    for command in _ALL:
        if kind in (command.settings, command.shown):
            return command
    raise LookupError(kind)
