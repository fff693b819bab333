"""The answer of a search, run once more: literally, and on samples that took no part in it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from qdebug.model.samples.subset import SampleSubset
from qdebug.pipeline.bisect.candidates import CandidateRunner, Engines
from qdebug.pipeline.bisect.evaluation import evaluator
from qdebug.pipeline.bisect.setup import Setup
from qdebug.search.outcome import Check
from qdebug.search.problem import Measurement, Pins

SEARCHED = "searched samples, literal Q/DQ"
ON_ENGINE = "searched samples, on the engine"


class Verifier(AbstractContextManager["Verifier"]):
    """Runs sets of pins on the samples of a subset, on literal Q/DQ. A context manager.

    Attributes:
        on_engines: they run on engines instead.
    """

    def __init__(
        self, setup: Setup, subset: SampleSubset, on: str, engines: Engines | None = None
    ) -> None:
        """Runs the reference. `on` says which samples they are, for people; `engines` runs the
        candidates in place of the simulation.

        Raises:
            QdebugError: the samples cannot be read, the runtime or the metric failed.
        """
        target, layers = setup.target, setup.pair.layers
        self.on_engines = engines is not None
        self._on = on
        self._always = setup.space.problem.always
        self._known: dict[Pins, Measurement] = {}
        self._runner = CandidateRunner(
            setup.context,
            setup.model,
            setup.planned.bound,
            subset,
            metric=target.metric,
            capture=target.captured(layers, setup.model.graph),
            literal=True,
            engines=engines,
        )
        at_once = 1 if engines else setup.context.parallel.workers
        self._measure = evaluator(self._runner, target, layers, at_once)

    def __exit__(self, *error: object) -> None:
        self._runner.close()

    def check(self, pins: Pins) -> Check:
        """What `pins` give, beside nothing pinned."""
        known = self.measure([pins, self._always])
        return Check(
            self._on,
            self._runner.subset.count,
            known[pins],
            known[self._always],
            self._runner.reference_task,
        )

    def measure(self, sets: Sequence[Pins]) -> dict[Pins, Measurement]:
        """What each of the sets gives; each is run once."""
        new = [pins for pins in dict.fromkeys(sets) if pins not in self._known]
        self._known |= dict(zip(new, self._measure(new), strict=True))
        return {pins: self._known[pins] for pins in sets}
