"""In which order the layers come, and which few of them to keep in FP32: by what the first of an
order restore together.

What a layer costs by itself does not tell what several cost together: errors offset each other, one
masks another, and the noise of the outputs is not what a metric loses. So several orders are tried,
each by the curve of what its first layers give back in FP32; the one that rises fastest is taken.
The smallest set that gives back most of what was lost is then found along that curve, and made
smaller by leaving out what it does not need (delta debugging; Zeller & Hildebrandt, IEEE TSE 28
(2002) 183).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace

import numpy as np

from qdebug.analyse.causes.overflow import with_overflow_groups
from qdebug.analyse.compared import Choice, Compared
from qdebug.analyse.effect.effects import (
    CHEAP_MACS,
    Effects,
    float_outputs,
    sized,
    spread,
)
from qdebug.analyse.effect.leader import leader_first, leader_of, shares_of
from qdebug.analyse.effect.leave_out import High, candidates_of
from qdebug.analyse.effect.pinned import PinnedRun, PinnedTask, begin_pinned, pinned_work
from qdebug.analyse.layer_results import ranked_by_effect
from qdebug.errors import MetricError
from qdebug.execute.evaluator import KeptReference
from qdebug.metrics.effect import is_masked
from qdebug.metrics.tasks.base import Float64, is_share
from qdebug.metrics.tasks.classes import tells_apart
from qdebug.metrics.tensor import noise_db
from qdebug.network.macs import macs_per_sample
from qdebug.results.compare import CompareResult, LayerResult, TaskResult
from qdebug.results.curve import Curve, CurvePoint, Figure, Order, part_restored
from qdebug.results.summary import HALF, HOLDS, MOST_LEADERS, RELEVANT_DB, are_few
from qdebug.run.outputs import joined
from qdebug.run.timelimit import OutOfTimeError

_DECIDING = (1, 3, 5, 13)
"""So many first layers tell how fast a curve rises, ..."""
_SHOWN = (1, 2, 3, 5, 8, 13)
"""... and so many draw it."""
_FRONT = 3
"""How many of the first layers are measured by the metric, each by itself, where not all are."""
_MOST_RUNS = 28
"""Of sets of layers: up to six orders at the deciding points share many, to merge them takes about
ten, a curve two more, and what is left makes the answer smaller."""
_RUNS_PER_LAYER, _LEAST_RUNS = 2, 8
"""Of few layers there are few sets: the runs are more samples instead."""
_OF_EFFECTS = 1 / 3
"""Of the work of the effects, what all of it may take, ..."""
_ON_KERNELS = 0.45
"""What a sample takes on INT8 kernels with a few layers in FP32, in FP32 passes, about."""
_OF_THEIR_TIME, _ANY_TIME_S = 1 / 2, 10.0
"""... and of their time, where that is more than some seconds: a busy machine changes no answer."""
_LEAST_SAMPLES = 4
_ENOUGH_SAMPLES = 128
"""Tiny networks take so many, if there are: on 4 to 9 samples chance chose a small CNN's order."""
_FASTER = 0.05
"""An order must restore so much more than that by effect, on average over the deciding points, to
be taken in its place."""
_GROWS = 1.6
"""Where no curve gives back most, sets grow by this factor, as the Fibonacci numbers do."""
_NEARLY = 0.95
"""Where no set gives back most, fewer layers are named if they give back so much of what more
do."""
_SCORE_SAMPLES = 16
"""A score of fewer samples than that is chance: on 9 pictures of a face detector F1 chose a layer
that had no part in the error."""
_SURE = 2.0
"""A loss is followed where it is worse than FP32's by so many standard errors of the mean."""
_LEAST_LOSS = 0.01
"""A score that falls by less, as a part of FP32's, does not tell sets apart; nor one that is a
share of the samples, and falls by less than two of them."""


@dataclass(frozen=True)
class _Value:
    """What a set of layers in FP32 gives: the noise of the outputs by their worst parts, and with
    all parts alike, as effects have it; the score and the losses by sample, None where there are
    none."""

    noise: float
    even_noise: float
    score: float | None = None
    losses: Float64 | None = None

    @property
    def is_broken(self) -> bool:
        """The set did not run, or its outputs hold NaN or Inf."""
        return math.isinf(self.even_noise)


@dataclass(frozen=True)
class _Yardstick:
    """What is lost, and how much of it a value gives back."""

    figure: Figure
    planned: float
    reference: float

    def of(self, value: _Value) -> float:
        """The figure: noise for an SQNR."""
        if self.figure is Figure.SQNR:
            return value.noise
        if self.figure is Figure.LOSS:
            return math.nan if value.losses is None else float(value.losses.mean())
        return math.nan if value.score is None else value.score

    def restored(self, value: _Value) -> float:
        """See CurvePoint."""
        return part_restored(self.planned, self.of(value), self.reference)

    def points(self, values: Mapping[int, _Value]) -> tuple[CurvePoint, ...]:
        """The curve, from what the first so many layers give."""
        points: list[CurvePoint] = []
        for layers, value in values.items():
            restored = self.restored(value)
            rises = restored > max((x.restored for x in points), default=0.0)
            points.append(CurvePoint(layers, self.shown(self.of(value)), restored, rises))
        return tuple(points)

    def shown(self, figure: float) -> float:
        """In dB, where it is noise."""
        return noise_db(figure) if self.figure is Figure.SQNR else figure


class _Trials:
    """Runs of sets of layers in FP32 on some samples, each done once, so many at most."""

    def __init__(
        self,
        compared: Compared,
        reference: KeptReference,
        outputs: Sequence[str],
        stack: ExitStack,
    ) -> None:
        """`compared` has the context to run in; `stack` closes what is opened."""
        self._context, self._reference = compared.context, reference
        keep = tuple(reference.outputs.outputs) if reference.task else ()
        known = reference.outputs.by_batch
        # Activations of an earlier set are not started from: which ones are kept by then depends on
        # the machine's load, and results differ in the last digits.
        self._task = PinnedTask(
            compared.pair,
            reference.subset,
            known,
            tuple(outputs),
            keep,
            on_kernels=compared.effects is not None and compared.effects.summary.on_kernels,
        )
        self._work = pinned_work(self._context, self._task, stack)
        self.samples = reference.subset.count
        self.metric = compared.metric
        self.known: dict[High, _Value] = {}
        self.most = 0

    def of_reference(self) -> _Value:
        """What FP32 gives."""
        task = self._reference.task
        with suppress(MetricError):  # so few samples cannot be judged
            if task is not None:
                return _Value(0.0, 0.0, task.of_reference(), task.losses(task.reference))
        return _Value(0.0, 0.0)

    def __call__(self, sets: Sequence[Collection[str]]) -> list[_Value | None]:
        """The values; None of sets beyond the number of runs, or for which the time is over.

        Raises:
            QdebugError: as `begin_pinned`.
        """
        due = [h for h in dict.fromkeys(map(frozenset, sets)) if h not in self.known]
        due = due[: max(0, self.most - len(self.known))]
        runs = begin_pinned(self._context, self._task, due, self._work) if due else iter(())
        try:
            for high, run in zip(due, runs, strict=True):
                broken = _Value(math.inf, math.inf)
                self.known[high] = broken if run is None else self._value(run)
        except OutOfTimeError:
            self.most = 0
        return [self.known.get(frozenset(names)) for names in sets]

    def _value(self, run: PinnedRun) -> _Value:
        errors = run.errors.worst_noise(), run.errors.noise()
        worst, even = (math.inf if math.isnan(x) else x for x in errors)
        noise = _Value(worst, even)
        task = self._reference.task
        if task is None:
            return noise
        try:
            outputs = joined(run.outputs)
            return replace(noise, score=task(outputs), losses=task.losses(outputs))
        except MetricError:  # outputs that hold NaN, or too few samples
            return noise


def curved(compared: Compared) -> Compared:
    """With its layers in the order whose first ones restore most, and the few to keep in FP32.

    Raises:
        QdebugError: samples cannot be read, or a model does not run.
    """
    result, effects = compared.result, compared.effects
    if effects is None or result.is_as_good_as_fp32:
        return compared
    orders = orders_of(result, effects)
    if len(orders[Order.EFFECT]) < 2 or candidates_of(compared.context, compared.pair) is None:
        return compared
    took_s = max(_ANY_TIME_S, _OF_THEIR_TIME * compared.effects_s)
    ends_at = min(compared.context.ends_at, time.monotonic() + took_s)
    timed = replace(compared, context=compared.context.until(ends_at))
    trials = None
    with ExitStack() as stack:
        with suppress(OutOfTimeError):
            trials = _trials(timed, effects, len(orders[Order.EFFECT]), stack)
        return compared if trials is None else _curved(compared, trials, orders)


def _trials(compared: Compared, effects: Effects, layers: int, stack: ExitStack) -> _Trials | None:
    """What runs sets of so many layers on as many samples as the work pays for; None where that is
    too little."""
    most = min(_MOST_RUNS, _RUNS_PER_LAYER * layers + _LEAST_RUNS)
    context, pair = compared.context, compared.pair
    macs = max(1.0, macs_per_sample(pair.layers, compared.subset))
    cheap = min(_OF_EFFECTS * CHEAP_MACS / macs, most * _ENOUGH_SAMPLES)
    passes = max(_OF_EFFECTS * effects.passes, cheap) / (
        _ON_KERNELS if effects.summary.on_kernels else 1
    )
    count = min(compared.samples.count, max(_LEAST_SAMPLES, int(passes / most)))
    with closing(context.backend.open(pair.reference.proto, ())) as session:
        outputs = float_outputs(pair, session)
        subset = spread(sized(context, session, compared.subset), count)
        reference = KeptReference(
            context,
            pair.reference,
            session,
            subset,
            compared.metric,
            stage="",
            resize=False,
            known=compared.measured.raw,
        )
    trials = _Trials(compared, reference, outputs, stack)
    trials.most = min(most, int(passes / subset.count))
    return trials if trials.most >= _LEAST_RUNS else None


def orders_of(result: CompareResult, effects: Effects) -> dict[Order, list[str]]:
    """The names of the layers that have an effect, in each order, the first one by effect."""
    planned = [x for x in result.layers if x.effect is not None]
    orders = {Order.EFFECT: [x.name for x in planned]}
    if effects.worst_part is not None:
        orders[Order.WORST_PART] = [x.name for x in _by(planned, effects.worst_part)]
    if effects.loss is not None:
        orders[Order.LOSS] = [x.name for x in _by(planned, effects.loss)]
    if by_score := _score_key(result, effects.scores):
        orders[Order.SCORE] = _sorted(planned, by_score)
    orders[Order.ALONE] = _sorted(planned, lambda x: -(x.effect.alone or 0.0) if x.effect else 0.0)
    orders[Order.LOCAL] = _sorted(planned, _local_key)
    return orders


def _score_key(
    result: CompareResult, scores: Mapping[str, float]
) -> Callable[[LayerResult], float] | None:
    """The nearest to FP32's score first, or the best; None where scores say nothing."""
    task = result.metric
    enough = result.effect is not None and result.effect.samples >= _SCORE_SAMPLES
    if task is None or not enough or len({*scores.values()}) < 2:
        return None

    def key(layer: LayerResult) -> float:
        score = scores.get(layer.name, scores[""])
        gained = task.better(score, scores[""])
        return abs(score - task.reference) if gained is None else -gained

    return key


def _by(layers: Sequence[LayerResult], effects: Effects) -> tuple[LayerResult, ...]:
    return ranked_by_effect(layers, effects.layers, effects.summary.noise)


def _sorted(layers: Sequence[LayerResult], key: Callable[[LayerResult], float]) -> list[str]:
    return [x.name for x in sorted(layers, key=key)]


def _local_key(layer: LayerResult) -> float:
    """The largest error of its own first; an overflow before all."""
    local = layer.local_sqnr_db
    if local is None or layer.harmless:
        return math.inf
    return -math.inf if math.isnan(local) else local


def _curved(compared: Compared, trials: _Trials, orders: Mapping[Order, Sequence[str]]) -> Compared:
    yardstick = _yardstick(trials, compared.result.metric)
    if yardstick is None:
        return compared

    def restored(names: Sequence[str]) -> float:
        value = trials([names])[0]
        return math.nan if value is None else yardstick.restored(value)

    shares = shares_of(compared.result.layers, yardstick.figure)
    count = len(orders[Order.EFFECT])
    trials([names[:k] for k in _DECIDING if k < count for names in orders.values()])
    rises = {order: _rise(names, restored) for order, names in orders.items()}
    if max(rises.values()) < 1 - _FASTER:
        first = sorted(orders, key=lambda order: -rises[order])
        merged = _merged([orders[x] for x in first], trials, restored, shares)
        orders = {**orders, Order.MERGED: merged}
        rises[Order.MERGED] = _rise(orders[Order.MERGED], restored)
    order = _fastest(rises, _margin(trials, yardstick))
    names = orders[order]
    trials([names[:k] for k in _SHOWN if k < count])
    choice = _chosen(compared, names, restored)
    choice = replace(
        choice, restored=restored(choice.names), names=leader_first(choice.names, shares)
    )
    firsts = {k: frozenset(names[:k]) for k in range(1, count)}
    points = yardstick.points({k: trials.known[x] for k, x in firsts.items() if x in trials.known})
    shown = names[: max((p.layers for p in points if p.rises), default=0)]
    ranked = [*shown, *(n for n in orders[Order.EFFECT] if n not in shown)]
    layers = _with_metric(_ranked(compared.result.layers, ranked), trials)
    layers, off_db = _as_tried(compared, layers, trials)
    choice = replace(choice, uncertain_db=off_db)
    curve = Curve(
        order=order,
        figure=yardstick.figure,
        samples=trials.samples,
        planned=yardstick.shown(yardstick.planned),
        reference=yardstick.shown(yardstick.reference),
        points=points,
        rises={str(x): rise for x, rise in rises.items()},
        runs=len(trials.known),
        names=tuple(names[: points[-1].layers if points else 0]),
    )
    return replace(compared.found(layers=layers, curve=curve), choice=choice)


def _as_tried(
    compared: Compared, layers: Sequence[LayerResult], trials: _Trials
) -> tuple[tuple[LayerResult, ...], float]:
    """`layers`, those that ran in FP32 by themselves here with what they gained in that run: so the
    table and the curve have one figure. And by how many dB the effects had another one, at most.

    Only where both are of all samples. What a layer gains depends, in the last bits, on what
    else its session holds, and some networks magnify these.
    """
    effect, planned = compared.result.effect, trials.known.get(frozenset())
    everywhere = effect is not None and effect.samples == trials.samples == compared.samples.count
    if effect is None or planned is None or not everywhere or not 0 < planned.even_noise < math.inf:
        return tuple(layers), 0.0
    found, off_db = list[LayerResult](), 0.0
    for layer in layers:
        value, own = trials.known.get(frozenset([layer.name])), layer.effect
        if own is None or own.output_share is None or value is None or value.is_broken:
            found.append(layer)
            continue
        share = 1 - value.even_noise / planned.even_noise
        if own.output_share_std == 0:  # it was measured, too
            off_db = max(off_db, apart_db(share, own.output_share, planned.even_noise))
        own = replace(own, gain=share * effect.noise, output_share=share, output_share_std=0.0)
        found.append(replace(layer, effect=own))
    return tuple(found), off_db


def apart_db(one: float, other: float, noise: float) -> float:
    """By how much the SQNR of outputs with so much noise differs that is left when one or the other
    share of it goes; what is better than RELEVANT_DB is all the same."""
    least = 10 ** (-RELEVANT_DB / 10)
    left = [noise_db(max(least, (1 - share) * noise)) for share in (one, other)]
    return abs(left[0] - left[1])


def _with_metric(layers: Sequence[LayerResult], trials: _Trials) -> tuple[LayerResult, ...]:
    """`layers` with what the metric gains by each of the first ones, where that is not known."""
    planned = trials([()])[0]
    gains: dict[str, float] = {}
    if planned is not None and planned.score is not None:
        due = [x.name for x in layers[:_FRONT] if x.effect and x.effect.metric_gain is None]
        for name, value in zip(due, trials([[n] for n in due]), strict=True):
            if value is not None and value.score is not None:
                gains[name] = value.score - planned.score
    return tuple(
        replace(x, effect=replace(x.effect, metric_gain=gains[x.name]))
        if x.effect and x.name in gains
        else x
        for x in layers
    )


def _yardstick(trials: _Trials, task: TaskResult | None) -> _Yardstick | None:
    """What tells sets apart; None where nothing is lost on these samples, or there is no time."""
    planned, reference = trials([()])[0], trials.of_reference()
    if planned is None:
        return None
    if planned.losses is not None and reference.losses is not None:
        lost = planned.losses - reference.losses
        scores = planned.score, reference.score
        tells = np.isfinite(lost).all() and tells_apart(planned.losses, reference.losses, *scores)
        if tells and lost.mean() > _SURE * lost.std() / math.sqrt(len(lost)):
            means = float(planned.losses.mean()), float(reference.losses.mean())
            return _Yardstick(Figure.LOSS, *means)
    score = reference.score
    enough = trials.samples >= _SCORE_SAMPLES
    if enough and task is not None and score is not None and planned.score is not None:
        gained = task.better(planned.score, score)
        lost_score = abs(score - planned.score) if gained is None else -gained
        least = 2 / trials.samples if is_share(trials.metric) else _LEAST_LOSS * abs(score)
        if lost_score > 0 and lost_score >= least:
            return _Yardstick(Figure.SCORE, planned.score, score)
    return _Yardstick(Figure.SQNR, planned.noise, 0.0) if planned.noise > 0 else None


def _rise(names: Sequence[str], restored: Callable[[Sequence[str]], float]) -> float:
    """How fast the curve of an order rises: the mean part restored at the deciding points."""
    found = [restored(names[:k]) for k in _DECIDING if k < len(names)]
    found = [min(1.0, max(0.0, x)) for x in found if not math.isnan(x)]
    return sum(found) / len(found) if found else 0.0


def _merged(
    orders: Sequence[Sequence[str]],
    trials: _Trials,
    restored: Callable[[Sequence[str]], float],
    shares: Mapping[str, float],
) -> list[str]:
    """The few first layers, one after the other: each time the next of that order that gives back
    most with those before; then the rest of the first order.

    Args:
        shares: see `shares_of`.
    """
    merged: list[str] = []
    for _ in range(min(MOST_LEADERS, len(orders[0]) - 1)):
        nexts = [next(n for n in names if n not in merged) for names in orders]
        sets = {n: (*merged, n) for n in nexts}
        trials([*sets.values()])
        known = {n: x for n in sets if not math.isnan(x := restored(sets[n]))}
        best = max(known, key=lambda n: known[n]) if known else nexts[0]
        merged.append(leader_of(nexts, best, shares))
    return [*merged, *(n for n in orders[0] if n not in merged)]


def _margin(trials: _Trials, yardstick: _Yardstick) -> float:
    """By how much an order must be faster than that by effect: a share of the samples moves in
    steps."""
    if yardstick.figure is not Figure.SCORE or not is_share(trials.metric):
        return _FASTER
    return max(_FASTER, 1 / trials.samples / abs(yardstick.planned - yardstick.reference))


def _fastest(rises: Mapping[Order, float], margin: float) -> Order:
    best = max(rises, key=lambda order: rises[order])
    return best if rises[best] > rises[Order.EFFECT] + margin else Order.EFFECT


def _chosen(
    compared: Compared, names: Sequence[str], restored: Callable[[Sequence[str]], float]
) -> Choice:
    """The smallest set that was found to give back most of what was lost. Where none does, or only
    one that is not small although few layers give back half: these few."""
    tried = [k for k in _SHOWN if k < len(names)]
    if len(names) <= MOST_LEADERS:  # each may break the outputs by itself
        tried.append(len(names))
    first = {k: restored(names[:k]) for k in tried if k <= MOST_LEADERS}
    most = max((x for x in first.values() if not math.isnan(x)), default=0.0)
    least = next((k for k, x in first.items() if x >= min(most, _NEARLY * most)), 1)
    leaders = Choice(_helping(names[:least], compared, restored), holds=False)
    holding = next((k for k in tried if restored(names[:k]) >= HOLDS), None)
    if holding is not None:
        before = max((k for k in tried if k < holding), default=0)
        between = range(before + 1, holding + 1)
        smallest = next(k for k in between if restored(names[:k]) >= HOLDS)
        shrunk = _shrunk(names[:smallest], restored)
        found = Choice(_helping(shrunk, compared, restored), holds=True)
        small = are_few(len(found.names), len(names), restored(found.names))
        return found if small or most < HALF else leaders
    for larger in [] if most >= HALF else _grown(compared, names):
        if restored(larger) >= HOLDS:
            return Choice(_shrunk(larger, restored), holds=True)
    return leaders


def _grown(compared: Compared, names: Sequence[str]) -> list[Sequence[str]]:
    """Larger sets: the layers that break the outputs each by itself, and more and more of the first
    ones, up to half of all."""
    result = compared.result
    noise = result.effect.noise if result.effect else 0.0
    planned = [x for x in result.layers if x.effect is not None]
    breaking = [x for x in planned if x.overflows or (x.effect and is_masked(x.effect, noise))]
    sets: list[Sequence[str]] = []
    if breaking:
        sets.append(with_overflow_groups(compared.pair, breaking, result))
    size = _SHOWN[-1] * _GROWS
    while size <= len(names) / 2:
        sets.append(names[: round(size)])
        size *= _GROWS
    return sets


def _shrunk(names: Sequence[str], restored: Callable[[Sequence[str]], float]) -> tuple[str, ...]:
    """`names` without those that are not needed to give back most: halves, then smaller parts, the
    last ones first. A few first ones of an order are as few as give that back already."""
    left, size = list(names), len(names) // 2
    while size >= 1 and len(names) > MOST_LEADERS:
        for start in reversed(range(0, len(left), size)):
            rest = left[:start] + left[start + size :]
            if rest and restored(rest) >= HOLDS:
                left = rest
        size //= 2
    return tuple(left)


def _helping(
    names: Sequence[str], compared: Compared, restored: Callable[[Sequence[str]], float]
) -> tuple[str, ...]:
    """`names` without those whose own gain is negative, where the others give back as much."""
    effects = {x.name: x.effect for x in compared.result.layers if x.effect is not None}
    left = list(names)
    for name in reversed(names):
        share = effects[name].output_share if name in effects else None
        rest = [n for n in left if n != name]
        if rest and share is not None and share < 0 and restored(rest) >= restored(left):
            left = rest
    return tuple(left)


def _ranked(layers: Sequence[LayerResult], names: Sequence[str]) -> tuple[LayerResult, ...]:
    """The layers in the order of `names`, those without an effect behind."""
    place = {name: k for k, name in enumerate(names)}
    ranked = sorted(layers, key=lambda x: place.get(x.name, len(names)))
    return tuple(replace(x, rank=k) for k, x in enumerate(ranked, start=1))
