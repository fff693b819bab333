"""The commands: the settings of each, and which display options. Help and reference read this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter
from pydantic.dataclasses import dataclass as checked_dataclass

from qdebug.config.calibrate import CalibrateSettings
from qdebug.config.compare import CompareSettings
from qdebug.config.flag import (
    CHECKED,
    FIRST,
    GROUPS,
    LOOK,
    OUTPUT,
    WRITE,
    File,
    Positive,
    ReadPath,
    Setting,
    settings_of,
)
from qdebug.config.look import CheckSettings, InitSettings, InspectSettings, RangesSettings
from qdebug.config.report import DiffSettings, ExportSettings, ReportSettings, ViewSettings
from qdebug.config.search import BisectSettings, RepairSettings
from qdebug.config.sweep import SweepSettings


@checked_dataclass(frozen=True, kw_only=True, config=CHECKED)
class Shown:
    """What only the command line has: how the result is shown. Each command has some of it."""

    verbose: Annotated[
        int,
        Parameter(
            name=("--verbose", "-v"),
            help="Show more of the result, and log what is done; -vv also shows where errors come "
            "from.",
            group=OUTPUT,
            count=True,
        ),
    ] = 0
    json_to: Annotated[
        str | None,
        File("new", (".json",)),
        Parameter(
            name="--json",
            help="Write the result as JSON to a file, or for '-' to the standard output.",
            group=OUTPUT,
            metavar="FILE|-",
        ),
    ] = None
    config: Annotated[
        ReadPath | None,
        Parameter(
            help="Read settings from this file; flags override it.",
            group=OUTPUT,
            metavar="FILE.yaml",
        ),
    ] = None
    progress: Annotated[
        bool,
        Parameter(
            help="Show no progress: neither bars nor, off a terminal, a line every 30 s.",
            group=OUTPUT,
        ),
    ] = True
    top: Annotated[
        Positive | None,
        Parameter(
            help="How many rows of the table to show.",
            group=LOOK,
            metavar="N",
            show_default="10, of inspect 20",
        ),
    ] = None
    junit: Annotated[
        str | None,
        File("new", (".xml",)),
        Parameter(
            help="Write the conditions as JUnit's XML, which CI systems show beside other tests.",
            group=WRITE,
            metavar="FILE.xml",
        ),
    ] = None
    view: Annotated[
        bool,
        Parameter(
            help="Show the run in a browser while it is made, until Ctrl-C; needs -o.",
            group=LOOK,
        ),
    ] = False
    force: Annotated[bool, Parameter(help="Replace files that exist.", group=WRITE)] = False


@checked_dataclass(frozen=True, config=CHECKED)
class DoctorSettings:
    """`qdebug doctor` has no settings."""


_JSON = ("verbose", "json_to")
_ALL_BUT_PROGRESS = (*_JSON, "config")
_USUAL = (*_ALL_BUT_PROGRESS, "progress")


@dataclass(frozen=True)
class Command:
    """A command of the command line, and the function of that name in the Python API.

    Attributes:
        name: as users write it.
        settings: the dataclass that declares its settings.
        shown: its display options, of Shown.
        about: what it does, in a sentence.
        example: arguments to start from.
        more: what help texts add.
        first: the settings that matter first, in this order; the others are shown in groups, and by
            --help-all. Of a command with few settings none.
    """

    name: str
    settings: type[Any]
    about: str
    example: str = ""
    more: str = ""
    first: tuple[str, ...] = ()
    shown: tuple[str, ...] = _USUAL

    @property
    def display(self) -> tuple[Setting, ...]:
        """Its display options."""
        return tuple(setting for setting in settings_of(Shown) if setting.name in self.shown)

    @property
    def declared(self) -> tuple[Setting, ...]:
        """Its settings, and its display options."""
        return (*settings_of(self.settings), *self.display)

    @property
    def grouped(self) -> Mapping[Group, tuple[Setting, ...]]:
        """All of them by their heading, in the order of help texts and reference pages."""
        known = {setting.name: setting for setting in self.declared}
        found: dict[Group, list[Setting]] = {group: [] for group in GROUPS}
        found[FIRST] = [known[name] for name in self.first]
        for setting in self.declared:
            if setting.name not in self.first:
                found[setting.group].append(setting)
        return {group: tuple(members) for group, members in found.items() if members}

    @property
    def usage(self) -> str:
        """How it is written."""
        arguments = (s.flag for s in settings_of(self.settings) if s.positional)
        return " ".join(("qdebug", self.name, *arguments, "[OPTIONS]"))

    @property
    def command_line(self) -> str:
        """The example, complete."""
        return f"qdebug {self.name} {self.example}".rstrip()


_ALL = (
    Command(
        "check",
        CheckSettings,
        "Look at a model and its samples first: operators, preprocessing, labels, their number.",
        "model.onnx --inputs photos/",
        more="Ends with 1 where something is certainly wrong.",
        first=("inputs", "calib_data", "metric", "max_drop", "preprocess", "samples"),
        shown=(*_USUAL, "force"),
    ),
    Command(
        "init",
        InitSettings,
        "Look at a model and its samples, and write a configuration that compare runs at once.",
        "model.onnx photos/ -o qdebug.yaml",
        first=("metric", "preprocess", "output"),
    ),
    Command(
        "compare",
        CompareSettings,
        "Compare a quantized or FP16 model with its FP32 reference, tensor by tensor.",
        "model.onnx --inputs samples.npz --calib-data calib.npz -o run.h5",
        first=("inputs", "calib_data", "precision", "metric", "reference", "output"),
        shown=(*_USUAL, "top", "junit", "view"),
    ),
    Command(
        "calibrate",
        CalibrateSettings,
        "Calibrate by several methods in one pass, and compare them on other samples.",
        "model.onnx --calib-data calib.npz -o scales.yaml",
        first=("calib_data", "method", "holdout", "metric", "output", "trt_cache"),
    ),
    Command(
        "ranges",
        RangesSettings,
        "Range and histogram of every tensor, and how far other samples exceed the range.",
        "model.onnx --calib-data calib.npz --holdout others.npz",
        first=("calib_data", "holdout", "tensors", "sort", "top"),
    ),
    Command(
        "inspect",
        InspectSettings,
        "What is in a model or an engine: precision, fusion, formats and kernels of its layers.",
        'build.log --expect precision.yaml --fail-on "int8_share>=0.8"',
        first=("expect", "fail_on", "profile", "diff", "model", "verbose"),
        shown=(*_ALL_BUT_PROGRESS, "top"),
    ),
    Command(
        "diff",
        DiffSettings,
        "Where two runs of one model, on two machines or backends, diverge.",
        'cpu.h5 server.h5 --fail-on "output.sqnr_db>=40"',
        shown=(*_ALL_BUT_PROGRESS, "top"),
    ),
    Command(
        "bisect",
        BisectSettings,
        "Find the cheapest set of layers to keep in higher precision, so that a target holds.",
        "model.onnx --inputs samples.npz --metric top1 --max-drop 0.01 -o precision.yaml",
        first=("inputs", "calib_data", "metric", "max_drop", "target", "output"),
    ),
    Command(
        "repair",
        RepairSettings,
        "Get the accuracy of INT8 back without training, and keep few layers in higher precision.",
        "model.onnx --calib-data calib.npz --inputs samples.npz --metric top1 --max-drop 0.01 "
        "-o model.int8.onnx",
        more="A remedy is kept only where it helps on samples that it was not fitted to.",
        first=("calib_data", "inputs", "metric", "max_drop", "target", "output"),
    ),
    Command(
        "sweep",
        SweepSettings,
        "Try precisions and builder settings: error, size, build time and latency of each.",
        "model.onnx --inputs samples.npz --precision int8,fp16 --optimization-level 0,3,5",
        more="What was built and measured is kept: the same command resumes an interrupted sweep.",
        first=("inputs", "calib_data", "precision", "backend", "metric", "output"),
    ),
    Command(
        "report",
        ReportSettings,
        "Write a page that shows a result: one HTML file that needs nothing else.",
        "run.h5 -o report.html",
        more="Several results are compared in one page.",
        first=("output", "model"),
        shown=_ALL_BUT_PROGRESS,
    ),
    Command(
        "view",
        ViewSettings,
        "Show a result in a browser, with every activation that a run file keeps.",
        "run.h5",
        more="A run that is still being written is shown when it is whole. Ctrl-C ends.",
        first=("port", "browser", "model"),
        shown=("verbose",),
    ),
    Command(
        "export",
        ExportSettings,
        "Write a precision plan, a calibration or the figures of a run for another tool.",
        "precision.yaml --to onnx -o model.int8.onnx",
        first=("to", "model", "output"),
        shown=("verbose", "config"),
    ),
    Command(
        "doctor",
        DoctorSettings,
        "Say what this machine can run, and what to install for the rest.",
        shown=(*_JSON, "force"),
    ),
)
COMMANDS: Mapping[str, Command] = {command.name: command for command in _ALL}
"""Every command by its name, in the order of the help text."""


def command_of(kind: type[Any]) -> Command:
    """The command that `kind` declares the settings of."""
    return next(command for command in _ALL if command.settings is kind)
