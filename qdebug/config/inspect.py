"""Settings of `qdebug inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from qdebug.config.candidate import FORCE, HTML
from qdebug.config.option import GATE, MORE, ModelLike, Option, PlanLike


@dataclass(frozen=True)
class InspectSettings:
    """The settings of `qdebug inspect`."""

    file: Annotated[
        ModelLike,
        Option(
            "An ONNX model, an engine (on its GPU), layer information or a profile of trtexec "
            "(JSON), or a verbose build log of qdebug, trtexec, Polygraphy or Python.",
            metavar="FILE",
            positional=True,
            reads=True,
        ),
    ]
    profile: Annotated[
        str | None,
        Option(
            "Times of the same engine's layers (trtexec --exportProfile).",
            MORE,
            metavar="FILE.json",
            reads=True,
        ),
    ] = None
    model: Annotated[
        ModelLike | None,
        Option(
            "The ONNX model that was built.",
            MORE,
            metavar="FILE.onnx",
            unset="the one that the plan names",
            reads=True,
        ),
    ] = None
    diff: Annotated[
        ModelLike | None,
        Option(
            "Another engine of the same model, to list what differs.",
            MORE,
            metavar="FILE",
            reads=True,
        ),
    ] = None
    expect: Annotated[
        PlanLike | None,
        Option(
            "The plan that the engine was built for; exit 1 if a layer has another precision.",
            GATE,
            metavar="FILE.yaml",
            reads=True,
        ),
    ] = None
    fail_on: Annotated[
        tuple[str, ...],
        Option(
            'Exit 1 unless it holds, as "int8_share>=0.8" or "reformat_count<=4"; repeatable. An '
            "unknown name lists all.",
            GATE,
            metavar="CONDITION",
        ),
    ] = ()
    html: Annotated[str | None, HTML] = None
    force: Annotated[bool, FORCE] = False
