"""The samples with the model: their values, their labels, and whether they were prepared as in
training."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import numpy as np

from qdebug.analyse.gate import ENOUGH_FOR_CLASSES, on_model
from qdebug.analyse.objects import refuse_nothing
from qdebug.commands.check.variants import (
    WHOLE,
    Variant,
    chance_of_gain,
    confidence,
    of_arrays,
    of_pictures,
)
from qdebug.config.check import CheckSettings
from qdebug.errors import MetricError, QdebugError, SampleError
from qdebug.execute.context import Context
from qdebug.metrics.chance import better_than_chance, no_better_than_chance
from qdebug.metrics.tasks.base import LABEL_NAMES, TaskMetric, first_output, join_outputs
from qdebug.metrics.tasks.classes import classes_of
from qdebug.metrics.tasks.kinds import check_labels, decoder_of
from qdebug.metrics.tasks.load import load_metric
from qdebug.metrics.tasks.losses import are_probabilities
from qdebug.metrics.tasks.registry import WITH_MASKS
from qdebug.metrics.tasks.shares import is_single
from qdebug.metrics.tasks.worst_group import metric_of
from qdebug.network.graph import Graph
from qdebug.network.prepare import Model
from qdebug.network.preprocessing import (
    Preprocessing,
    as_setting,
    fixed_size,
    layout_of,
    picture_input,
)
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import SampleSubset, spread, whole
from qdebug.results.check import Finding, TriedVariant, ValueRange
from qdebug.types import Array, Feeds
from qdebug.wording import counted, option

_GIVEN = "as given"
_LEAST_GAIN = 0.1
"""Of a score, or of confidence, that another way of preparing the samples must bring."""
_LIKELY, _CERTAIN = 0.05, 0.01
"""How often chance may bring the gain."""
_SURE, _UNSURE = 0.5, 0.5
"""Without labels: another way must make FP32 so sure, and the given one at most so much of that."""
_HASHED = 4096
"""Samples of each set that are looked at for overlap."""
_COMPARED = 64
"""Samples of each set whose values are compared."""
_FAR = 0.5
"""Standard deviations that the means of two sets may differ by: those of the two halves of one set
of 64 pictures differ by 0.1 at most, those of pictures scaled otherwise by more than 1."""


@dataclass(frozen=True)
class Executed:
    """FP32 on some samples.

    Attributes:
        outputs: arrays [samples, …] by name.
        labels: of the same samples.
        first: the arrays of the inputs, of some of them.
    """

    outputs: Mapping[str, Array]
    labels: Mapping[str, Array]
    first: Feeds


@dataclass(frozen=True)
class Judged:
    """How FP32 does: by a metric, or by how sure it is.

    Attributes:
        name: of the score.
        metric: None for the confidence.
        classes: that the model names.
        to_reference: the metric that is asked for where it takes what FP32 finds as the truth:
            then FP32 is always right.
    """

    name: str
    metric: TaskMetric | None
    classes: int
    to_reference: TaskMetric | None = None

    @property
    def is_of_classes(self) -> bool:
        """Whether the metric takes the outputs for scores of classes."""
        metric = self.metric or self.to_reference
        return metric is not None and metric.takes == "scores"

    @property
    def decoder(self) -> str:
        """How boxes are read; "" where there are none."""
        metric = self.metric or self.to_reference
        if metric is None or metric.takes != "boxes":
            return ""
        return decoder_of(metric).removesuffix(WITH_MASKS)

    def value(self, run: Executed) -> float | None:
        """The score; None where there is none."""
        if self.metric is None:
            return confidence(run.outputs, self.classes)
        return self.metric(run.outputs, run.labels, run.outputs)

    def chance(self, given: Executed, other: Executed) -> float | None:
        """How often chance alone would favour `other` so much; None where no sample has a score of
        its own."""
        if self.metric is None or self.metric.per_sample is None:
            return None
        before, after = (
            self.metric.per_sample(run.outputs, run.labels, run.outputs) for run in (given, other)
        )
        sign = 1 if self.metric.higher_is_better else -1
        gains = sign * (after - before)
        return chance_of_gain(list(gains < 0), list(gains > 0))


def judge_of(settings: CheckSettings, samples: Samples, model: Model, classes: int) -> Judged:
    """By what FP32 is judged: the metric that is asked for, else one that fits the labels, else its
    confidence; so, too, where the metric takes what FP32 finds as the truth, since that is right
    however the samples are prepared. See also judged_by.

    Raises:
        MetricError: there is no such metric, or it does not fit the model.
    """
    name = settings.metric
    if name is None and any(label in samples.extras for label in LABEL_NAMES):
        name = "top1"
    metric = None if name is None else on_model(load_metric(name, settings.decode), model)
    if metric is None and "boxes" in samples.extras:
        metric = on_model(load_metric("map50", settings.decode), model)
    elif metric is not None and metric.needs_labels and metric.takes == "boxes":
        check_labels(metric, samples.extras, "")
    if metric is None or metric.takes_reference_as_truth:
        return Judged("confidence", None, classes, metric)
    return judged_by(metric)


def judged_by(metric: TaskMetric) -> Judged:
    """FP32 judged by a metric that knows the model. Where masks of objects go with boxes the boxes
    alone are judged: what ruins the ones ruins the others, and with the masks of eight ways to
    prepare 32 pictures a check of YOLOv8n-seg took 27 CPU seconds instead of 10."""
    reads = decoder_of(metric)
    if not reads.endswith(WITH_MASKS):
        return Judged(metric.name, metric, 0)
    name = metric_of(metric.name)
    boxes = load_metric(name, reads.removesuffix(WITH_MASKS), metric.facts)
    return Judged(f"{name} of boxes", boxes, 0)


def execute(
    context: Context, graph: Graph, subset: SampleSubset, variant: Variant | None
) -> Executed:
    """FP32 on `subset`, whose pictures or arrays are changed as `variant` says.

    Raises:
        QdebugError: it does not run, or samples cannot be read.
    """
    taken = picture_input(graph.inputs)
    parts: dict[str, list[Array]] = {}
    seen: list[Feeds] = []
    with closing(context.backend.open(graph.proto, [])) as session:
        for batch in subset.batches:
            feeds = dict(subset.samples.feeds(batch.start, batch.count))
            if variant is not None and variant.change is not None and taken is not None:
                changed = variant.change(feeds[taken.name])
                feeds[taken.name] = np.ascontiguousarray(changed, taken.dtype)
            seen.append(feeds)
            for output, array in session.run(feeds).items():
                if output in graph.outputs:
                    parts.setdefault(output, []).append(array)
    counts = [batch.count for batch in subset.batches]
    rows = np.array(subset.indices)
    labels = {name: subset.samples.extras[name][rows] for name in subset.samples.extras}
    ordered = {name: parts[name] for name in graph.outputs if name in parts}
    same = {name: [f[name] for f in seen] for name in seen[0]}
    first = {
        name: np.concatenate(arrays) if len({a.shape[1:] for a in arrays}) == 1 else arrays[0]
        for name, arrays in same.items()
        if arrays[0].ndim
    }
    return Executed(join_outputs(ordered, counts), labels, first)


@dataclass(frozen=True)
class Tried:
    """What was tried on the samples, and what follows.

    Attributes:
        given: FP32 on the samples as they are; None where it did not run.
    """

    score: str
    variants: tuple[TriedVariant, ...]
    findings: tuple[Finding, ...]
    ranges: tuple[ValueRange, ...]
    given: Executed | None = None


def try_variants(
    context: Context,
    graph: Graph,
    subset: SampleSubset,
    judge: Judged,
    inputs_setting: str,
    *,
    always: bool = True,
) -> Tried:
    """FP32 on the samples as they are, and prepared in other ways.

    Args:
        always: try the other ways whatever FP32 does on the samples as they are; else only where it
            does badly.

    Raises:
        QdebugError: it does not run on them as they are.
    """
    given = execute(context, graph, subset, None)
    ranges = tuple(_ranges(given.first, inputs_setting))
    value = judge.value(given)
    labels = tuple(_label_findings(subset.samples, given, judge))
    if value is None:
        return Tried("", (), (*labels, *_one_class(judge, given, subset.count)), ranges, given)
    if not always and value > _UNSURE:
        return Tried(judge.name, (TriedVariant(_GIVEN, value),), labels, ranges, given)
    how = subset.samples.spec.preprocessing
    trial = _Trial(context, graph, subset, judge, given)
    ways = trial.of(_ways(subset, graph, given, how, judge.decoder))
    best = _best(judge, ways)
    is_whole = best is None or how is None or best.variant.kind == WHOLE
    if best is not None and not is_whole and any(_better(judge, value, best, subset.count)):
        second = trial.on_top_of(best, {how, *(way.variant.preprocessing for way in ways)})
        ways += second
        following = _best(judge, second)
        if following is not None and any(_better(judge, best.score, following, subset.count)):
            best = following
    tried = [TriedVariant(_GIVEN, value), *(w.told for w in ways)]
    chance = _chance_level(given, judge)
    found = [*labels]
    if best is not None:
        found += _better(judge, value, best, subset.count, chance, _remedy(graph, best.variant))
    found += [] if found else _guessing(judge, value, subset.count, chance)
    found += [] if found else _one_class(judge, given, subset.count)
    if not all(way.is_judged for way in ways) and (how is None or how.guess):
        found.append(_unjudged())
    return Tried(judge.name, tuple(tried), tuple(found), ranges, given)


@dataclass(frozen=True)
class _Way:
    """FP32 on the samples, prepared in another way.

    Attributes:
        samples: that it changes.
        chance: see Judged.chance, next to what it was tried on.
        is_judged: the score says something: see _is_larger.
    """

    variant: Variant
    samples: SampleSubset
    score: float
    chance: float | None
    is_judged: bool

    @property
    def told(self) -> TriedVariant:
        """For the result."""
        return TriedVariant(self.variant.name, self.score, self.is_judged)


@dataclass(frozen=True)
class _Trial:
    """What runs FP32 on samples that are prepared in other ways."""

    context: Context
    graph: Graph
    subset: SampleSubset
    judge: Judged
    given: Executed

    def on_top_of(self, best: _Way, seen: Collection[Preprocessing | None]) -> list[_Way]:
        """One more change of a way of preparing pictures, by what it gains next to that; of those
        that were not `seen`."""
        how = best.variant.preprocessing
        assert how is not None
        run = execute(self.context, self.graph, best.samples, best.variant)
        more = _ways(self.subset, self.graph, run, how, "")
        found = replace(self, given=run).of(w for w in more if w[0].preprocessing not in seen)
        return [
            replace(
                way,
                variant=replace(
                    way.variant,
                    kind=WHOLE,
                    name=f"{best.variant.name}, {way.variant.name}",
                ),
            )
            for way in found
        ]

    def of(self, ways: Iterable[tuple[Variant, SampleSubset]]) -> list[_Way]:
        """The ways that can be tried: that others cannot says nothing."""
        found = []
        for variant, others in ways:
            with suppress(QdebugError):
                run = execute(self.context, self.graph, others, variant)
                score = self.judge.value(run)
                if score is not None:
                    judged = self.judge.metric is not None or not _is_larger(run, self.given)
                    chance = self.judge.chance(self.given, run)
                    found.append(_Way(variant, others, score, chance, judged))
        return found


def _best(judge: Judged, ways: Sequence[_Way]) -> _Way | None:
    """The way on which FP32 does best; None where there is none that is judged."""
    sign = 1 if judge.metric is None or judge.metric.higher_is_better else -1
    judged = [way for way in ways if way.is_judged]
    return max(judged, key=lambda way: sign * way.score, default=None)


def _remedy(graph: Graph, variant: Variant) -> str:
    """How samples are prepared as a variant says."""
    how, taken = variant.preprocessing, picture_input(graph.inputs)
    if how is None or taken is None:
        return "Prepare the samples so."
    layout = how.layout or layout_of(taken) or "nchw"
    setting, holds = as_setting(how, sized=None in fixed_size(taken, layout))
    file = f", a file that holds {holds}" if holds else ""
    return f"Prepare the samples so: {option('preprocess', setting)}{file}."


def _unjudged() -> Finding:
    return Finding(
        "note",
        "scale-unjudged",
        "Nothing tells the scale of values: in 0 to 255 a network that learned with 0 to 1 is "
        "saturated, and sure of anything, so how sure FP32 is cannot judge it.",
        f"Give labels (a folder for each class, or {option('metric')} and what it needs), or say "
        f"how the samples are prepared: {option('preprocess')}.",
    )


def _is_larger(run: Executed, given: Executed) -> bool:
    """Whether its values are much larger: then FP32 is saturated, and sure of anything."""
    sizes = [max(float(np.abs(a).mean()) for a in x.first.values()) for x in (run, given)]
    return sizes[0] > _LARGER * sizes[1]


_LARGER = 4.0
"""Values in -1 to 1, or normalized by mean and standard deviation, are at most 2.5 times as large
as those in 0 to 1; values in 0 to 255 are 255 times as large."""


def _ways(
    subset: SampleSubset, graph: Graph, given: Executed, how: Preprocessing | None, decoder: str
) -> Iterator[tuple[Variant, SampleSubset]]:
    """The variants of pictures that are read as `how` says, or of arrays, each with the samples
    that it changes."""
    taken = picture_input(graph.inputs)
    if taken is None:
        return
    if how is None:
        for variant in of_arrays(taken, given.first[taken.name]):
            yield variant, subset
        return
    for variant in of_pictures(how, decoder):
        with suppress(SampleError):
            spec = replace(subset.samples.spec, preprocessing=variant.preprocessing)
            others = spec.open(sample_inputs(graph))
            if others.batch_is_free:
                others = others.with_batch_size(subset.samples.batch_size)
            yield variant, replace(subset, samples=others)


def _better(
    judge: Judged,
    given: float,
    best: _Way,
    samples: int,
    chance: float | None = None,
    remedy: str = "",
) -> Iterator[Finding]:
    """The way on which FP32 does best, if clearly better than as given."""
    sign = 1 if judge.metric is None or judge.metric.higher_is_better else -1
    score, variant, p = best.score, best.variant, best.chance
    gain = sign * (score - given)
    told = (
        f"FP32 has {judge.name} {given:.3f} on {counted(samples, 'sample')} as given, and "
        f"{score:.3f} with {variant.name}"
    )
    if judge.metric is None:
        if score >= _SURE and given <= _UNSURE * score:
            yield Finding("warning", variant.kind, f"{told}; there are no labels to tell.", remedy)
        return
    if gain < _LEAST_GAIN:
        return
    if p is not None and p > _LIKELY:
        return
    # Without p: a score of all samples together.
    is_certain = given < _UNSURE * score if p is None else p < _CERTAIN
    if no_better_than_chance(given, samples, chance):
        told = f"FP32 is at chance level. {told}"
    yield Finding("error" if is_certain else "warning", variant.kind, f"{told}.", remedy)


def _guessing(judge: Judged, given: float, samples: int, chance: float | None) -> Iterator[Finding]:
    """That FP32 is useless on these samples, where no other way to prepare them mends it."""
    metric = judge.metric
    guesses = no_better_than_chance(given, samples, chance)
    finds_none = metric is not None and metric.takes == "boxes" and given < _NEXT_TO_NONE
    if guesses or finds_none:
        level = f", where guessing gives {chance:.3f}" if guesses and chance is not None else ""
        yield Finding(
            "warning",
            "chance-level",
            f"FP32 is no better than chance: {judge.name} {given:.3f} on "
            f"{counted(samples, 'sample')}{level}.",
            "See that these are samples of the model's task, and that the labels are numbered as "
            "its outputs are.",
        )


def _one_class(judge: Judged, given: Executed, samples: int) -> Iterator[Finding]:
    """That FP32 takes all samples for the same class, unless labels say that they are of one. Of an
    output that may as well be no classifier's it is worth a note only."""
    classes = classes_of(given.outputs)
    labels = next((given.labels[name] for name in LABEL_NAMES if name in given.labels), None)
    of_one = labels is not None and len(np.unique(labels)) == 1
    if of_one or classes is None or not classes.chosen == 1 < classes.count:
        return
    scores = first_output(given.outputs)
    if samples < ENOUGH_FOR_CLASSES or (
        not judge.is_of_classes and (scores.ndim != 2 or is_single(scores.shape))
    ):
        return
    if judge.metric is not None and not judge.is_of_classes:
        return
    sure = judge.is_of_classes or judge.classes == classes.count or are_probabilities(scores)
    yield Finding(
        "warning" if sure else "note",
        "one-class",
        ("" if sure else "If the first output is scores of classes: ")
        + f"FP32 chooses the same class for all {samples} samples, so no score of classes can "
        "change much.",
        "See that they are samples of several classes, prepared as for training.",
    )


_NEXT_TO_NONE = 0.05
"""Of mAP and F1 of boxes. Public detectors of 80 classes have 0.2 and more on their own task."""


def _chance_level(given: Executed, judge: Judged) -> float | None:
    """The score of guessing: of shares one of as many classes as there are."""
    if judge.metric is None or not judge.metric.is_share:
        return None
    return 1 / max(2, int(first_output(given.outputs)[0].size))


def _ranges(first: Feeds, setting: str) -> Iterator[ValueRange]:
    for name, array in first.items():
        values = np.asarray(array, np.float64)
        if values.size:
            figures = (values.min(), values.max(), values.mean(), values.std())
            yield ValueRange(setting, name, *map(float, figures))


def _label_findings(samples: Samples, given: Executed, judge: Judged) -> Iterator[Finding]:
    """Labels that are no class of the network, or are off by one: all of them, by what FP32 makes
    of a few samples."""
    if judge.metric is None or judge.metric.name != "top1":
        return
    name = next((n for n in LABEL_NAMES if n in given.labels), None)
    if name is None or given.labels[name].dtype.kind not in "iu":
        return
    labels = samples.extras[name].reshape(-1)
    of_network = classes_of(given.outputs)
    classes = of_network.count if of_network else 0
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        value = labels[wrong][0]
        yield Finding(
            "error",
            "label-range",
            f"{int(wrong.sum())} of {counted(len(labels), 'label')} are no class of the network, "
            f"which has {classes}, numbered from 0: the first of them is {value}.",
            _label_remedy(samples.origin.numbered_folders, classes, value == classes),
        )
    before = judge.metric(given.outputs, given.labels, given.outputs)
    for shift in (-1, 1):
        shifted = replace(given, labels={**given.labels, name: given.labels[name] + shift})
        after = judge.metric(shifted.outputs, shifted.labels, shifted.outputs)
        per_sample = judge.metric.per_sample
        if per_sample is None or after - before < _LEAST_GAIN:
            continue
        right = [per_sample(x.outputs, x.labels, x.outputs) > 0 for x in (given, shifted)]
        p = chance_of_gain(list(right[0]), list(right[1]))
        if p < _CERTAIN and better_than_chance(after, len(right[0]), 1 / max(2, classes)):
            yield Finding(
                "error",
                "labels-off-by-one",
                f"FP32 has top1 {before:.3f} with the labels as given, and {after:.3f} with "
                f"{'1 less' if shift < 0 else '1 more'} each: they are off by one.",
                "Number the classes from 0, as the network does.",
            )


def _label_remedy(folders: int, classes: int, is_next: bool) -> str:
    """What to do about a label that is no class of the network; the one after the last one counts
    from 1. `folders`: whose names are the labels, 0 for none."""
    if folders:
        return (
            f"The names of the {folders} folders were taken for class numbers: name the folders by "
            f"the network's classes, 0 to {classes - 1}, or give a .csv with the columns file and "
            "label in their place."
        )
    if is_next:
        return "Number the classes from 0, as the network does."
    return "Give the labels of this network."


def score_findings(
    samples: Samples, given: Executed, judge: Judged, value: float, count: int
) -> tuple[Finding, ...]:
    """What is wrong with the labels; else that FP32 is useless on `count` samples that it was
    executed on, where its score is `value`."""
    wrong = tuple(_label_findings(samples, given, judge))
    return wrong or tuple(_guessing(judge, value, count, _chance_level(given, judge)))


def sample_findings(
    samples: Samples, metric: TaskMetric | None, value: float | None, max_drop: float | None
) -> Iterator[Finding]:
    """Whether there are enough samples for what is to be told."""
    if metric is None or not metric.is_share or value is None:
        return
    grain = 1 / samples.count
    half = _wilson(value, samples.count)
    told = (
        f"{counted(samples.count, 'sample')}: one is {grain:.2g} of {metric.name}, whose 95% "
        f"interval is ±{half:.2g}."
    )
    drop = max_drop or 0.0
    if not drop:
        yield Finding("note", "sample-count", told)
        return
    # A drop d that is real shows where at least as many samples are lost as a sign test needs: 5
    # that are lost and none that are gained have a chance of 1/32.
    needed = math.ceil(_LOST / drop)
    few = samples.count < needed
    yield Finding(
        "warning" if few else "note",
        "sample-count",
        f"{told} {option('max_drop', f'{drop:g}')} needs at least {needed} samples to be told from "
        "chance.",
        "Give more samples." if few else "",
    )


def nothing_found(metric: TaskMetric, given: Executed, samples: int) -> Iterator[Finding]:
    """That FP32 finds nothing, of a metric that takes what it finds as the truth."""
    try:
        refuse_nothing(metric, given.outputs, samples)
    except MetricError as error:
        yield uncomputed(error)


_LOST = 5
_Z = 1.96
"""Of a normal distribution, 95% lie so many standard deviations around its mean."""


def _wilson(share: float, samples: int) -> float:
    """Half of Wilson's 95% interval of a share of so many samples."""
    inner = share * (1 - share) / samples + (_Z / samples / 2) ** 2
    return _Z * math.sqrt(inner) / (1 + _Z**2 / samples)


def set_findings(compared: Samples, calibration: Samples) -> Iterator[Finding]:
    """Whether two sets share samples, or have values of unlike size."""
    shared = shared_samples(compared, calibration, _HASHED)
    if shared is not None:
        yield shared
        if shared.severity == "error":
            return
    first, second = (_values(each) for each in (compared, calibration))
    for name, one in first.items():
        other = second.get(name)
        if other is None or one.size == 0 or other.size == 0:
            continue
        spread_ = math.sqrt((float(one.var()) + float(other.var())) / 2)
        apart = abs(float(one.mean()) - float(other.mean()))
        if not one.std() and not other.std() and not apart:
            continue  # one value for all samples, such as a sampling rate
        ratio = float(one.std()) / float(other.std()) if other.std() else math.inf
        if apart > _FAR * spread_ or not 1 / (1 + _FAR) < ratio < 1 + _FAR:
            yield Finding(
                "warning",
                "unlike-samples",
                f"Values of '{name}' are unlike: mean {one.mean():.3g}, standard deviation "
                f"{one.std():.3g} in {option('inputs')}; {other.mean():.3g} and {other.std():.3g} "
                f"in {option('calib_data')}.",
                "Prepare both alike, and take both from where the network will be used.",
            )


def shared_samples(compared: Samples, calibration: Samples, most: int) -> Finding | None:
    """Whether samples that are compared are among those that calibrate, by content; of the first
    `most` of each set."""
    ours, theirs = _hashes(compared, most), {*_hashes(calibration, most)}
    in_both = [each for each in ours if each in theirs]
    shared = len(in_both)
    if not shared:
        return None
    if all(each.is_constant for each in in_both):
        return Finding(
            "warning",
            "constant-samples",
            f"{shared} of {counted(len(ours), 'sample')} of {option(compared.spec.setting)} are in "
            f"{option(calibration.spec.setting)}, too: all of them hold one value only, as silence "
            "and empty pictures do.",
            "See that they are samples of the model's task, and no files that were left empty.",
        )
    return Finding(
        "error" if shared == len(ours) else "warning",
        "shared-samples",
        f"{shared} of {counted(len(ours), 'sample')} of {option(compared.spec.setting)} are in "
        f"{option(calibration.spec.setting)}, too: ranges that are fitted to what is compared "
        "flatter the result.",
        f"Give {option(calibration.spec.setting)} other samples of the same kind.",
    )


@dataclass(frozen=True)
class _Content:
    """What tells a sample from others.

    Attributes:
        is_constant: each of its inputs holds one value only.
    """

    digest: bytes
    is_constant: bool


def _hashes(samples: Samples, most: int) -> list[_Content]:
    """Of each of the first samples; feeds that are executed together count as one."""
    found: list[_Content] = []
    for batch in samples.batches():
        if batch.start >= most:
            break
        feeds = samples.feeds(batch.start, batch.count)
        rows = batch.count if samples.is_stacked else 1
        for row in range(rows):
            digest = hashlib.sha256()
            inputs = [array[row] if rows > 1 else array for array in feeds.values()]
            for array in inputs:
                digest.update(array.tobytes())
            is_constant = all(
                bool((array == array.flat[0]).all()) for array in inputs if array.size
            )
            found.append(_Content(digest.digest(), is_constant))
    return found


def _values(samples: Samples) -> dict[str, Array]:
    """The values of each input of floating point, of samples that are spread over the set."""
    subset = spread(whole(samples), _COMPARED)
    found: dict[str, list[Array]] = {}
    for batch in subset.batches:
        for name, array in samples.feeds(batch.start, batch.count).items():
            if array.dtype.kind == "f":
                found.setdefault(name, []).append(array.reshape(-1).astype(np.float64))
    return {name: np.concatenate(arrays) for name, arrays in found.items()}


def uncomputed(error: MetricError) -> Finding:
    """That a metric cannot be computed is found, and ends nothing."""
    one_by_one = re.sub(r"(?<=[^:])\n {4}", "; ", error.hint)  # the lines of a list
    return Finding("error", "metric", f"{error.message}.", " ".join(one_by_one.split()))
