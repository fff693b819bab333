"""Change how a model is quantized, and measure what that gives at the outputs: what to try before
any layer is kept in FP32.

A plan is changed in its own settings: a scale for each channel of its weights, the ranges of
another calibrator, ranges of samples like the compared ones. Of a model that others have quantized
it is measured what it would be with these, as far as its FP32 model tells. Each change is made in
all layers at once, as the setting does it, and runs on a few samples; the best one on all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Generic, TypeVar

import numpy as np

from qdebug.analyse.causes.quantization import BIAS_SATURATION, INVALID_SCALE, WEIGHT_CAUSES
from qdebug.analyse.compared import Compared
from qdebug.analyse.diagnose import input_amax
from qdebug.calibrators.registry import NEVER_CLIPPING, default_calibrators
from qdebug.errors import MetricError, PlanError, QdebugError
from qdebug.execute.context import emulates_fp16, runner_of, sized
from qdebug.execute.gather import Gathered, calibrated
from qdebug.execute.measure_options import output_options
from qdebug.execute.variants import PlannedVariants
from qdebug.formats.registry import SCALED
from qdebug.metrics.effect import noise_by_sample
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tensor import noise_db
from qdebug.network.graph import opset_of
from qdebug.network.macs import macs_per_sample
from qdebug.network.prepare import QDQ_OPSET
from qdebug.network.samples.subset import SampleSubset, finely, spread, whole
from qdebug.plan.imported import Imported
from qdebug.plan.pair import ModelPair
from qdebug.plan.plan import BoundPlan, Granularity, TensorRange, bind_plan
from qdebug.plan.quantize import Grid
from qdebug.plan.rewrite.qdq import weight_axis
from qdebug.plan.rewrite.requantize import with_channel_scales, with_scales
from qdebug.results.compare import LEAST_CURE_DB, Cause, CompareResult, Cure
from qdebug.results.curve import part_restored
from qdebug.results.summary import HALF, MOST_LEADERS
from qdebug.run.executor import THIS_PROCESS
from qdebug.run.outputs import Evaluated, MetricEvaluator, OutputEvaluator, joined
from qdebug.run.variant import Variant, as_it_is
from qdebug.types import Array
from qdebug.wording import option

_SAMPLES, _LEAST_SAMPLES = 16, 2
"""What each change is run on, at the most and at the least."""
_MOST_MACS = 3e11
"""The work of all runs, about, if that many samples are to be taken: a tenth of that of the
effects."""
_EMULATED = 8.0
"""How much longer a run takes whose FP16 kernels are emulated: 1 to 16 times, see
docs/validation/public-networks.md."""
_WORTH_ANOTHER_DB = 3.0
"""A second change has to halve the noise again."""
_SURELY = 2.0
"""Standard errors by which the noise of the samples must fall, each sample's in dB: the sum is that
of a few samples, which say little of the others (docs/validation/yardsticks.md)."""
_NONE = 1e-12
"""Less noise, 120 dB, is none."""
_CONFIRMED = 2
"""So many of those that help on a few samples are run on all, until one helps there too."""
_FITS = 1.25
"""A range that is off by a smaller factor is left alone: it costs 2 dB at the most."""
_PER_CHANNEL = "weights per-channel"
FITTED_RANGES = "ranges of these samples"
"""The change that answers ranges of other data."""
_OF_WEIGHTS = (*WEIGHT_CAUSES, INVALID_SCALE)
_OTHER_DATA = ("stale-calibration", "unrepresentative-calibration")
_RANGES = (*_OTHER_DATA, "clipping", "coarse-step", "rounding", INVALID_SCALE)

State = TypeVar("State", BoundPlan, Imported)


@dataclass(frozen=True)
class _Change(Generic[State]):
    """A change of how a model is quantized.

    Attributes:
        name, what, causes, layers: see Cure.
        kind: "weights", "biases" or "ranges"; only changes of different kinds are combined.
        apply: makes it.
    """

    name: str
    what: str
    causes: tuple[str, ...]
    layers: int
    kind: str
    apply: Callable[[State], State]


_Tried = tuple[tuple[_Change[State], ...], Cure]
"""Changes that were made together, and what they gave."""


@dataclass(frozen=True)
class _Quantization(Generic[State]):
    """What may be changed.

    Attributes:
        start: a plan, or the model of others.
        variant: what runs such a state.
    """

    start: State
    changes: tuple[_Change[State], ...]
    variant: Callable[[State], Variant]

    def changed(self, chosen: Sequence[_Change[State]]) -> Variant:
        """With some changes.

        Raises:
            PlanError: of a model that was made of one that is odd already.
        """
        return self.variant(reduce(lambda state, change: change.apply(state), chosen, self.start))


def cured(compared: Compared, gathered: Gathered | None) -> Compared:
    """With what other ways to quantize the model give, the one that restores most first.

    Args:
        gathered: the histograms that its ranges were calibrated from; None where they were not.

    Raises:
        QdebugError: samples cannot be read, or FP32 does not run.
    """
    result, pair = compared.result, compared.pair
    if result.effect is None or not result.outputs or result.is_as_good_as_fp32:
        return compared
    if pair.plan is not None:
        found = _tried(compared, _of_plan(compared, gathered))
    else:
        found = _tried(compared, _of_quantized(compared))
    layers = [replace(x, causes=_advised(x.causes, found, result.samples)) for x in result.layers]
    return compared.found(*_opset_note(pair, found), cures=found, layers=tuple(layers))


def _advised(causes: Sequence[Cause], cures: Sequence[Cure], samples: int) -> tuple[Cause, ...]:
    """`causes` with what was measured of what may answer them, in place of the suggestion to try
    it: what the best of it gives, or that it is no cure."""
    best = {label: cure for cure in reversed(cures) for label in cure.causes}
    return tuple(
        cause.measured(best[cause.label], samples) if cause.label in best else cause
        for cause in causes
    )


def _opset_note(pair: ModelPair, cures: Sequence[Cure]) -> Iterator[str]:
    """What a quantizer needs to make a scale for every channel, where that is advised."""
    opset = opset_of(pair.model.file.proto)
    advised = any(_PER_CHANNEL in cure.name for cure in cures if cure.helps)
    if pair.plan is None and opset < QDQ_OPSET and advised:
        yield (
            f"A scale for every channel needs opset {QDQ_OPSET}, and the model has {opset}: raise "
            f"that of the FP32 model with `onnx.version_converter.convert_version(model, "
            f"{QDQ_OPSET})` before it is quantized again."
        )


def _tried(compared: Compared, quantization: _Quantization[State]) -> tuple[Cure, ...]:
    """What each change gives, the best first, and the best with another one on top of it."""
    if not quantization.changes:
        return ()
    subset = _few(compared, len(quantization.changes))
    evaluator = _evaluator(compared, subset)
    start = evaluator.evaluated({"": quantization.changed(())}, attempt=True)[""]
    if isinstance(start, QdebugError):
        return ()

    def attempted(*choices: tuple[_Change[State], ...]) -> list[_Tried[State]]:
        variants = {}
        for number, chosen in enumerate(choices):
            with suppress(PlanError):
                variants[str(number)] = quantization.changed(chosen)
        found = evaluator.evaluated(variants, "cures", attempt=True).items()
        given = [(choices[int(n)], x) for n, x in found if isinstance(x, Evaluated)]
        return [(chosen, _cure(chosen, start, after, subset.count)) for chosen, after in given]

    found = attempted(*((change,) for change in quantization.changes))
    found.sort(key=lambda x: (not x[1].helps, -x[1].sqnr_db if math.isfinite(x[1].sqnr_db) else 0))
    helping = [chosen[0] for chosen, cure in found if cure.helps]
    if helping and (other := next((c for c in helping if c.kind != helping[0].kind), None)):
        single = found[0][1].sqnr_db
        found += attempted((helping[0], other))
        found.sort(key=lambda x: len(x[0]) == 1 or x[1].sqnr_db < single + _WORTH_ANOTHER_DB)
    return _confirmed(compared, quantization, found)


def _confirmed(
    compared: Compared, quantization: _Quantization[State], found: Sequence[_Tried[State]]
) -> tuple[Cure, ...]:
    """All that were tried, in front the first of them that helps on all samples too. Where a metric
    loses, also those that answer the leading layers' causes, whatever the noise says: a detector
    got 0.07 of the 0.09 back that its mAP had lost, with 0.2 dB less."""
    cures: list[Cure] = [cure for _, cure in found]
    loses, causes = _metric_loses(compared.result), _leading_causes(compared.result)
    for place, (chosen, cure) in enumerate(found[:_CONFIRMED]):
        if not (cure.helps or (loses and causes.intersection(cure.causes))):
            break
        if cure.samples < compared.samples.count or compared.metric is not None:
            variant = quantization.changed(chosen)
            cures[place] = _on_all(compared, variant, cure, compared.metric)
        if cures[place].helps:
            return (cures.pop(place), *cures)
    return tuple(sorted(cures, key=lambda cure: not cure.helps))


def _cure(
    chosen: Sequence[_Change[State]], before: Evaluated, after: Evaluated, samples: int
) -> Cure:
    with np.errstate(invalid="ignore"):  # both hold NaN or Inf, or other shapes than FP32's
        fell = np.log(_by_sample(before) + _NONE) - np.log(_by_sample(after) + _NONE)
    certain = True
    if len(fell) > 1 and np.isfinite(fell).all():
        certain = bool(fell.mean() > _SURELY * fell.std(ddof=1) / math.sqrt(len(fell)))
    was_db, is_db = (noise_db(one.errors.worst_noise()) for one in (before, after))
    finite = math.isnan(was_db) and math.isfinite(is_db)
    return Cure(
        name=" + ".join(change.name for change in chosen),
        what=" and ".join(change.what for change in chosen),
        causes=tuple(dict.fromkeys(c for change in chosen for c in change.causes)),
        layers=max(change.layers for change in chosen),
        samples=samples,
        before_sqnr_db=was_db,
        sqnr_db=is_db,
        helps=finite or (is_db - was_db >= LEAST_CURE_DB and certain),
        metric=None,
    )


def _on_all(compared: Compared, variant: Variant, cure: Cure, metric: TaskMetric | None) -> Cure:
    """A cure that helps on a few samples, measured on all, and by the metric."""
    subset = sized(compared.context, compared.pair.reference, compared.subset)
    evaluator, value = _evaluator(compared, subset, metric), None
    try:
        after = evaluator.evaluated({"": variant}, attempt=True)[""]
        if metric is not None and isinstance(after, Evaluated):
            needed, _ = compared.measured.needed()
            value = MetricEvaluator.of(metric, compared.samples, needed)(joined(after.outputs))
    except MetricError:  # outputs that hold NaN: their noise is known all the same
        return _on_all(compared, variant, cure, None)
    if isinstance(after, QdebugError):
        return replace(cure, helps=False)
    before, task = noise_db(compared.result.worst_noise), compared.result.metric
    sqnr_db = noise_db(after.errors.worst_noise())
    helps = math.isnan(before) or sqnr_db - before >= LEAST_CURE_DB
    if not helps and task is not None and value is not None and _metric_loses(compared.result):
        helps = part_restored(task.candidate, value, task.reference) >= HALF
    return replace(
        cure,
        samples=subset.count,
        before_sqnr_db=before,
        sqnr_db=sqnr_db,
        helps=helps,
        metric=value,
        before_metric=task.candidate if task is not None and value is not None else None,
    )


def _metric_loses(result: CompareResult) -> bool:
    """Whether the metric is worse than FP32's, or another, where it is not known which way is
    better."""
    task = result.metric
    if task is None or task.candidate == task.reference:
        return False
    gained = task.better(task.candidate, task.reference)
    return gained is None or gained < 0


def _few(compared: Compared, changes: int) -> SampleSubset:
    """What each change is run on."""
    pair = compared.pair
    samples = finely(compared.samples, _SAMPLES)
    slow = _EMULATED if emulates_fp16(compared.context, pair.precisions.values()) else 1.0
    each = macs_per_sample(pair.layers, whole(samples)) * slow * (changes + 2)
    count = max(_LEAST_SAMPLES, min(_SAMPLES, int(_MOST_MACS / max(1.0, each))))
    return spread(whole(samples), count)


def _evaluator(
    compared: Compared, subset: SampleSubset, metric: TaskMetric | None = None
) -> OutputEvaluator:
    """Measures variants by the outputs that were compared."""
    pair, context = compared.pair, compared.context
    return OutputEvaluator(
        runner_of(replace(context, executor=THIS_PROCESS), subset),
        pair.reference,
        as_it_is(pair.reference.proto, context.backend),
        metric,
        options=output_options(pair.reference),
        parts=pair.parts,
        compared={o.name for o in compared.result.outputs} & {*pair.candidate.outputs},
    )


def _by_sample(found: Evaluated) -> Array:
    """The part of each sample in the outputs' noise."""
    return noise_by_sample(np.concatenate([*found.energies.values()], axis=2))


def _leading_causes(result: CompareResult) -> frozenset[str]:
    """The labels that the leading layers' causes have."""
    leaders = [x for x in result.layers if x.precision in SCALED][:MOST_LEADERS]
    return frozenset(c.label for x in leaders for c in x.causes)


def _largest(compared: Compared) -> dict[str, float]:
    """Magnitudes in FP32 on the compared samples, by tensor, those of the inputs too."""
    fed = compared.fed
    if fed is None:  # the causes could not be found
        fed = input_amax(compared.pair, compared.samples, compared.subset.batches)
    return {t.name: t.metrics.ref_amax for t in compared.result.tensors} | dict(fed)


def _of_plan(compared: Compared, gathered: Gathered | None) -> _Quantization[BoundPlan]:
    pair = compared.pair
    assert pair.plan is not None
    bound = bind_plan(pair.plan, pair.model, pair.layers)
    changes = [*_channel_scales(bound), *_other_calibrators(pair, bound, gathered)]
    if not _leading_causes(compared.result).isdisjoint((*_OTHER_DATA, "clipping")):
        changes += _fitted_ranges(bound, _largest(compared))
    simulation = compared.context.simulation
    return _Quantization(
        bound, tuple(changes), lambda state: PlannedVariants(state, simulation).with_layers({})
    )


def _channel_scales(bound: BoundPlan) -> list[_Change[BoundPlan]]:
    graph, tensors = bound.layers.graph, bound.plan.tensors
    divided = [
        x
        for x in bound.quantized_layers()
        if x.weight is not None and x.weight not in tensors
        if weight_axis(graph.by_name[x.name], graph, x.weight) is not None
    ]
    if bound.plan.weights is Granularity.PER_CHANNEL or not divided:
        return []

    def apply(state: BoundPlan) -> BoundPlan:
        return replace(state, plan=replace(state.plan, weights=Granularity.PER_CHANNEL))

    what = option("weights", str(Granularity.PER_CHANNEL))
    return [
        _Change(_PER_CHANNEL, what, _OF_WEIGHTS, len(divided), "weights", apply),
    ]


def _other_calibrators(
    pair: ModelPair, bound: BoundPlan, gathered: Gathered | None
) -> list[_Change[BoundPlan]]:
    """The ranges that each other calibrator finds for what was calibrated."""
    used = {bound.plan.tensors[t].method for t in pair.calibrated}
    if gathered is None or not pair.calibrated:
        return []
    tensors = sorted(pair.calibrated)
    readers = sum(not pair.calibrated.isdisjoint(x.quantized_inputs) for x in pair.layers)
    found = []
    for calibrator in default_calibrators():
        if calibrator.name in used:
            continue
        ranges = {
            t: TensorRange(amax, calibrator.name)
            for t, amax in calibrated(gathered.histograms, tensors, calibrator).items()
        }
        causes = ("clipping",) if calibrator.name in NEVER_CLIPPING else ("coarse-step", "rounding")
        found.append(
            _Change(
                f"method {calibrator.name}",
                option("method", calibrator.name),
                causes,
                readers,
                "ranges",
                partial(_with_ranges, ranges=ranges),
            )
        )
    return found


def _with_ranges(state: BoundPlan, ranges: Mapping[str, TensorRange]) -> BoundPlan:
    return replace(state, plan=replace(state.plan, tensors={**state.plan.tensors, **ranges}))


def _fitted_ranges(bound: BoundPlan, largest: Mapping[str, float]) -> list[_Change[BoundPlan]]:
    """The ranges of the compared samples, where the plan's are far from them."""
    ranges = {
        t: TensorRange(largest[t], "minmax")
        for t in bound.needed_ranges()
        if _is_off(float(np.max(bound.plan.tensors[t].amax)), largest.get(t, 0.0))
    }
    if not ranges:
        return []
    readers = sum(not ranges.keys().isdisjoint(x.quantized_inputs) for x in bound.layers)
    return [
        _Change(
            FITTED_RANGES,
            "ranges calibrated on samples like these",
            (*_OTHER_DATA, "clipping"),
            readers,
            "ranges",
            partial(_with_ranges, ranges=ranges),
        )
    ]


def _is_off(amax: float, largest: float) -> bool:
    finite = 0 < largest < math.inf and 0 < amax < math.inf
    return finite and not 1 / _FITS <= amax / largest <= _FITS


def _fitted_scale(grid: Grid, largest: float) -> float | None:
    """The scale with which a range ends at the largest magnitude; None where it does so already,
    nearly."""
    scale = float(grid.scale.max())
    if not 0 < scale < math.inf:  # the quantizer has failed
        reach = max(abs(x) for x in replace(grid, scale=np.array(1, np.float32), bounds=None).range)
        return largest / reach if 0 < largest < math.inf else None
    reach = max(-grid.shown[0], grid.shown[1])
    return scale * largest / reach if _is_off(reach, largest) else None


def _of_quantized(compared: Compared) -> _Quantization[Imported]:
    pair, model = compared.pair, compared.pair.imported
    layers = [x for x in pair.layers if pair.precisions[x.name] in SCALED]
    divided = partial(
        with_channel_scales, reference=pair.reference, candidate=pair.candidate, layers=layers
    )
    changes: list[_Change[Imported]] = []
    _, changed = divided(model)
    if changed:
        what = "a scale for each output channel of the weights"
        changes.append(
            _Change(
                *(_PER_CHANNEL, what, _OF_WEIGHTS, len(changed), "weights"),
                lambda state: divided(state)[0],
            )
        )
    saturated = [n for n in pair.saturated if n in pair.layers.of_node and pair.aligned]
    if saturated:
        what = "the saturated biases in floating point"
        causes, nodes = (BIAS_SATURATION,), pair.candidate.by_name
        biases = {
            n: {t: x for t, x in model.exact.get(n, {}).items() if t in nodes[n].inputs[2:]}
            for n in saturated
        }
        changes.append(
            _Change(
                *("biases in FP32", what, causes, len(saturated), "biases"),
                lambda state: state.reading(biases),
            )
        )
    largest = _largest(compared)
    scales = {t: _fitted_scale(grid, largest.get(t, 0.0)) for t, grid in pair.grids.items()}
    others = {t: scale for t, scale in scales.items() if scale is not None}
    _, changed_ranges = with_scales(model, others)
    if changed_ranges:
        readers = sum(not pair.reads(x.name).isdisjoint(changed_ranges) for x in layers)
        what = "ranges that hold the values of these samples, and no more"
        changes.append(
            _Change(
                *(FITTED_RANGES, what, _RANGES, readers, "ranges"),
                lambda state: with_scales(state, others)[0],
            )
        )
    simulation = compared.context.simulation
    return _Quantization(model, tuple(changes), lambda state: as_it_is(state.lowered, simulation))
