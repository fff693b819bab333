"""The ways to see inside an engine, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class CaptureWay(StrEnum):
    """How the tensors inside an engine are observed. The earlier ones see more, the later ones
    change the engine less."""

    OUTPUTS = "outputs"
    """Every tensor is an output of the engine: nothing is fused over it."""
    DEBUG = "debug"
    """Named debug tensors (`mark_debug`): TensorRT calls back with each."""
    UNFUSED = "unfused"
    """What fusion leaves: the engine is built as it always is, and calls back with the tensors
    between its kernels."""


def ways_from(first: str | None) -> Sequence[CaptureWay]:
    """The way asked for (None: all tensors as outputs), and those that change an engine less."""
    ways = list(CaptureWay)
    return ways[ways.index(CaptureWay(first or CaptureWay.OUTPUTS)) :]
