"""What evaluating a candidate plan found, and whether two ways to run it agree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from qdebug.metrics.tensor import Metrics

CLOSE_DB = 1.0
"""How far apart the SQNR of an output may be in two ways that agree."""


@dataclass(frozen=True)
class CandidateResult:
    """What one candidate makes of the samples.

    Attributes:
        outputs: metrics of every float output, by name.
        task: the end-to-end metric, None without one.
        noise: Σerr²/Σref² of an output, averaged over the float outputs; +inf where an output holds
            NaN or Inf that its reference does not, NaN without float outputs.
        seconds: wall time, building the candidate included.
        tensors: metrics of the captured tensors.
        worst_group: of samples, which decides `task`; "" where the metric has no groups.
        failure: why the runtime could not build or run it; then the rest is empty.
    """

    outputs: Mapping[str, Metrics]
    task: float | None
    noise: float
    seconds: float
    tensors: Mapping[str, Metrics] = field(default_factory=dict)
    worst_group: str = ""
    failure: str = ""

    @property
    def sqnr_db(self) -> float:
        """That of the worst output; NaN where one is broken, or there is none."""
        values = [m.sqnr_db for m in self.outputs.values()]
        return math.nan if not values or any(map(math.isnan, values)) else min(values)
