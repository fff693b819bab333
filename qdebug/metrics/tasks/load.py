"""End-to-end metrics from what users write: a name, or a function of their own."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import MetricError, required
from qdebug.inmemory import InMemory
from qdebug.metrics.tasks.base import (
    Compute,
    Judged,
    Outputs,
    Rows,
    SampleValues,
    TaskMetric,
    first_output,
    labels_of,
)
from qdebug.metrics.tasks.classes import chosen_classes, found_scores
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.kinds import Reading, reading
from qdebug.metrics.tasks.registry import NAMES, BuiltInMetric, built_in
from qdebug.metrics.tasks.shares import all_shares, is_single
from qdebug.userfile import UserCodeProblem, function_of, last_line, load_file, load_module, name_of
from qdebug.wording import option

_PROBLEM = UserCodeProblem(MetricError, "QD-METRIC-FUNCTION", "metric")
_GIVEN = ("outputs", "labels", "reference")
_NAME_THEM = "Name the parameters outputs and labels to get dicts of arrays."
_LOST = "reduced losses"
"""Of the array of what each sample loses: of reduced outputs it cannot be told any more."""
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
    read = reading(entry, facts, decode)
    own = {"at": entry.parameter} if entry.parameter else {}
    score, per_sample, loss, counts = map(entry.function, ("score", "per_sample", "loss", "counts"))

    of_reference = _Kept(lambda reference: read.found(reference, reference))
    truth_of_reference = _Kept(lambda reference: read.from_reference(of_reference(reference)))

    def found(outputs: Outputs, labels: Outputs, reference: Outputs) -> tuple[Any, Any]:
        """What is found in the outputs, and the truth."""
        is_same = outputs is reference
        mine = of_reference(outputs) if is_same else read.found(outputs, reference)
        if entry.truth == "labels":
            return mine, read.from_labels(labels, mine)
        return mine, truth_of_reference(reference)

    def scored(mine: Any, truth: Any) -> Any:
        return score(mine, truth, **own) if score else np.mean(per_sample(mine, truth, **own))

    def lost(outputs: Outputs, mine: Any, truth: Any, reference: Outputs) -> Any:
        return outputs[_LOST] if _LOST in outputs else loss(mine, truth, of_reference(reference))

    def losses(outputs: Outputs, labels: Outputs, reference: Outputs) -> Any:
        return lost(outputs, *found(outputs, labels, reference), reference)

    def judge(
        sets: Iterable[Rows], outputs: Outputs, labels: Outputs, reference: Outputs
    ) -> Judged:
        mine, truth = found(outputs, labels, reference)
        whole = float(scored(mine, truth))  # first: what it works out is taken for the parts
        parts = [scored(_taken(mine, rows), _taken(truth, rows)) for rows in sets]
        return Judged(
            whole,
            np.array(parts, np.float64),
            per_sample(mine, truth, **own) if per_sample else None,
            lost(outputs, mine, truth, reference) if loss else None,
            counts(mine, truth) if counts else None,
        )

    def values(what: str, compute: Compute | None) -> SampleValues | None:
        return SampleValues(entry.usage, what, compute) if compute else None

    return TaskMetric(
        entry.usage,
        entry.needs_labels,
        lambda *arrays: scored(*found(*arrays)),
        higher_is_better=entry.higher_is_better,
        is_declared=True,
        is_share=entry.is_share,
        bounds=entry.bounds,
        loss=values(_LOSS, loss and losses),
        per_sample=values(
            _PER_SAMPLE, per_sample and (lambda *arrays: per_sample(*found(*arrays), **own))
        ),
        judge=judge,
        reduced=partial(_reduced, entry, read),
        settled=partial(_settled, entry, decode, facts),
        takes=entry.takes,
        decode=decode,
        facts=facts,
        described=read.described,
    )


def _reduced(
    entry: BuiltInMetric, read: Reading, outputs: Outputs, labels: Outputs, reference: Outputs
) -> Outputs | None:
    """See TaskMetric.reduced."""
    mine, loss = read.found(outputs, reference), entry.function("loss")
    less = read.reduced(mine)
    if less is None or loss is None or not reference:
        return less
    before = mine if outputs is reference else read.found(reference, reference)
    is_labelled = entry.truth == "labels"
    truth = read.from_labels(labels, mine) if is_labelled else read.from_reference(before)
    return {**less, _LOST: loss(mine, truth, before)}


def _settled(
    entry: BuiltInMetric, decode: str | None, facts: ModelFacts | None, reference: Outputs
) -> TaskMetric | None:
    """See TaskMetric.settled."""
    name = next(iter(reference), None)
    facts = facts or ModelFacts({}, {})
    if name is None or name in facts.shares or entry.takes not in ("scores", "mask"):
        return None
    shares = {**facts.shares, name: all_shares(reference[name])}
    return _built_in(entry, decode, replace(facts, shares=shares))


class _Kept:
    """A function of outputs that keeps its last results: those of the reference are asked for with
    every candidate, and with every part of the samples that is left out in turn."""

    _MOST = 16

    def __init__(self, function: Callable[[Outputs], Any]) -> None:
        self._function = function
        self._kept: tuple[tuple[Outputs, Any], ...] = ()  # replaced as a whole: threads share it

    def __call__(self, outputs: Outputs) -> Any:
        for known, value in self._kept:
            if known is outputs:
                return value
        value = self._function(outputs)
        self._kept = (*self._kept[1 - self._MOST :], (outputs, value))
        return value


def _taken(what: Any, rows: Rows) -> Any:
    """Those of some samples: of an array, or of what is found in outputs."""
    return what[rows] if isinstance(what, np.ndarray) else what.take(rows)


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
    call = _call_of(spec, function)
    direction = getattr(function, "higher_is_better", None)
    if direction is not None and not isinstance(direction, bool):
        raise MetricError(
            f"{option('metric')}: {spec}.higher_is_better is {direction!r}",
            "Set it to True or to False.",
            code="QD-METRIC-FUNCTION",
        )
    return TaskMetric(
        spec,
        call.needs_labels,
        call.compute,
        file,
        function if in_memory else None,
        call.hint,
        higher_is_better=direction is not False,
        is_declared=direction is not None,
        loss=_sample_values(spec, function, "loss", _LOSS, file),
        per_sample=_sample_values(spec, function, "per_sample", _PER_SAMPLE, file),
    )


def _sample_values(
    spec: str, function: Callable[..., Any], attribute: str, what: str, file: Path | None
) -> SampleValues | None:
    """What an attribute of a user's function gives for each sample; None where there is none."""
    called = getattr(function, attribute, None)
    if called is None:
        return None
    if not callable(called):
        raise MetricError(
            f"{option('metric')}: {spec}.{attribute} is a {type(called).__name__}",
            "Set it to a function that returns one number for each sample.",
            code="QD-METRIC-FUNCTION",
        )
    return SampleValues(spec, what, _call_of(f"{spec}.{attribute}", called).compute, file)


@dataclass(frozen=True)
class _Call:
    """How a user's function is called; see TaskMetric."""

    compute: Compute
    needs_labels: bool
    hint: str = ""


def _call_of(spec: str, called: Callable[..., Any]) -> _Call:
    """The call that gives a function what its parameters name.

    Raises:
        MetricError: a parameter that is not understood.
    """
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # a function written in C may not say
        return _Call(_on_labels(called), True)
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
        return _Call(_on_labels(called), True, _NAME_THEM)
    if others:
        raise MetricError(
            f"{option('metric')}: {spec} takes a parameter '{others[0].name}'",
            "Its parameters must be among outputs, labels and reference, or be two: the labels and "
            "the predictions.",
            code="QD-METRIC-PARAMETERS",
        )

    def compute(outputs: Outputs, labels: Outputs, reference: Outputs) -> Any:
        given = dict(zip(_GIVEN, (outputs, labels, reference), strict=True))
        return called(**{name: given[name] for name in wanted})

    return _Call(compute, False)


_HIGHER, _LOWER = ("_score",), ("_error", "_loss", "_deviance")
"""How the names of scikit-learn's functions end whose value is to be maximized, or to be minimized:
see "Callable scorers" in its user guide."""


def _from_module(spec: str, source: str, name: str) -> TaskMetric:
    try:
        module = load_module(source)
    except Exception as error:  # a module may raise anything while it is imported
        raise MetricError(
            f"{option('metric')}: module '{source}' cannot be imported: {last_line(error)}",
            code="QD-METRIC-FUNCTION",
        ) from error
    called = function_of(module, name, spec, _PROBLEM)
    return TaskMetric(
        spec,
        True,
        _on_labels(called),
        higher_is_better=not name.endswith(_LOWER),
        is_declared=name.endswith((*_HIGHER, *_LOWER)),
    )


def _on_labels(called: Callable[..., Any]) -> Compute:
    """The call that scikit-learn's metrics take."""

    def compute(outputs: Outputs, labels: Outputs, reference: Outputs) -> Any:
        truth, scores = labels_of(labels), first_output(outputs)
        whole = np.issubdtype(truth.dtype, np.integer) and scores.ndim == truth.ndim + 1
        if not whole:
            return called(truth, scores)
        if scores.ndim == 2 and is_single(scores.shape):
            return called(truth, chosen_classes(found_scores(outputs, reference, None)))
        return called(truth, np.argmax(scores, axis=-1))

    return compute
