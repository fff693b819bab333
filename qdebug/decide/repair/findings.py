"""Which layers are wrong, and why: found once for a repair, and kept for the next run of it."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from qdebug import __version__
from qdebug.analyse.diagnose import diagnosed
from qdebug.analyse.effect.effects import noise_alone
from qdebug.decide.bisect.setup import Ratings, rate_layers
from qdebug.decide.remedies.quantized import Quantized
from qdebug.execute.context import Context
from qdebug.execute.model_pair import share_pair
from qdebug.execute.timelimit import OutOfTimeError, check_time
from qdebug.network.samples.subset import SampleSubset
from qdebug.network.weights import model_digest
from qdebug.plan.pair import ModelPair, planned_pair
from qdebug.plan.plan import corrections_digest
from qdebug.plan.planfile import plan_to_yaml
from qdebug.result import from_json, to_json
from qdebug.results.compare import LayerResult
from qdebug.store.cache import load_result, save_result
from qdebug.store.manifest import package_versions

_KIND = "studies"
_VERSION = "1"
_EXAMINED = 8
"""Leading layers whose causes are found."""


@dataclass(frozen=True)
class Findings:
    """What was found of the network before the repair, on the calibration samples.

    Attributes:
        ratings: what its layers do to the outputs; None where there was no time for that.
        causes: labels of why the leading layers are wrong, by name; None where there was no time
            for that.
    """

    ratings: Ratings | None = None
    causes: Mapping[str, tuple[str, ...]] | None = None

    @property
    def effect(self) -> Mapping[str, float]:
        """See Study."""
        return self.ratings.effect if self.ratings else {}


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
    known = found
    with suppress(OutOfTimeError):
        check_time(ends_at)
        pair = planned_pair(start.model, start.bound)
        share_pair(context.executor, pair, start.bound.corrections)
        ratings = found.ratings
        if ratings is None:
            ratings = _ratings(context, pair, fitting, memory_budget, ends_at)
            found = Findings(ratings)
        if found.causes is None:
            check_time(ends_at)
            leading = sorted(ratings.layers, key=lambda name: -ratings.effect.get(name, 0.0))
            worst = [ratings.layers[name] for name in leading[:_EXAMINED]]
            samples, limited = fitting.samples, replace(context, ends_at=ends_at)
            results = diagnosed(limited, pair, samples, fitting.batches, worst, (), _EXAMINED)
            causes = {r.name: tuple(str(cause.label) for cause in r.causes) for r in results}
            found = Findings(ratings, causes)
    if cached and found != known and found.effect:
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
    causes: Mapping[str, tuple[str, ...]] | None

    @classmethod
    def of(cls, found: Findings) -> _Kept:
        ratings = found.ratings or Ratings({}, {})
        return cls(
            tuple(ratings.layers.values()),
            ratings.effect,
            tuple(sorted(ratings.measured)),
            ratings.took_s,
            ratings.notes,
            found.causes,
        )

    def findings(self) -> Findings:
        layers = {layer.name: layer for layer in self.layers}
        measured = frozenset(self.measured)
        ratings = Ratings(layers, self.effect, measured, self.took_s, self.notes)
        return Findings(ratings, self.causes)


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
