"""Settings of `qdebug inspect`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from qdebug.config.candidate import FORCE, HTML
from qdebug.config.data import SHAPE
from qdebug.config.option import GATE, WHAT, WRITE, ModelLike, Option, PlanLike


@dataclass(frozen=True)
class InspectSettings:
    """The settings of `qdebug inspect`."""

    file: Annotated[
        ModelLike,
        Option(
            "An ONNX model, an engine (on its GPU), the JSON of trtexec --exportLayerInfo or "
            "--exportProfile, or a verbose build log of trtexec, Polygraphy, Python or qdebug.",
            metavar="FILE",
            positional=True,
            reads=True,
        ),
    ]
    profile: Annotated[
        str | None,
        Option(
            "Times of the same engine's layers (trtexec --exportProfile, or a log of "
            "--dumpProfile).",
            WHAT,
            metavar="FILE",
            reads=True,
        ),
    ] = None
    timing: Annotated[
        str | None,
        Option(
            "Times of whole executions of the same engine (trtexec --exportTimes).",
            WHAT,
            metavar="FILE.json",
            reads=True,
        ),
    ] = None
    metadata: Annotated[
        str | None,
        Option(
            "What names the GPU of the engine: metadata of trex, or a log of trtexec.",
            WHAT,
            metavar="FILE",
            unset="the log itself, where it names it",
            reads=True,
        ),
    ] = None
    model: Annotated[
        ModelLike | None,
        Option(
            "The ONNX model that the engine was built from.",
            WHAT,
            metavar="FILE.onnx",
            unset="the one that the plan names",
            reads=True,
        ),
    ] = None
    shape: Annotated[tuple[str, ...], replace(SHAPE, group=WHAT)] = ()
    diff: Annotated[
        ModelLike | None,
        Option(
            "Another engine of the same model, to list what differs.",
            WHAT,
            metavar="FILE",
            reads=True,
        ),
    ] = None
    diff_profile: Annotated[
        str | None,
        Option(
            "Times of that engine's layers, as for this one.",
            WHAT,
            metavar="FILE",
            reads=True,
        ),
    ] = None
    expect: Annotated[
        PlanLike | None,
        Option(
            "The plan that the engine was built for: exit with 1 if a layer has another precision.",
            GATE,
            metavar="FILE.yaml",
            reads=True,
        ),
    ] = None
    fail_on: Annotated[
        tuple[str, ...],
        Option(
            'Exit with 1 unless this holds, such as "int8_share>=0.8" or "reformat_count<=4"; '
            "repeatable. An unknown name lists all.",
            GATE,
            metavar="CONDITION",
        ),
    ] = ()
    csv: Annotated[
        str | None,
        Option(
            "Write a row for each layer as CSV, which spreadsheets open.",
            WRITE,
            metavar="FILE.csv",
            suffixes=(".csv",),
            writes="new",
        ),
    ] = None
    html: Annotated[str | None, HTML] = None
    force: Annotated[bool, FORCE] = False
