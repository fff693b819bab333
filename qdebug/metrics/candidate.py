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


@dataclass(frozen=True)
class KernelAgreement:
    """How fast INT8 kernels compare with literal Q/DQ: one candidate, both ways, a few samples.

    Both add up the same products, but round differently, and a value that falls to the other side
    of a rounding step is a whole step off. Over a few layers such steps grow to a good part of the
    quantization error itself, as they do between any two orders of adding up: equal outputs cannot
    be asked for. What must agree is how large the error is, which is what a search asks. Kernels
    that saturate (products of U8 and S8 on x86 without VNNI) miss it by far.

    Attributes:
        samples: how many.
        sqnr_db: of the fast outputs against the literal ones, the worst output.
        literal, fast: the candidate both ways.
    """

    samples: int
    sqnr_db: float
    literal: CandidateResult
    fast: CandidateResult

    @property
    def difference_db(self) -> float:
        """The largest difference between the SQNR of an output both ways; 0 without outputs."""
        found = [0.0]
        for name, literal in self.literal.outputs.items():
            pair = literal.sqnr_db, self.fast.outputs[name].sqnr_db
            found.append(0.0 if pair[0] == pair[1] else abs(pair[0] - pair[1]))
        return max(found, key=lambda d: math.inf if math.isnan(d) else d)

    @property
    def holds(self) -> bool:
        """Whether the fast way may stand in for the literal one."""
        return not self.fast.failure and self.difference_db <= CLOSE_DB
