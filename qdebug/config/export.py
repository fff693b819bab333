"""Settings of `qdebug export`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from qdebug.config.candidate import FORCE
from qdebug.config.option import WHAT, WRITE, ModelLike, Option, PlanLike
from qdebug.plan.export import EXPORT_TARGETS

RUN_TARGETS: Mapping[str, str] = {
    "csv": "tables of the layers and tensors of a run",
    "parquet": "the same as Parquet; needs pyarrow",
}
"""What a run file is written as for other tools, in order; see `display.tables`."""

_HELP = {name: target.help for name, target in EXPORT_TARGETS.items()}
_HELP |= RUN_TARGETS
_TARGETS = "; ".join(f"{name} ({text})" for name, text in _HELP.items())


@dataclass(frozen=True)
class ExportSettings:
    """The settings of `qdebug export`."""

    plan: Annotated[
        PlanLike,
        Option(
            "A precision plan; or ranges (scales.yaml, a TensorRT calibration cache), for INT8 in "
            "every layer that can run in it. For csv and parquet a run file.",
            metavar="PLAN",
            positional=True,
            reads=True,
        ),
    ]
    model: Annotated[
        ModelLike | None,
        Option(
            "The FP32 ONNX model.",
            WHAT,
            metavar="FILE",
            unset="the one that PLAN names",
            reads=True,
        ),
    ] = None
    to: Annotated[
        str,
        Option(
            f"What to write: {_TARGETS}.",
            WHAT,
            metavar="TARGET",
            words=tuple(_HELP),
        ),
    ] = "onnx"
    missing: Annotated[
        Literal["refuse", "float"],
        Option(
            "What to do with INT8 layers without ranges: refuse, or keep them in float.",
            WHAT,
        ),
    ] = "refuse"
    output: Annotated[
        str | None,
        Option(
            "The file to write.",
            WRITE,
            metavar="FILE",
            short="-o",
            unset="one beside the plan",
            writes="own",
        ),
    ] = None
    force: Annotated[bool, FORCE] = False
