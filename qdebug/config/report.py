"""Settings of the commands that read what others wrote: `diff`, `report`, `view` and `export`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic.dataclasses import dataclass

from qdebug.config.flag import ARGUMENT, CHECKED, GATE, WHAT, WRITE, File, ReadPath
from qdebug.config.objects import Model, PlanOrRanges, ResultFile
from qdebug.config.shared import WritingSettings
from qdebug.config.words import word_of
from qdebug.plan.export import EXPORT_TARGETS

NETWORK = Parameter(
    help="The ONNX model, where a file does not hold it.",
    group=WHAT,
    metavar="FILE.onnx",
    show_default="the one that the result names, if it is still the same",
)
RUN_TARGETS: Mapping[str, str] = {
    "csv": "tables of the layers and tensors of a run",
    "parquet": "the same as Parquet; needs pyarrow",
}
"""What a run file is written as for other tools, in order; see `display.tables`."""

_TARGETS = {name: target.help for name, target in EXPORT_TARGETS.items()} | dict(RUN_TARGETS)


@dataclass(frozen=True, config=CHECKED)
class DiffSettings(WritingSettings):
    """The settings of `qdebug diff`."""

    run: Annotated[
        ReadPath, Parameter(help="A run file of compare (-o).", group=ARGUMENT, metavar="RUN")
    ]
    other: Annotated[
        ReadPath,
        Parameter(
            help="A run file of compare (-o) of the same model and samples, made elsewhere or by "
            "another backend.",
            group=ARGUMENT,
            metavar="OTHER",
        ),
    ]
    fail_on: Annotated[
        tuple[str, ...],
        Parameter(
            help='Exit with 1 unless this holds of the difference, such as "output.sqnr_db>=40" or '
            '"tensor.cosine>=0.999"; repeatable.',
            group=GATE,
            metavar="CONDITION",
        ),
    ] = ()


@dataclass(frozen=True, config=CHECKED)
class ReportSettings(WritingSettings):
    """The settings of `qdebug report`."""

    runs: Annotated[
        tuple[ResultFile, ...],
        Parameter(
            help="A run file of compare, or the JSON of any command (--json); several are "
            "compared. Or an engine's layer information or build log, followed by its profile, "
            "times and metadata.",
            group=ARGUMENT,
            metavar="RUN",
        ),
    ]
    model: Annotated[Model | None, NETWORK] = None
    output: Annotated[
        str | None,
        File("own", (".html", ".htm")),
        Parameter(
            name=("--output", "-o"),
            help="The page to write.",
            group=WRITE,
            metavar="FILE.html",
            show_default="one beside the first run",
        ),
    ] = None


@dataclass(frozen=True, config=CHECKED)
class ViewSettings:
    """The settings of `qdebug view`."""

    files: Annotated[
        tuple[ResultFile, ...],
        Parameter(
            help="A run file of compare (also one that is still being written), or the JSON of any "
            "command (--json); several are compared. Or an ONNX model, an engine, layer "
            "information or a build log, as inspect reads them, each followed by its profile, "
            "times and metadata.",
            group=ARGUMENT,
            metavar="FILE",
        ),
    ]
    model: Annotated[Model | None, NETWORK] = None
    port: Annotated[
        int,
        Parameter(
            help="The port to serve at, on this machine only; 0 takes any that is free.",
            group=WHAT,
            metavar="N",
        ),
    ] = 0
    browser: Annotated[bool, Parameter(help="Only print the address.", group=WHAT)] = True


@dataclass(frozen=True, config=CHECKED)
class ExportSettings(WritingSettings):
    """The settings of `qdebug export`."""

    plan: Annotated[
        PlanOrRanges,
        Parameter(
            help="A precision plan; or ranges (scales.yaml, a TensorRT calibration cache), for "
            "INT8 in every layer that can run in it. For csv and parquet a run file.",
            group=ARGUMENT,
            metavar="PLAN",
        ),
    ]
    model: Annotated[
        Model | None,
        Parameter(
            help="The FP32 ONNX model.",
            group=WHAT,
            metavar="FILE",
            show_default="the one that PLAN names",
        ),
    ] = None
    to: Annotated[
        str,
        word_of(_TARGETS),
        Parameter(
            help=f"What to write: {'; '.join(f'{k} ({v})' for k, v in _TARGETS.items())}.",
            group=WHAT,
            metavar="TARGET",
        ),
    ] = "onnx"
    missing: Annotated[
        Literal["refuse", "float"],
        Parameter(
            help="What to do with INT8 layers without ranges: refuse, or keep them in float.",
            group=WHAT,
        ),
    ] = "refuse"
    output: Annotated[
        str | None,
        File("own"),
        Parameter(
            name=("--output", "-o"),
            help="The file to write.",
            group=WRITE,
            metavar="FILE",
            show_default="one beside the plan",
        ),
    ] = None
