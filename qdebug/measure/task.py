"""End-to-end accuracy: built-in metrics and the user's own functions, on the final outputs."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import MetricError
from qdebug.types import Array
from qdebug.userfile import function_of, last_line, load_file, raising_line

BUILT_IN = ("top1", "agreement")
LABEL_NAMES = ("labels", "label", "y_true", "y", "targets", "target")

Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class TaskMetric:
    """A named measure of end-to-end quality.

    `compute(outputs, labels, reference)`: outputs and reference are arrays [samples, …] by output
    name, labels the arrays beside the inputs; returns one number.
    """

    name: str
    needs_labels: bool
    compute: Callable[[Outputs, Outputs, Outputs], Any]
    file: Path | None = None
    """Where the user's code is, to quote from when it raises."""

    def __call__(self, outputs: Outputs, labels: Outputs, reference: Outputs) -> float:
        """The metric's value.

        Raises:
            MetricError: it raised, or gave no finite number.
        """
        try:
            returned = self.compute(outputs, labels, reference)
        except MetricError:
            raise
        except Exception as error:  # the user's code may raise anything
            message = f"--metric {self.name} raised {last_line(error)}"
            raise MetricError(message, raising_line(error, self.file)) from error
        try:
            value = float(returned)
        except (TypeError, ValueError) as error:
            kind = type(returned).__name__
            raise MetricError(
                f"--metric {self.name} returned a {kind}, which is no number",
                "It must return one number.",
            ) from error
        if not math.isfinite(value):
            raise MetricError(f"--metric {self.name} returned {value}, which is no finite number")
        return value


def load_metric(spec: str) -> TaskMetric:
    """The metric for "top1", "agreement", "file.py:function" or "package.module:function".

    A function of a file is called with those of `outputs`, `labels` and `reference` that it names
    as parameters. A function of a module is called as scikit-learn's are: `(y_true, y_pred)`,
    where y_pred is the class index when the labels are whole numbers and the output has one more
    axis, and the raw output otherwise.

    Raises:
        MetricError: there is no such metric, file or function.
    """
    if spec == "top1":
        return TaskMetric(spec, True, _top1)
    if spec == "agreement":
        return TaskMetric(spec, False, _agreement)
    source, _, function = spec.rpartition(":")
    if not source or not function:
        raise MetricError(
            f"--metric: unknown metric '{spec}'",
            f"Known: {', '.join(BUILT_IN)}, file.py:function, package.module:function.",
        )
    if source.endswith(".py"):
        return _from_file(spec, Path(source), function)
    return _from_module(spec, source, function)


def labels_of(extras: Outputs) -> Array:
    """The one array of labels.

    Raises:
        MetricError: there is none, or it is not clear which one it is.
    """
    for name in LABEL_NAMES:
        if name in extras:
            return extras[name]
    if len(extras) == 1:
        return next(iter(extras.values()))
    found = f"the arrays beside the inputs are {', '.join(extras)}" if extras else "there are none"
    raise MetricError(
        f"the metric needs labels, but {found}",
        "Add an array 'labels' with one entry per sample to the data, or use --metric agreement.",
    )


def join_outputs(parts: Mapping[str, Sequence[Array]]) -> dict[str, Array]:
    """Outputs of several executions, by name, as one array [samples, …] each.

    Raises:
        MetricError: an output has another shape for some samples.
    """
    joined = {}
    for name, pieces in parts.items():
        arrays = [np.atleast_1d(piece) for piece in pieces]
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            rows = ", ".join(str(list(shape)) for shape in sorted(shapes)[:3])
            raise MetricError(
                f"--metric: output '{name}' has no one shape for all samples (rows of {rows})",
                "Leave --metric out: it takes one array per output.",
            )
        joined[name] = np.concatenate(arrays)
    return joined


def _top1(outputs: Outputs, labels: Outputs, _: Outputs) -> float:
    truth, classes = labels_of(labels), _classes(_first(outputs))
    if truth.size != len(classes):
        raise MetricError(
            f"--metric top1 needs one class number per sample: there are {len(classes)} samples, "
            f"and labels of shape {truth.shape}",
            "Give class numbers instead of one-hot labels, or a function of your own.",
        )
    return float(np.mean(classes == truth.reshape(-1)))


def _agreement(outputs: Outputs, _: Outputs, reference: Outputs) -> float:
    return float(np.mean(_classes(_first(outputs)) == _classes(_first(reference))))


def _first(outputs: Outputs) -> Array:
    return next(iter(outputs.values()))


def _classes(scores: Array) -> Array:
    """The index of the highest score; NaN never wins, so that a broken sample counts as wrong."""
    flat = scores.reshape(len(scores), -1).astype(np.float64)
    best = np.argmax(np.where(np.isnan(flat), -np.inf, flat), axis=1)
    return np.where(np.isnan(flat).all(axis=1), -1, best)


def _from_file(spec: str, path: Path, function: str) -> TaskMetric:
    called = function_of(
        load_file(path, "--metric", MetricError), function, spec, "--metric", MetricError
    )
    wanted = []
    for parameter in inspect.signature(called).parameters.values():
        if parameter.name in ("outputs", "labels", "reference"):
            wanted.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise MetricError(
                f"--metric: {spec} takes a parameter '{parameter.name}'",
                "Its parameters must be among outputs, labels and reference.",
            )

    def compute(outputs: Outputs, labels: Outputs, reference: Outputs) -> Any:
        given = {"outputs": outputs, "labels": labels, "reference": reference}
        return called(**{name: given[name] for name in wanted})

    return TaskMetric(spec, False, compute, path)


def _from_module(spec: str, source: str, function: str) -> TaskMetric:
    try:
        module = importlib.import_module(source)
    except Exception as error:  # a module may raise anything while it is imported
        raise MetricError(
            f"--metric: module '{source}' cannot be imported: {last_line(error)}"
        ) from error
    called = function_of(module, function, spec, "--metric", MetricError)

    def compute(outputs: Outputs, labels: Outputs, _: Outputs) -> Any:
        truth, scores = labels_of(labels), _first(outputs)
        whole = np.issubdtype(truth.dtype, np.integer) and scores.ndim == truth.ndim + 1
        return called(truth, np.argmax(scores, axis=-1) if whole else scores)

    return TaskMetric(spec, True, compute)
