"""How the outputs and the labels become what a metric takes: see BuiltInMetric.takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import Outputs, TaskMetric, called, first_output, labels_of
from qdebug.metrics.tasks.boxes.decoders import DECODE, fitting_decoder, undecided
from qdebug.metrics.tasks.boxes.detections import (
    THRESHOLDS,
    Candidates,
    Detections,
    labelled,
    labelled_objects,
)
from qdebug.metrics.tasks.boxes.instance_masks import InstanceMasks
from qdebug.metrics.tasks.boxes.reduced import FoundBoxes, read_reduced, reduced
from qdebug.metrics.tasks.classes import chosen_classes, found_scores
from qdebug.metrics.tasks.facts import ModelFacts, Shape
from qdebug.metrics.tasks.masks import labelled_masks, masks_of, reduced_masks
from qdebug.metrics.tasks.registry import DECODERS, WITH_MASKS, BuiltInMetric, Takes, decoder_list
from qdebug.metrics.tasks.text import Lines, greedy, labelled_lines
from qdebug.network.samples.matching import shape_text
from qdebug.types import Array
from qdebug.userfile import UserCodeProblem, function_of, load_file
from qdebug.wording import as_known, counted, option

_PROBLEM = UserCodeProblem(MetricError, "QD-METRIC-DECODE", "decode")


@dataclass(frozen=True)
class Reading:
    """How a metric reads outputs and labels.

    Attributes:
        found: what it takes, from outputs, beside the reference's of the same samples.
        from_labels: the truth from the labels, and what was found in the outputs.
        from_reference: the truth from what was found in the reference.
        described: how the outputs are read, for people; "" where nothing is chosen.
        reduced: what of the found is enough for the score, as arrays [samples, …] that `found`
            takes in place of outputs; None where that takes hardly less than these.
    """

    found: Callable[[Outputs, Outputs], Any]
    from_labels: Callable[[Outputs, Any], Any]
    from_reference: Callable[[Any], Any] = lambda found: found
    described: str = ""
    reduced: Callable[[Any], dict[str, Array] | None] = lambda _: None


def reading(entry: BuiltInMetric, facts: ModelFacts | None, decode: str | None) -> Reading:
    """How a metric reads outputs; `facts` are None where no model is known yet, and `decode` is
    what the user says.

    Raises:
        MetricError: the model's outputs are not what the metric takes, or `decode` is not known.
    """
    if entry.takes == "boxes":
        return _boxes(entry, facts, decode)
    if entry.takes == "text":
        return _text(entry, facts, decode)
    if decode is not None:
        raise MetricError(
            f"{option('decode')}: {entry.name} takes the outputs as they are",
            f"Leave {option('decode')} out.",
            code="QD-METRIC-DECODE",
        )
    if entry.takes == "scores" and facts is not None:
        refuse_no_classifier(entry.name, facts)
    return _READINGS[entry.takes](entry.usage, facts)


def check_labels(metric: TaskMetric, labels: Outputs, where: str) -> None:
    """That the data, which are `where`, have the labels that a metric needs.

    Raises:
        MetricError: they have not.
    """
    try:
        if metric.takes == "boxes":
            truth = labelled(labels, masks=decoder_of(metric).endswith(WITH_MASKS))
            _refuse_without_objects(metric, truth)
        elif metric.takes == "text":
            labelled_lines(labels, Lines(()))
        elif metric.takes != "mask" or "masks" not in labels:
            labels_of(labels)
    except MetricError as error:
        hint = error.hint
        if metric.takes in _NEEDING_NONE:
            hint += f" {option('metric', _NEEDING_NONE[metric.takes])} needs none."
        elif metric.takes == "values":
            hint += " Without a metric the SQNR of the outputs judges, which needs none."
        raise error.reworded(f"{where}{': ' * bool(where)}{error.message}", hint) from None


def _refuse_without_objects(metric: TaskMetric, truth: Detections) -> None:
    """Refuse samples of which no label is an object.

    Raises:
        MetricError: all are without.
    """
    if not (truth.classes >= 0).any():
        raise MetricError(
            f"none of the {counted(len(truth.classes), 'sample')} has a labelled object, so "
            f"{option('metric', metric.name)} has nothing to find",
            "Give samples with objects of the model's classes in them, or see that the annotations "
            "are those of these samples.",
            code="QD-METRIC-NO-BOXES",
        )


_NEEDING_NONE: Mapping[str, str] = {
    "scores": "agreement",
    "mask": "miou-to-reference",
    "embeddings": "cosine",
}
"""The metric without labels of outputs that other ones take."""


def decoder_of(metric: TaskMetric) -> str:
    """The decoder, or the user's function, by which a metric of boxes reads outputs; "" where that
    is not known yet."""
    fitting = fitting_decoder(metric.facts) if metric.facts is not None else None
    return metric.decode or fitting or ""


def refuse_no_classifier(name: str, facts: ModelFacts) -> None:
    """Refuse a metric of classes for an output that is no classifier's.

    Raises:
        MetricError: the first output has several axes besides that of the samples.
    """
    shape = next(iter(facts.outputs.values()), ())
    axes = [size for size in shape[1:] if size != 1]
    if len(axes) < 2:
        return
    raise MetricError(
        f"{option('metric', name)} is for classifiers: the highest of all values of an output "
        f"{shape_text(shape)} says nothing",
        _instead(shape, facts),
        code="QD-METRIC-NOT-A-CLASSIFIER",
    )


def _instead(shape: Shape, facts: ModelFacts) -> str:
    """What to use in its place, for people."""
    if fitting_decoder(facts) or any(
        s[-1:] == (4,) and len(s) == 3 for s in facts.outputs.values()
    ):
        name = "map-to-reference"
    elif len(shape) == 4:
        return (
            f"Use {option('metric', 'miou-to-reference')} where a channel is the score of a class, "
            "else a function of yours, or none: then the SQNR of the outputs judges."
        )
    else:
        name = "cer-to-reference" if facts.metadata.get("character") else "cosine"
    return f"Use {option('metric', name)}, or a function of yours."


def _boxes(entry: BuiltInMetric, facts: ModelFacts | None, decode: str | None) -> Reading:
    if decode is not None and _is_function(decode):
        function = _users(decode)
        return _boxes_by(
            lambda outputs: _candidates(function(outputs), decode), f"{decode} gives them"
        )
    named = _named(decode, "boxes")

    def fitting(seen: ModelFacts) -> str:
        name = named or fitting_decoder(seen)
        if name is None:
            raise undecided(seen, entry.usage)
        return name

    def found(outputs: Outputs) -> Candidates | FoundBoxes:
        if (boxes := read_reduced(outputs)) is not None:
            return boxes
        seen = facts or ModelFacts({}, {name: a.shape for name, a in outputs.items()})
        return DECODE[fitting(seen)](outputs, seen)

    read = _boxes_by(found, fitting(facts) if facts is not None else named)
    return replace(read, reduced=reduced)


def _boxes_by(found: Callable[[Outputs], Candidates | FoundBoxes], read_as: str | None) -> Reading:
    what = "masks" if read_as and read_as.endswith(WITH_MASKS) else "boxes"
    return Reading(
        lambda outputs, _: found(outputs),
        lambda labels, candidates: (
            labelled_objects(labels, candidates.mask_size)
            if candidates.mask_size is not None
            else labelled(labels)
        ),
        lambda candidates: candidates.sure,
        f"{what} as {read_as}, {THRESHOLDS}" if read_as else "",
    )


def _candidates(returned: Any, decode: str) -> Candidates:
    """What a user's decoder returned.

    Raises:
        MetricError: it is not boxes and scores, or with these no masks.
    """
    try:
        arrays = [np.asarray(array, np.float64) for array in returned]
    except (TypeError, ValueError):
        arrays = []
    axes = [array.ndim for array in arrays]
    if (
        axes not in ([3, 3], [3, 3, 4])
        or arrays[0].shape[2] != 4
        or len({array.shape[:2] for array in arrays}) > 1
    ):
        raise MetricError(
            f"{option('decode', decode)}: the function did not return boxes [samples, places, 4] "
            "and scores [samples, places, classes]",
            "Return the two arrays, boxes as x1, y1, x2, y2; and as a third, if there are any, "
            "masks [samples, places, height, width], where more than ½ is the object.",
            code="QD-METRIC-DECODE",
        )
    boxes, scores, *masks = arrays
    if not masks:
        return Candidates(boxes, scores)
    height, width = masks[0].shape[2:]
    own = InstanceMasks(masks[0] - 0.5, None, (height, width), in_boxes=False)
    return Candidates(boxes, scores, masks=own)


def _text(entry: BuiltInMetric, facts: ModelFacts | None, decode: str | None) -> Reading:
    if decode is not None and _is_function(decode):
        function = _users(decode)
        return Reading(
            lambda outputs, _: _lines(function(outputs), outputs, decode),
            labelled_lines,
            described=f"text as {decode} gives it",
        )
    blank_last = _named(decode, "text") == "ctc-last"
    seen = facts or ModelFacts({}, {})
    return Reading(
        lambda outputs, _: greedy(outputs, seen, blank_last=blank_last),
        labelled_lines,
        described="text by the best path (greedy CTC), the "
        f"{'last' if blank_last else 'first'} class is the blank",
    )


def _lines(returned: Any, outputs: Outputs, decode: str) -> Lines:
    """What a user's function read.

    Raises:
        MetricError: it is not one string for each sample.
    """
    samples = len(first_output(outputs))
    if isinstance(returned, str) or np.shape(returned) != (samples,):
        raise MetricError(
            f"{option('decode', decode)}: the function did not return one string for each of the "
            f"{samples} samples",
            "Return a list of strings.",
            code="QD-METRIC-DECODE",
        )
    return Lines(tuple(map(str, returned)))


def _named(decode: str | None, takes: Literal["boxes", "text"]) -> str | None:
    """The decoder that the user names; None where nothing is said.

    Raises:
        MetricError: there is none of that name.
    """
    if decode is None:
        return None
    names = [decoder.name for decoder in DECODERS if decoder.takes == takes]
    if (name := as_known(decode, names)) in names:
        return name
    raise MetricError(
        f"{option('decode')}: '{decode}' is not known for {takes}",
        f"There are:\n{decoder_list(takes)}\n  or a function, file.py:function.",
        code="QD-METRIC-DECODE",
    )


def _is_function(decode: str) -> bool:
    """Whether it is file.py:function."""
    return decode.rpartition(":")[0].endswith(".py")


def _users(decode: str) -> Callable[[Outputs], Any]:
    """A function of the user's that reads outputs; where it raises, MetricError shows its line.

    Raises:
        MetricError: there is no such file or function.
    """
    source, _, name = decode.rpartition(":")
    file = Path(source)
    function = function_of(load_file(file, _PROBLEM), name, decode, _PROBLEM)
    named = option("decode", decode)
    return lambda outputs: called(function, named, {"outputs": outputs}, file)


def _scores(name: str, facts: ModelFacts | None) -> Reading:
    found = partial(found_scores, facts=facts)
    return Reading(found, partial(_class_numbers, name), chosen_classes)


def _embeddings(name: str, _: ModelFacts | None) -> Reading:
    return Reading(_first, partial(_class_numbers, name))


def _first(outputs: Outputs, _: Outputs) -> Array:
    return first_output(outputs)


def _class_numbers(name: str, labels: Outputs, found: Array) -> Array:
    """The class of each sample.

    Raises:
        MetricError: there are no labels, or they are no class numbers.
    """
    truth = labels_of(labels)
    if truth.size != len(found):
        raise MetricError(
            f"{option('metric', name)} needs one class number per sample: there are "
            f"{len(found)} samples, and labels of shape {truth.shape}",
            "Give class numbers instead of one-hot labels, or a function of your own.",
            code="QD-METRIC-LABELS",
        )
    return np.asarray(truth.reshape(-1), np.int64)


def _values(name: str, _: ModelFacts | None) -> Reading:
    return Reading(_first, partial(_like_output, name))


def _like_output(name: str, labels: Outputs, found: Array) -> Array:
    """Labels of the shape of the output.

    Raises:
        MetricError: there are none, or of another size.
    """
    truth = labels_of(labels)
    if truth.size != found.size:
        raise MetricError(
            f"{option('metric', name)} compares the first output {list(found.shape)} with labels "
            f"value by value, and they are {list(truth.shape)}",
            "Give labels of the output's shape.",
            code="QD-METRIC-LABELS",
        )
    return np.asarray(truth, np.float64).reshape(found.shape)


def _masks(_: str, facts: ModelFacts | None) -> Reading:
    return Reading(partial(masks_of, facts=facts), labelled_masks, reduced=reduced_masks)


_READINGS: dict[Takes, Callable[[str, ModelFacts | None], Reading]] = {
    "scores": _scores,
    "embeddings": _embeddings,
    "values": _values,
    "mask": _masks,
}
