"""Settings of `qdebug view`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from qdebug.config.option import WHAT, ModelLike, Option, ResultLike
from qdebug.config.report import NETWORK

PORT = Option(
    "The port to serve at, on this machine only; 0 takes any that is free.",
    WHAT,
    metavar="N",
)
OPEN_BROWSER = Option("Open the page in a browser.", WHAT, off="Only print the address.")


@dataclass(frozen=True)
class ViewSettings:
    """The settings of `qdebug view`."""

    files: Annotated[
        tuple[ResultLike, ...],
        Option(
            "A run file of compare (also one that is still being written), or the JSON of any "
            "command (--json); several are compared. Or an ONNX model, an engine, layer "
            "information or a build log, as inspect reads them, each followed by its profile, "
            "times and metadata.",
            metavar="FILE",
            positional=True,
            reads=True,
        ),
    ]
    model: Annotated[ModelLike | None, NETWORK] = None
    port: Annotated[int, PORT] = 0
    browser: Annotated[bool, OPEN_BROWSER] = True
