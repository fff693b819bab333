"""Whether FP32 does clearly better on the same samples where they are prepared in another way, and
what is wrong with their labels."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from qdebug.analyse.gate import ENOUGH_FOR_CLASSES
from qdebug.analyse.tensor_errors import affordable_samples
from qdebug.commands.check.judging import (
    WHOLE,
    Executed,
    Judged,
    Variant,
    chance_of_gain,
    execute,
    judged_by,
    of_arrays,
    of_pictures,
)
from qdebug.commands.check.samples import shared_samples
from qdebug.errors import QdebugError, SampleError
from qdebug.execute.context import Context
from qdebug.metrics.chance import better_than_chance, no_better_than_chance
from qdebug.metrics.tasks.base import LABEL_NAMES, TaskMetric, first_output
from qdebug.metrics.tasks.classes import are_probabilities, classes_of
from qdebug.metrics.tasks.shares import is_single
from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.network.macs import macs_per_sample
from qdebug.network.preprocessing import (
    Preprocessing,
    as_setting,
    fixed_size,
    layout_of,
    picture_input,
)
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import SampleSubset, finely, same_samples, spread, whole
from qdebug.network.samplespec import SampleSpec
from qdebug.results.check import Finding, Severity, TriedVariant, ValueRange
from qdebug.run.timelimit import OutOfTimeError
from qdebug.wording import counted, option

_GIVEN = "as given"
_LEAST_GAIN = 0.1
"""Of a score, or of confidence, that another way of preparing the samples must bring."""
_LIKELY, _CERTAIN = 0.05, 0.01
"""How often chance may bring the gain."""
_SURE, _UNSURE = 0.5, 0.5
"""Without labels: another way must make FP32 so sure, and the given one at most so much of that."""
_LARGER = 4.0
"""Values in -1 to 1, or normalized by mean and standard deviation, are at most 2.5 times as large
as those in 0 to 1; values in 0 to 255 are 255 times as large."""
_NEXT_TO_NONE = 0.05
"""Of mAP and F1 of boxes. Public detectors of 80 classes have 0.2 and more on their own task."""


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
    context: Context, graph: Graph, subset: SampleSubset, judge: Judged, *, always: bool = True
) -> Tried:
    """FP32 on the samples as they are, and prepared in other ways.

    Args:
        always: try the other ways whatever FP32 does on the samples as they are; else only where it
            does badly.

    Raises:
        QdebugError: it does not run on them as they are.
    """
    given = execute(context, graph, subset)
    value, count = judge.value(given), subset.count
    findings = [*_label_findings(subset.samples, given, judge)]
    if value is None:
        findings += _one_class(judge, given, count)
        return Tried("", (), tuple(findings), given.ranges, given)
    as_given = _Way(Variant("", _GIVEN), given, value, None, True)
    ways: list[_Way] = []
    if always or value <= _UNSURE:
        how = subset.samples.spec.preprocessing
        changes = _changes(graph, subset, given, how, judge.decoder)
        ways = [*_tried(context, graph, judge, given, changes)]
        best = _best(judge, ways)
        if best and how and best.variant.kind != WHOLE and _severity(judge, as_given, best):
            known = {how, *(way.variant.preprocessing for way in ways)}
            name, on_top = best.variant.name, best.variant.preprocessing
            second = (
                (replace(one, kind=WHOLE, name=f"{name}, {one.name}"), others)
                for one, others in _changes(graph, subset, best.run, on_top, "")
                if one.preprocessing not in known
            )
            more = [*_tried(context, graph, judge, best.run, second)]
            ways += more
            following = _best(judge, more)
            better = following is not None and _severity(judge, best, following)
            best = following if better else best
        if best is not None:
            findings += _better(graph, judge, as_given, best, count)
        if not findings:
            findings += _guessing(judge, given, value, count) or _one_class(judge, given, count)
        if not all(way.is_judged for way in ways) and (how is None or how.guess):
            findings.append(_unjudged())
    told = (TriedVariant(w.variant.name, w.score, w.is_judged) for w in (as_given, *ways))
    return Tried(judge.name, tuple(told), tuple(findings), given.ranges, given)


@dataclass(frozen=True)
class _Way:
    """FP32 on the samples, prepared in some way.

    Attributes:
        chance: see Judged.chance, next to what it was tried on.
        is_judged: the score says something: where values are much larger, FP32 is saturated, and
            sure of anything.
    """

    variant: Variant
    run: Executed
    score: float
    chance: float | None
    is_judged: bool


def _tried(
    context: Context,
    graph: Graph,
    judge: Judged,
    before: Executed,
    changes: Iterable[tuple[Variant, SampleSubset]],
) -> Iterator[_Way]:
    """FP32 on samples with each of the changes, next to that `before` them. That a change cannot be
    made says nothing."""
    for variant, subset in changes:
        with suppress(QdebugError):
            run = execute(context, graph, subset, variant.change)
            score, chance = judge.value(run), judge.chance(before, run)
            is_judged = judge.metric is not None or run.size <= _LARGER * before.size
            if score is not None:
                yield _Way(variant, run, score, chance, is_judged)


def _changes(
    graph: Graph, subset: SampleSubset, given: Executed, how: Preprocessing | None, decoder: str
) -> Iterator[tuple[Variant, SampleSubset]]:
    """The variants of pictures that are read as `how` says, or of arrays, each with the samples
    that it changes."""
    taken, samples, first = picture_input(graph.inputs), subset.samples, subset.batches[0]
    if taken is not None and how is None:
        values = next(x for x in given.ranges if x.name == taken.name)
        shape = samples.feeds(first.start, first.count)[taken.name].shape
        yield from ((one, subset) for one in of_arrays(taken, values, shape))
    for variant in of_pictures(how, decoder) if taken is not None and how is not None else ():
        with suppress(SampleError):
            spec = replace(samples.spec, preprocessing=variant.preprocessing)
            others = spec.open(sample_inputs(graph))
            if others.batch_is_free:
                others = others.with_batch_size(samples.batch_size)
            yield variant, replace(subset, samples=others)


def _best(judge: Judged, ways: Sequence[_Way]) -> _Way | None:
    """The way on which FP32 does best; None where there is none that is judged."""
    judged = [way for way in ways if way.is_judged]
    return max(judged, key=lambda way: judge.sign * way.score, default=None)


def _severity(judge: Judged, given: _Way, other: _Way) -> Severity | None:
    """How certain it is that FP32 does clearly better on the other way; None where it is not."""
    if judge.metric is None:
        sure = other.score >= _SURE and given.score <= _UNSURE * other.score
        return "warning" if sure else None
    chance = other.chance
    if judge.sign * (other.score - given.score) < _LEAST_GAIN or (chance or 0.0) > _LIKELY:
        return None
    if chance is None:  # a score of all samples together
        return "error" if given.score < _UNSURE * other.score else "warning"
    return "error" if chance < _CERTAIN else "warning"


def _better(
    graph: Graph, judge: Judged, given: _Way, best: _Way, samples: int
) -> Iterator[Finding]:
    """The way on which FP32 does best, if clearly better than as given."""
    severity = _severity(judge, given, best)
    if severity is None:
        return
    told = (
        f"{judge.subject} has {judge.name} {given.score:.3f} on {counted(samples, 'sample')} "
        f"as given, and {best.score:.3f} with {best.variant.name}"
    )
    if judge.metric is None:
        told += "; there are no labels to tell"
    elif no_better_than_chance(given.score, samples, judge.guessing(given.run)):
        told = f"{judge.subject} is at chance level. {told}"
    yield Finding(severity, best.variant.kind, f"{told}.", _remedy(graph, best.variant))


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


def score_findings(
    samples: Samples, given: Executed, judge: Judged, value: float, count: int
) -> tuple[Finding, ...]:
    """What is wrong with the labels; else that FP32 is useless on `count` samples that it was
    executed on, where its score is `value`."""
    wrong = tuple(_label_findings(samples, given, judge))
    return wrong or tuple(_guessing(judge, given, value, count))


def _guessing(judge: Judged, given: Executed, value: float, samples: int) -> list[Finding]:
    """That FP32 is useless on these samples, where no other way to prepare them mends it."""
    metric, chance = judge.metric, judge.guessing(given)
    guesses = no_better_than_chance(value, samples, chance)
    if not guesses and not (metric and metric.takes == "boxes" and value < _NEXT_TO_NONE):
        return []
    level = f", where guessing gives {chance:.3f}" if guesses and chance is not None else ""
    return [
        Finding(
            "warning",
            "chance-level",
            f"{judge.subject} is no better than chance: {judge.name} {value:.3f} on "
            f"{counted(samples, 'sample')}{level}.",
            "See that these are samples of the model's task, and that the labels are numbered as "
            "its outputs are.",
        )
    ]


def _one_class(judge: Judged, given: Executed, samples: int) -> list[Finding]:
    """That FP32 takes all samples for the same class, unless labels say that they are of one. Of an
    output that may as well be no classifier's it is worth a note only."""
    classes, scores = classes_of(given.outputs), first_output(given.outputs)
    labels = next((given.labels[name] for name in LABEL_NAMES if name in given.labels), None)
    if labels is not None and len(np.unique(labels)) == 1:
        return []
    if classes is None or not classes.chosen == 1 < classes.count or samples < ENOUGH_FOR_CLASSES:
        return []
    no_classifier = judge.metric is not None or scores.ndim != 2 or is_single(scores.shape)
    if no_classifier and not judge.is_of_classes:
        return []
    sure = judge.is_of_classes or judge.classes == classes.count or are_probabilities(scores)
    return [
        Finding(
            "warning" if sure else "note",
            "one-class",
            ("" if sure else "If the first output is scores of classes: ")
            + f"{judge.subject} chooses the same class for all {samples} samples, so no score of "
            "classes can change much.",
            "See that they are samples of several classes, prepared as for training.",
        )
    ]


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
        p = chance_of_gain(right[1].astype(int) - right[0].astype(int))
        if p < _CERTAIN and better_than_chance(after, len(right[0]), 1 / max(2, classes)):
            yield Finding(
                "error",
                "labels-off-by-one",
                f"{judge.subject} has top1 {before:.3f} with the labels as given, and {after:.3f} "
                f"with {'1 less' if shift < 0 else '1 more'} each: they are off by one.",
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


_SAMPLES, _LEAST = 32, 8
"""What FP32 runs on: as in check, of a large model fewer; on less nothing can be told."""
_HASHED = 256
"""Samples of each set that are looked at for overlap: they are read once more for it."""
_SHARE = 1 / 20
"""Of the time that is left, for what is no part of the answer."""
_LOG = logging.getLogger(__name__)


def suspicions(
    context: Context,
    graph: Graph,
    compared: Samples,
    metric: TaskMetric | None = None,
    calibrates_on: SampleSpec | None = None,
    *,
    says_chance: bool = False,
    ends_at: float = math.inf,
) -> tuple[str, ...]:
    """A note, where something is wrong with the samples before anything is measured: labels that
    are no class or off by one, FP32 at chance level and on which other values it is not, samples
    that calibrate and are compared. What cannot be looked at is left out: whatever keeps it from
    being read or run will be said by what needs it.

    Args:
        graph: in FP32.
        metric: on that model; without one FP32 is not run.
        calibrates_on: None where `compared` calibrate, or nothing does. Where they are the same
            samples, one by one, the calibration says it.
        says_chance: that FP32 is at chance level is said where no other values mend it, too:
            most commands say that themselves, of all samples.
        ends_at: when the time of the command is over, on the clock of `time.monotonic`. Where a
            look takes more than a small part of what is left, it is given up.
    """
    found: list[Finding] = []
    now = time.monotonic()
    context = context.until(now + _SHARE * (ends_at - now))
    try:
        calibration = calibrates_on.open(sample_inputs(graph)) if calibrates_on else None
        if calibration is not None and not same_samples(calibration, compared):
            shared = shared_samples(compared, calibration, _HASHED)
            found += [shared] if shared else []
        if metric is not None and metric.needs_labels and _is_between_0_and_1(metric):
            found += _of_metric(context, graph, compared, metric)
    except (QdebugError, OutOfTimeError) as error:
        _LOG.debug("the samples cannot be looked at: %s", error)
    unsaid = set() if says_chance else {"chance-level"}
    told = [
        x.message.removesuffix(".") for x in found if x.severity != "note" and x.kind not in unsaid
    ]
    if not told:
        return ()
    return (f"Look at the samples first (qdebug check says more): {'; '.join(told)}.",)


def _is_between_0_and_1(metric: TaskMetric) -> bool:
    """Whether FP32 should come near to 1."""
    return metric.is_share or metric.takes == "boxes"


def _of_metric(
    context: Context, graph: Graph, compared: Samples, metric: TaskMetric
) -> tuple[Finding, ...]:
    subset = whole(finely(compared, _SAMPLES))
    count = min(_SAMPLES, 2 * affordable_samples(macs_per_sample(find_layers(graph), subset)))
    few = spread(subset, count)
    if few.count < _LEAST:
        return ()
    quiet = replace(context, progress=lambda _: None)
    return try_variants(quiet, graph, few, judged_by(metric), always=False).findings
