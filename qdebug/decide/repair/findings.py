"""Which layers are wrong: found once for a repair, when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from qdebug.decide.bisect.choices import Ratings, rated
from qdebug.decide.remedies.quantized import Quantized
from qdebug.execute.context import Context
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.pair import planned_pair
from qdebug.run.timelimit import OutOfTimeError, check_time


class RatingsOnDemand:
    """What each layer's quantization does to the outputs (see Study.effect), found when it is first
    asked for: the remedies that win most do not ask, and a detector of 12 MB took 12 of the 16
    seconds of CPU before the first remedy for it.

    Attributes:
        found: all that was found; None before. Empty where there was no time for it.
    """

    def __init__(self, find: Callable[[], Ratings]) -> None:
        self._find = find
        self.found: Ratings | None = None

    def __call__(self) -> Mapping[str, float]:
        """The noise of the outputs by layer."""
        if self.found is None:
            self.found = self._find()
        return self.found.noise


def ratings_of(
    context: Context,
    start: Quantized,
    fitting: SampleSubset,
    *,
    ends_at: float,
) -> Ratings:
    """What is found on the calibration samples until `ends_at`, on the clock of `time.monotonic`.

    Raises:
        QdebugError: a runtime that failed.
    """
    with suppress(OutOfTimeError):
        check_time(ends_at)
        pair = planned_pair(start.model, start.bound)
        return rated(context, pair, fitting, ends_at)
    return Ratings()
