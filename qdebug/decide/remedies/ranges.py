"""ranges: activations get the ranges of least error of the outputs.

Three ways, from coarse to fine. All tensors by one calibrator; each tensor by the least squared
error of what its layer computes, behind the layers as quantized before it; and, from the best of
these, tensor by tensor, those of the most harmful layers first, whatever of the calibrators' ranges
and their neighbours lowers the error of the outputs, on some of the calibration samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qdebug.calibrators.histogram import Float64, TensorHistogram
from qdebug.calibrators.registry import parse_method
from qdebug.decide.remedies.calibrator import METHODS
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study
from qdebug.decide.remedies.walk import Site, Walk
from qdebug.execute.variants import PlannedVariants
from qdebug.formats.base import FloatArray
from qdebug.metrics.accumulate import CANDIDATE
from qdebug.metrics.sums import error_energy
from qdebug.network.outputparts import output_parts
from qdebug.network.samples.subset import spread
from qdebug.plan.plan import TensorRange
from qdebug.plan.quantize import scale_of
from qdebug.run.outputs import OutputEvaluator
from qdebug.run.runner import Runner
from qdebug.run.variant import as_it_is
from qdebug.types import Progress

_FEWEST = 4
_SHARES = (1.0, 0.92, 0.85, 0.78, 0.71, 0.65, 0.59, 0.53, 0.47, 0.41, 0.35, 0.3, 0.22, 0.15)
_STEPS = (0.85, 1 / 0.85)
_SAMPLES = 64
_PASSES = 24
"""Executions that a search of all layers may take, in passes over the calibration samples; one of
some layers takes its share."""
_WORSE = 4.0
"""How much noisier than the best a proposal may be to be worth judging."""
_LOWER = 0.99
_ERRORS = 1.0
"""A range is taken that leaves at most this share of the outputs' noise, and lowers it by so many
standard errors over the executions: what is lower by chance is so on these samples only."""

Amax = Mapping[str, float]


@dataclass(frozen=True)
class _Choice:
    """What is known about the tensors: the amax of each by each calibrator, and their readers."""

    methods: Mapping[str, Amax]
    tensors: tuple[str, ...]

    def of(self, tensor: str) -> list[float]:
        """The calibrators' amax of a tensor, without what is as good as another."""
        found: list[float] = []
        for amax in self.methods.values():
            if amax[tensor] > 0 and all(abs(amax[tensor] / x - 1) > 0.02 for x in found):
                found.append(amax[tensor])
        return found


class _Outputs:
    """The noise of the outputs by ranges, on some samples: Σerr²/Σref² of each part of an output,
    so that boxes do not hide scores, summed over all."""

    def __init__(self, study: Study, start: Quantized) -> None:
        graph, self._backend = start.graph, study.simulation
        size = study.samples.batches[0].count
        runner = Runner(
            spread(study.samples, _SAMPLES // size * size),
            workers=study.workers,
            ends_at=study.ends_at,
            memo=study.memo,
        )
        reference = as_it_is(graph.proto, study.backend)
        parts = output_parts(graph)
        self._evaluator = OutputEvaluator(runner, graph, reference, parts=parts)
        self.samples, self.calls = runner.subset.count, 0

    def noise(self, network: Quantized) -> Float64:
        """With the ranges of a network that has no other difference: [executions]; infinite where
        it is not a number.

        Raises:
            QdebugError: it does not run.
        """
        self.calls += 1
        variant = PlannedVariants(network.bound, self._backend).with_layers({})
        each = self._evaluator.evaluated({CANDIDATE: variant})[CANDIDATE].energies.values()
        if not each:  # no output has an error
            return np.zeros(1)
        errors, signals = np.moveaxis(np.array([one.sum(axis=2) for one in each]), 2, 0)
        signal = signals.sum(axis=0)
        found = (errors / np.where(signal == 0, 1.0, signal)).sum(axis=1)
        return np.where(np.isnan(found), np.inf, found)


def lower_by_more_than_chance(noise: Float64, before: Float64) -> bool:
    """Whether noise, by execution, is less than it was: see _LOWER and _ERRORS."""
    if not np.isfinite(noise).all():
        return False
    gain = before - noise
    error = gain.std(ddof=1) * np.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return bool(noise.sum() < _LOWER * before.sum() and gain.sum() > _ERRORS * error)


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    tensors = _tensors(study, start, layers)
    choice = _choice(study, start, tensors)
    outputs = _Outputs(study, start)
    found = {name: _with(start, amax, name) for name, amax in choice.methods.items()}
    found["each by its layer's error"] = _by_layers(study, start, layers, choice)
    noise = {name: outputs.noise(network) for name, network in found.items()}
    order = sorted(found, key=lambda name: float(noise[name].sum()))
    best, least = found[order[0]], noise[order[0]]
    share = len(layers) / max(1, len(_layers(start)))
    most = outputs.calls + int(share * _PASSES * study.samples.count / outputs.samples)
    searched = _searched(study, best, least, choice, outputs, most)
    changed = tuple(layers)
    yield Proposal(searched, changed, "each by the outputs' error")
    for name in order:
        if noise[name].sum() > _WORSE * least.sum():
            break
        yield Proposal(found[name], changed, name)


def _tensors(study: Study, start: Quantized, layers: Sequence[str]) -> tuple[str, ...]:
    """The activations that some layers read, those of the most harmful first."""
    by_name = start.layers.by_name
    first = study.most_harmful_first(layers)
    return tuple(dict.fromkeys(t for name in first for t in by_name[name].quantized_inputs))


def _choice(study: Study, start: Quantized, tensors: tuple[str, ...]) -> _Choice:
    histograms: Mapping[str, TensorHistogram] = study.gather(start, tensors)
    calibrators = [parse_method(name) for name in METHODS]
    return _Choice(
        {c.name: {t: c.amax(histograms[t]) for t in tensors} for c in calibrators}, tensors
    )


def _with(network: Quantized, amax: Amax, method: str) -> Quantized:
    return network.with_ranges({t: TensorRange(value, method) for t, value in amax.items()})


def _by_layers(study: Study, start: Quantized, layers: Sequence[str], choice: _Choice) -> Quantized:
    """Each tensor that a layer multiplies by its weight with the range of least error there; the
    first of several layers decides. Others have theirs of least squared error."""
    network = _with(start, choice.methods["mse"], "mse")
    walk = Walk(study, network, frozenset(layers), "ranges")
    done: set[str] = set()
    for site in walk:
        if site.source in choice.tensors and site.source not in done:
            done.add(site.source)
            amax = _least(site, choice)
            if amax is not None:
                site.set_range(site.source, TensorRange(amax, "output-error"))
    return walk.network


def _least(site: Site, choice: _Choice) -> float | None:
    """The amax of a layer's input with the least error of its output."""
    source = site.source
    top = choice.methods["minmax"][source]
    tried = sorted({*choice.of(source), *(share * top for share in _SHARES if share * top > 0)})
    weight = site.rounded_weight()

    form = site.format

    def error(scale: FloatArray, i: int) -> float:
        found = site.product(form.quantize(site.inputs[i], scale), weight)
        return error_energy(site.targets[i], found)

    errors = site.by_execution(error, [scale_of(amax, form=form) for amax in tried])
    if not tried or not np.isfinite(errors).any():
        return None
    return tried[int(np.nanargmin(errors))]


def _searched(
    study: Study, start: Quantized, least: Float64, choice: _Choice, outputs: _Outputs, most: int
) -> Quantized:
    """`start`, of noise `least`, with the range of each tensor that lowers the outputs' noise."""
    best = start
    for done, tensor in enumerate(choice.tensors):
        study.progress(Progress("ranges", done, len(choice.tensors)))
        top = choice.methods["minmax"][tensor]
        tried = {_now(best, tensor)}
        waiting = choice.of(tensor)
        while waiting and outputs.calls < most:
            amax = min(waiting.pop(0), top)
            if any(abs(amax / x - 1) <= 0.02 for x in tried):
                continue
            tried.add(amax)
            network = _with(best, {tensor: amax}, "output-error")
            noise = outputs.noise(network)
            if lower_by_more_than_chance(noise, least):
                best, least = network, noise
                waiting = [step * amax for step in _STEPS]
    return best


def _now(network: Quantized, tensor: str) -> float:
    amax = network.bound.plan.tensors[tensor].amax
    assert not isinstance(amax, tuple)
    return amax


def _layers(network: Quantized) -> tuple[str, ...]:
    return tuple(layer.name for layer in network.bound.quantized_layers())


REMEDY = Remedy(
    name="ranges",
    fewest_samples=_FEWEST,
    layers=_layers,
    propose=_propose,
)
