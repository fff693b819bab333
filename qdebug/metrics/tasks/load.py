"""End-to-end metrics from what users write: a name, or a function of their own."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import MetricError, required
from qdebug.inmemory import InMemory
from qdebug.metrics.tasks.base import (
    LOSSES,
    Arguments,
    Outputs,
    Reading,
    SampleValues,
    TaskMetric,
    first_output,
    labels_of,
)
from qdebug.metrics.tasks.boxes.decoders import fitting_decoder
from qdebug.metrics.tasks.boxes.reading import BoxReading
from qdebug.metrics.tasks.boxes.scores import counts
from qdebug.metrics.tasks.classes import Embeddings, Scores, chosen_classes, found_scores
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.masks import MaskReading
from qdebug.metrics.tasks.registry import NAMES, BuiltInMetric, Takes, built_in
from qdebug.metrics.tasks.shares import is_single
from qdebug.metrics.tasks.text import LineReading
from qdebug.metrics.tasks.values import Values
from qdebug.network.samples.matching import shape_text
from qdebug.userfile import UserCodeProblem, function_of, last_line, load_file, load_module, name_of
from qdebug.wording import option

_PROBLEM = UserCodeProblem(MetricError, "QD-METRIC-FUNCTION", "metric")
_GIVEN = ("outputs", "labels", "reference")
_NAME_THEM = "Name the parameters outputs and labels to get dicts of arrays."
_LOSS, _PER_SAMPLE = "the per-sample loss", "the per-sample score"


def load_metric(
    spec: str, decode: str | None = None, facts: ModelFacts | None = None
) -> TaskMetric:
    """The metric for a name of BUILT_IN, "file.py:function", "package.module:function", or for a
    function in memory (see `metric_in_memory`).

    A function of a file, or in memory, is called with those of `outputs`, `labels` and `reference`
    that it names as parameters; one with `**kwargs` gets all three. One with two other parameters,
    and any of a module, is called as scikit-learn's are: `(y_true, y_pred)`, where y_pred is the
    class index when the labels are whole numbers and the output has one more axis, and the raw
    output otherwise.

    Attributes of the function say the rest, each of them optional: `higher_is_better`, a bool, and
    `loss` and `per_sample`, functions which are called by the same rule; see TaskMetric. The name
    of a module's function declares its direction as scikit-learn's do.

    Args:
        decode: of a metric that needs to know, how outputs are read: a name of DECODES, or
            "file.py:function".
        facts: what is known of the model.

    Raises:
        MetricError: there is no such metric, file or function; or the model's outputs are not what
            the metric takes.
    """
    entry = None if isinstance(spec, InMemory) else built_in(spec)
    if entry is not None:
        return _built_in(entry, decode, facts)
    if decode is not None:
        raise MetricError(
            f"{option('decode')} is for metrics by name, which do not know how the outputs are to "
            f"be read: {spec} gets them as they are",
            f"Leave {option('decode')} out.",
            code="QD-METRIC-DECODE",
        )
    if isinstance(spec, InMemory):
        return _users(str(spec), spec.value, in_memory=True)
    source, _, name = spec.rpartition(":")
    if not source or not name:
        error = _unknown(spec)
        raise error
    if source.endswith(".py"):
        path = Path(source)
        function = function_of(load_file(path, _PROBLEM), name, spec, _PROBLEM)
        return _users(spec, function, file=path)
    return _from_module(spec, source, name)


def _built_in(entry: BuiltInMetric, decode: str | None, facts: ModelFacts | None) -> TaskMetric:
    if entry.package:  # now, and not when all outputs are there
        what = f"metric {entry.name}"
        required(entry.package, what, code="QD-METRIC-EXTRA", error=MetricError)
    reading = _READINGS[entry.takes](entry.usage, facts, decode)
    if entry.takes == "scores" and facts is not None:
        refuse_no_classifier(entry.name, facts)
    score, per_sample, loss = map(entry.function, (entry.score, entry.per_sample, entry.loss))

    def read(outputs: Outputs, labels: Outputs, reference: Outputs, found: Any = None) -> Arguments:
        found = reading.found(outputs, reference) if found is None else found
        before = found if outputs is reference else None
        if before is None and reference:
            before = reading.found(reference, reference)
        needs_labels = entry.needs_labels
        return (
            found,
            reading.labelled(labels, found) if needs_labels else reading.truth(before),
            before,
        )

    def reduced(outputs: Outputs, labels: Outputs, reference: Outputs) -> Outputs | None:
        found = reading.found(outputs, reference)
        less = reading.reduced(found)
        if less is None or not reference:
            return less
        return {**less, LOSSES: loss(*read(outputs, labels, reference, found))}

    def values(what: str, compute: Callable[..., Any] | None) -> SampleValues | None:
        return SampleValues(entry.usage, what, compute, read) if compute else None

    return TaskMetric(
        entry.usage,
        entry.needs_labels,
        read,
        score or (lambda *arguments: np.mean(per_sample(*arguments))),
        loss=values(_LOSS, loss),
        per_sample=values(_PER_SAMPLE, per_sample),
        counts=counts if entry.takes == "boxes" else None,
        reduced=reduced,
        higher_is_better=entry.higher_is_better,
        is_declared=True,
        is_share=entry.is_share,
        bounds=entry.bounds,
        takes=entry.takes,
        reading=reading,
        decode=decode,
        facts=facts,
    )


_READINGS: Mapping[Takes, type[Reading]] = {
    "scores": Scores,
    "embeddings": Embeddings,
    "values": Values,
    "boxes": BoxReading,
    "text": LineReading,
    "mask": MaskReading,
}
"""How the outputs and the labels become what a metric takes."""


def refuse_no_classifier(name: str, facts: ModelFacts) -> None:
    """Refuse a metric of classes for an output that is no classifier's.

    Raises:
        MetricError: the first output has several axes besides that of the samples.
    """
    shape = next(iter(facts.outputs.values()), ())
    if sum(size != 1 for size in shape[1:]) < 2:
        return
    of_boxes = any(len(s) == 3 and s[2] == 4 for s in facts.outputs.values())
    if of_boxes or fitting_decoder(facts):
        other = "map-to-reference"
    elif len(shape) == 4:
        other = "miou-to-reference"
    else:
        other = "cer-to-reference" if facts.metadata.get("character") else "cosine"
    raise MetricError(
        f"{option('metric', name)} is for classifiers: the highest of all values of an output "
        f"{shape_text(shape)} says nothing",
        f"Use {option('metric', other)}, a function of yours, or none: then the SQNR judges.",
        code="QD-METRIC-NOT-A-CLASSIFIER",
    )


_WITHOUT_LABELS: Mapping[str, str] = {
    "scores": "agreement",
    "mask": "miou-to-reference",
    "embeddings": "cosine",
}
"""The metric without labels of outputs that other ones take."""


def check_labels(metric: TaskMetric, labels: Outputs, where: str) -> None:
    """That the data, which are `where`, have the labels that a metric needs.

    Raises:
        MetricError: they have not.
    """
    try:
        metric.reading.check_labels(labels) if metric.reading else labels_of(labels)
    except MetricError as error:
        hint = error.hint
        if metric.takes in _WITHOUT_LABELS:
            hint += f" {option('metric', _WITHOUT_LABELS[metric.takes])} needs none."
        elif metric.takes == "values":
            hint += " Without a metric the SQNR of the outputs judges, which needs none."
        raise error.reworded(f"{where}{': ' * bool(where)}{error.message}", hint) from None


def bound(metric: TaskMetric, facts: ModelFacts) -> TaskMetric:
    """A metric that knows the model: then it also knows how its outputs are read.

    Raises:
        MetricError: they are not what the metric takes.
    """
    return load_metric(metric.name, metric.decode, facts) if metric.takes else metric


def _unknown(spec: str) -> MetricError:
    """The error of a metric that is neither built in nor a function: what there is, and how to
    write one."""
    if spec.endswith(".py"):
        return MetricError(
            f"{option('metric')}: {spec} is a file, and which function in it is not said",
            f"Write {option('metric', f'{spec}:FUNCTION')}.",
            code="QD-METRIC-UNKNOWN",
        )
    close = difflib.get_close_matches(spec.lower(), [*NAMES, *_ALSO_CALLED], n=1)
    meant = f"Did you mean '{_ALSO_CALLED.get(close[0], close[0])}'?\n  " if close else ""
    file = option("metric", "metric.py:score")
    module = option("metric", "sklearn.metrics:balanced_accuracy_score")
    return MetricError(
        f"{option('metric')}: unknown metric '{spec}'",
        f"{meant}By name: {', '.join(NAMES)}.\n"
        f"  Any other is a function. In a file metric.py, for {file}:\n"
        "    def score(outputs, labels):  # dicts of arrays, samples on the first axis\n"
        "        return float((outputs['OUTPUT'].argmax(1) == labels['labels']).mean())\n"
        f"  Or one of a package, called with (y_true, y_pred): {module}",
        code="QD-METRIC-UNKNOWN",
    )


_ALSO_CALLED = dict.fromkeys(("accuracy", "acc", "top-1", "top_1"), "top1")


def metric_in_memory(function: Callable[..., Any]) -> InMemory:
    """The spec of a function in memory, for `load_metric`."""
    return InMemory(name_of(function), function)


def _users(
    spec: str,
    function: Callable[..., Any],
    *,
    file: Path | None = None,
    in_memory: bool = False,
) -> TaskMetric:
    """A metric of the user's, with what the function's attributes say.

    Raises:
        MetricError: a parameter or an attribute that is not understood.
    """
    compute, hint = _call_of(spec, function)
    direction = getattr(function, "higher_is_better", None)
    if direction is not None and not isinstance(direction, bool):
        raise _PROBLEM(f"{spec}.higher_is_better is {direction!r}", "Set it to True or to False.")

    def values(attribute: str, what: str) -> SampleValues | None:
        own = getattr(function, attribute, None)
        if own is None:
            return None
        if not callable(own):
            raise _PROBLEM(
                f"{spec}.{attribute} is a {type(own).__name__}",
                "Set it to a function that returns one number for each sample.",
            )
        called, _ = _call_of(f"{spec}.{attribute}", own)
        return SampleValues(spec, what, called, as_given, file)

    return TaskMetric(
        spec,
        hint is not None,
        as_given,
        compute,
        loss=values("loss", _LOSS),
        per_sample=values("per_sample", _PER_SAMPLE),
        higher_is_better=direction is not False,
        is_declared=direction is not None,
        file=file,
        function=function if in_memory else None,
        hint=hint or "",
    )


def as_given(*arguments: Outputs) -> Arguments:
    """The arguments of a user's function: see Arguments."""
    return arguments


def _call_of(spec: str, called: Callable[..., Any]) -> tuple[Callable[..., Any], str | None]:
    """The call that gives a function what its parameters name; and, of one that takes labels and
    predictions by position, what else to try where it raises.

    Raises:
        MetricError: a parameter that is not understood.
    """
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # a function written in C may not say
        return _on_labels(called), ""
    wanted = [p.name for p in parameters if p.name in _GIVEN]
    required = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        wanted = list(_GIVEN)
    others = [p for p in required if p.name not in _GIVEN]
    if len(others) == len(required) == 2 and not any(p.kind is p.KEYWORD_ONLY for p in others):
        return _on_labels(called), _NAME_THEM
    if others:
        raise MetricError(
            f"{option('metric')}: {spec} takes a parameter '{others[0].name}'",
            "Its parameters must be among outputs, labels and reference, or be two: the labels and "
            "the predictions.",
            code="QD-METRIC-PARAMETERS",
        )

    def compute(*arguments: Outputs) -> Any:
        given = dict(zip(_GIVEN, arguments, strict=True))
        return called(**{name: given[name] for name in wanted})

    return compute, None


_HIGHER, _LOWER = ("_score",), ("_error", "_loss", "_deviance")
"""How the names of scikit-learn's functions end whose value is to be maximized, or to be minimized:
see "Callable scorers" in its user guide."""


def _from_module(spec: str, source: str, name: str) -> TaskMetric:
    try:
        module = load_module(source)
    except Exception as error:  # a module may raise anything while it is imported
        message = f"module '{source}' cannot be imported: {last_line(error)}"
        raise _PROBLEM(message) from error
    return TaskMetric(
        spec,
        True,
        as_given,
        _on_labels(function_of(module, name, spec, _PROBLEM)),
        higher_is_better=not name.endswith(_LOWER),
        is_declared=name.endswith((*_HIGHER, *_LOWER)),
    )


def _on_labels(called: Callable[..., Any]) -> Callable[..., Any]:
    """The call that scikit-learn's metrics take."""

    def compute(outputs: Outputs, labels: Outputs, reference: Outputs) -> Any:
        truth, scores = labels_of(labels), first_output(outputs)
        if not np.issubdtype(truth.dtype, np.integer) or scores.ndim != truth.ndim + 1:
            return called(truth, scores)
        if scores.ndim == 2 and is_single(scores.shape):
            return called(truth, chosen_classes(found_scores(outputs, reference, None)))
        return called(truth, np.argmax(scores, axis=-1))

    return compute
