"""Which layers are wrong: found once for a repair, and kept for the next run of it."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from qdebug import __version__
from qdebug.analyse.effect.effects import noise_alone
from qdebug.decide.bisect.setup import Ratings, rate_layers
from qdebug.decide.remedies.quantized import Quantized
from qdebug.execute.context import Context
from qdebug.execute.model_pair import share_pair
from qdebug.network.samples.subset import SampleSubset
from qdebug.network.weights import model_digest
from qdebug.plan.pair import ModelPair, planned_pair
from qdebug.plan.plan import corrections_digest
from qdebug.plan.planfile import plan_to_yaml
from qdebug.result import from_json, to_json
from qdebug.results.compare import LayerResult
from qdebug.run.timelimit import OutOfTimeError, check_time
from qdebug.store.cache import load_result, save_result
from qdebug.store.manifest import package_versions

_KIND = "studies"
_VERSION = "2"


@dataclass(frozen=True)
class Findings:
    """What was found of the network before the repair, on the calibration samples.

    Attributes:
        ratings: what its layers do to the outputs; None where there was no time for that.
    """

    ratings: Ratings | None = None

    @property
    def effect(self) -> Mapping[str, float]:
        """See Study."""
        return self.ratings.effect if self.ratings else {}


class FindingsOnDemand(Mapping[str, float]):
    """What each layer's quantization does to the outputs (see Study.effect), found when it is first
    asked for: the remedies that win most do not ask, and a detector of 12 MB took 12 of the 16
    seconds of CPU before the first remedy for it.

    Attributes:
        found: what was found; None before.
    """

    def __init__(self, find: Callable[[], Findings]) -> None:
        self._find = find
        self.found: Findings | None = None

    def _effect(self) -> Mapping[str, float]:
        if self.found is None:
            self.found = self._find()
        return self.found.effect

    def __getitem__(self, layer: str) -> float:
        return self._effect()[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self._effect())

    def __len__(self) -> int:
        return len(self._effect())


def findings_of(
    context: Context,
    start: Quantized,
    fitting: SampleSubset,
    *,
    memory_budget: int,
    ends_at: float,
    cached: bool,
) -> Findings:
    """What an earlier run kept, and what is found until `ends_at`, on the clock of
    `time.monotonic`; that is kept, where `cached`.

    Raises:
        QdebugError: a runtime that failed.
    """
    key = _key(context, start, fitting) if cached else ""
    found = _load(key) if cached else Findings()
    if found.ratings is not None:
        return found
    with suppress(OutOfTimeError):
        check_time(ends_at)
        pair = planned_pair(start.model, start.bound)
        share_pair(context.executor, pair, start.bound.corrections)
        found = Findings(_ratings(context, pair, fitting, memory_budget, ends_at))
    if cached and found.effect:
        save_result(_KIND, key, to_json(_Kept.of(found)))
    return found


def _ratings(
    context: Context, pair: ModelPair, fitting: SampleSubset, memory_budget: int, ends_at: float
) -> Ratings:
    """Raises OutOfTimeError."""
    rating = noise_alone(context, pair, fitting, memory_budget, ends_at)
    check_time(ends_at)
    began = time.monotonic()
    layers = rate_layers(context, pair, fitting, memory_budget, ends_at)
    return Ratings.of(layers, rating, time.monotonic() - began)


@dataclass(frozen=True)
class _Kept:
    """The same for a file."""

    layers: tuple[LayerResult, ...]
    effect: Mapping[str, float]
    measured: tuple[str, ...]
    took_s: float
    notes: tuple[str, ...]

    @classmethod
    def of(cls, found: Findings) -> _Kept:
        ratings = found.ratings or Ratings({}, {})
        return cls(
            tuple(ratings.layers.values()),
            ratings.effect,
            tuple(sorted(ratings.measured)),
            ratings.took_s,
            ratings.notes,
        )

    def findings(self) -> Findings:
        layers = {layer.name: layer for layer in self.layers}
        measured = frozenset(self.measured)
        ratings = Ratings(layers, self.effect, measured, self.took_s, self.notes)
        return Findings(ratings)


def _load(key: str) -> Findings:
    data = load_result(_KIND, key)
    if data is None:
        return Findings()
    try:
        kept: _Kept = from_json(_Kept, data)
        return kept.findings()
    except Exception:  # whatever is wrong with the file: it is found anew
        return Findings()


def _key(context: Context, start: Quantized, fitting: SampleSubset) -> str:
    operators = context.sessions.operators_digest
    versions = {n: v for n, v in package_versions(operators).items() if n.startswith("onnxruntime")}
    parts = [
        _VERSION,
        __version__,
        model_digest(start.graph.proto),
        plan_to_yaml(start.bound.plan),
        corrections_digest(start.bound),
        fitting.inputs_key,
        f"{platform.machine()} {versions} {context.fp16_kernels}",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
