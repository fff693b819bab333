"""What a command may take; apart from ONNX Runtime, for the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

DEFAULT_BUDGET = 2 << 30
"""Bytes, where a command has no memory budget or is given none."""


@dataclass(frozen=True)
class Budget:
    """What a command may take, resolved once from its settings; samples are limited where they are
    opened.

    Attributes:
        bytes: for the activations of all executions in flight.
        ends_at: on the clock of `time.monotonic`: no batch is begun later, and a pass that is not
            done raises OutOfTimeError.
    """

    bytes: int = DEFAULT_BUDGET
    ends_at: float = math.inf

    def until(self, ends_at: float) -> Budget:
        """The same with another end."""
        return replace(self, ends_at=ends_at)
