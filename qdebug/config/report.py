"""Settings of `qdebug report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from qdebug.config.candidate import FORCE
from qdebug.config.option import WHAT, WRITE, ModelLike, Option, ResultLike

NETWORK = Option(
    "The ONNX model, where a file does not hold it.",
    WHAT,
    metavar="FILE.onnx",
    unset="the one that the result names, if it is still the same",
    reads=True,
)


@dataclass(frozen=True)
class ReportSettings:
    """The settings of `qdebug report`."""

    runs: Annotated[
        tuple[ResultLike, ...],
        Option(
            "A run file of compare, or the JSON of any command (--json); several are compared. Or "
            "an engine's layer information or build log, followed by its profile, times and "
            "metadata.",
            metavar="RUN",
            positional=True,
            reads=True,
        ),
    ]
    model: Annotated[ModelLike | None, NETWORK] = None
    output: Annotated[
        str | None,
        Option(
            "The page to write.",
            WRITE,
            metavar="FILE.html",
            suffixes=(".html", ".htm"),
            short="-o",
            unset="one beside the first run",
            writes="own",
        ),
    ] = None
    force: Annotated[bool, FORCE] = False
