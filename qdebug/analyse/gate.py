"""The gate: conditions and end-to-end metric, read before any work so that a slip costs nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from qdebug.analyse.metric_direction import check_direction, direction_of
from qdebug.analyse.metric_samples import judged_pair
from qdebug.errors import MetricError, SampleError, UsageError
from qdebug.metrics.chance import no_better_than_chance
from qdebug.metrics.tasks.base import TaskMetric, is_ragged
from qdebug.metrics.tasks.classes import Classes, classes_of
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.load import bound, check_labels, load_metric
from qdebug.metrics.tasks.masks import masks_of
from qdebug.metrics.tasks.worst_group import of_worst_group
from qdebug.metrics.tensor import EFFECT_METRICS
from qdebug.network.outputshares import share_outputs
from qdebug.network.prepare import Model
from qdebug.network.samples import Samples
from qdebug.network.samples.groups import check_groups, grouping_of
from qdebug.network.samples.subset import SampleSubset
from qdebug.results.compare import CompareResult, TaskResult
from qdebug.results.conditions import Checked, Condition, check_condition, parse_condition
from qdebug.results.stage_report import stages_of
from qdebug.run.outputs import ByBatch, MetricEvaluator, joined
from qdebug.wording import counted, option

ENOUGH_FOR_CLASSES = 8
"""Fewer samples may well be of one class."""
_SMALL_STEP = 0.01
"""A loss of 1% is what most users look for."""
_MOST_NEEDED = 100_000
"""Nobody has more samples: the difference is none."""
_MOST_GROUPS = 5
"""In a note."""


@dataclass(frozen=True)
class Gate:
    """What the gate checks."""

    conditions: tuple[Condition, ...]
    metric: TaskMetric | None

    @property
    def judges_effects(self) -> bool:
        """Whether a condition is about what every layer costs at the outputs."""
        return any(c.scope == "layer" and c.name in EFFECT_METRICS for c in self.conditions)


def read_gate(fail_on: Sequence[str], metric: str | None, decode: str | None = None) -> Gate:
    """The gate of these conditions and this metric; `decode` as in load_metric.

    Raises:
        MetricError: a condition or a metric that is not known.
        UsageError: a condition sets the metric a bound on the wrong side.
    """
    conditions = tuple(parse_condition(text) for text in fail_on)
    loaded = read_metric(metric, decode)
    if loaded is None and any(c.scope == "metric" for c in conditions):
        refuse_missing_metric("fail_on")
    for condition in conditions:
        check_direction(condition, loaded, "fail_on")
    return Gate(conditions, loaded)


def read_metric(metric: str | None, decode: str | None) -> TaskMetric | None:
    """The metric that is asked for, before a model is known; None without one.

    Raises:
        MetricError: it is not known, or `decode` is given for none.
    """
    if metric:
        return load_metric(metric, decode)
    if decode is not None:
        refuse_missing_metric("decode")
    return None


def on_model(
    metric: TaskMetric | None, model: Model, worst_group: str | None = None
) -> TaskMetric | None:
    """A metric that knows how the outputs of a model are read; None without one.

    Args:
        worst_group: what tells groups of samples apart, of which the worst is to count.

    Raises:
        MetricError: they are not what the metric takes, or there is no metric by which a group
            could be the worst.
    """
    if worst_group is not None:
        if metric is None:
            refuse_missing_metric("worst_group")
        return of_worst_group(on_model(metric, model) or metric, worst_group)
    if metric is None or not _has_arrays(model):
        return metric
    graph = model.graph
    shapes = {i.name: i.shape for i in graph.inputs}
    shapes |= {t: graph.shapes.get(t, ()) for t in graph.outputs if graph.is_array(t)}
    sizes = {
        name: tuple(n if isinstance(n, int) and n > 0 else None for n in shape)
        for name, shape in shapes.items()
    }
    inputs = {i.name: sizes.pop(i.name) for i in graph.inputs}
    metadata = {entry.key: entry.value for entry in model.file.proto.metadata_props}
    shares = dict.fromkeys(share_outputs(graph), True)
    return bound(metric, ModelFacts(inputs, sizes, metadata, shares))


def refuse_missing_metric(setting: str) -> NoReturn:
    """Refuse `setting`, which is about the end-to-end metric, where none is given.

    Raises:
        MetricError: always.
    """
    metrics = [option("metric", text) for text in ("top1", "agreement", "file.py:function")]
    raise MetricError(
        f"{option(setting)} is about the metric, but no {option('metric')} is given",
        f"Add {metrics[0]}, {metrics[1]} or {metrics[2]}.",
        code="QD-METRIC-MISSING",
    )


def check_metric(metric: TaskMetric | None, model: Model, samples: Samples) -> None:
    """Find out before the run whether there is what a metric is computed from.

    Raises:
        MetricError: the model has no output that is an array, or the samples have no labels.
        SampleError: they have no groups, where these are asked for.
    """
    grouping = grouping_of(samples)
    if grouping is not None:
        check_groups(grouping, samples.where)
    if metric is None:
        return
    if not _has_arrays(model):
        raise MetricError(
            f"{model.file.path}: the metric needs an output that is an array, and the model has "
            "none: sequences and maps are not observed",
            "Make an array the model's output.",
            code="QD-METRIC-OUTPUT",
        )
    if metric.needs_labels:
        check_labels(metric, samples.extras, samples.where)


def check_every_group(parts: Mapping[str, SampleSubset]) -> None:
    """Make sure that each part of the samples, which are given by what they do, has all groups that
    any of them has, where there are groups.

    Raises:
        SampleError: a part lacks one, for which it would judge nothing.
    """
    present: dict[str, set[str]] = {}
    for part, subset in parts.items():
        grouping = grouping_of(subset.samples)
        if grouping is not None:
            numbers = np.unique(grouping.numbers[subset.indices])
            present[part] = {grouping.groups[k] for k in numbers}
    everywhere = set[str]().union(*present.values())
    for part, groups in present.items():
        if missing := sorted(everywhere - groups):
            raise SampleError(
                f"{option('worst_group')}: none of the {counted(parts[part].count, 'sample')} "
                f"{part} is of '{missing[0]}', so that nothing holds for that group.",
                f"Add samples of it: there must be one for each part ({len(parts)} parts).",
                code="QD-SAMPLES-GROUP",
            )


def worst_group_notes(judging: SampleSubset) -> tuple[str, ...]:
    """How many of the samples that judge are of each group of a target for the worst one, the
    fewest first: a change of one sample in a small group is a large one."""
    grouping = grouping_of(judging.samples)
    if grouping is None:
        return ()
    counts = replace(grouping, numbers=grouping.numbers[judging.indices]).counts
    fewest = sorted((n, name) for name, n in counts.items() if n)
    sizes = ", ".join(f"{name} {n}" for n, name in fewest[:_MOST_GROUPS])
    more = ", …" * (len(fewest) > _MOST_GROUPS)
    return (
        f"Of the {counted(judging.count, 'sample')} that judge, by '{grouping.name}': "
        f"{sizes}{more}. The metric is that of FP32 on all of them plus the change of the group "
        "that loses most, which is no group's own.",
    )


def refuse_without_arrays(model: Model, what: str) -> None:
    """Refuse a model without an output that is an array, by which `what` would be judged.

    Raises:
        UsageError: it has none.
    """
    if not _has_arrays(model):
        raise UsageError(
            f"{model.file.path} has no output that is an array, by which {what} could be judged",
            "Make an array the model's output.",
            code="QD-USAGE-NOTHING-TO-JUDGE",
        )


def _has_arrays(model: Model) -> bool:
    return any(map(model.graph.is_array, model.graph.outputs))


def task_result(
    metric: TaskMetric, samples: Samples, reference: ByBatch, candidate: ByBatch
) -> TaskResult:
    """The metric of both runs over all samples, by what it needs of each batch.

    Raises:
        MetricError: the metric raised, or it is not known what of an output is which sample's.
    """
    evaluator = MetricEvaluator.of(metric, samples, reference)
    outputs = joined(candidate)
    judged = judged_pair(evaluator, outputs, samples.count)
    higher = direction_of(evaluator, samples.count)
    result = TaskResult(
        metric.name,
        judged.reference.score,
        judged.candidate.score,
        higher_is_better=higher,
        is_share=metric.is_share,
        uncertainty=judged.uncertainty(metric),
        boxes=judged.candidate.boxes,
        reference_boxes=judged.reference.boxes,
        worst=judged.worst(higher),
        described=metric.described,
        by_sample=is_ragged(evaluator.reference, outputs),
    )
    result = replace(result, reference_classes=_chosen(evaluator))
    if not metric.is_share:
        return result
    lost, won = judged.exchanged
    return replace(
        result,
        chance=chance_of(evaluator),
        lost=lost,
        won=won,
    )


def metric_notes(task: TaskResult | None, samples: int, gate: Gate) -> tuple[str, ...]:
    """What the reader must know of the samples before the metric can be trusted."""
    notes = []
    if samples == 1:
        notes.append(
            f"Only one sample was compared: other samples may do much better or worse. "
            f"{option('inputs')} takes more."
        )
    if task is None:
        return tuple(notes)
    if task.by_sample:
        notes.append(
            f"Outputs differ in shape between samples: {task.name} was computed of each sample by "
            "itself, and is the mean."
        )
    if task.reference_is_chance(samples):
        notes.append(_guessing(task.name))
    elif task.reference_classes == 1 and gate.metric is not None:
        notes += filter(None, [_one_class(gate.metric, samples)])
    steps = _step_notes(task, samples, gate) if task.is_share and samples > 1 else []
    notes += steps or _undecided_notes(task, samples, gate)
    return tuple(notes)


def guessing_note(task: MetricEvaluator, score: float, samples: int) -> str:
    """A note, where a target that follows FP32's `score` says nothing: it is what guessing gives,
    or FP32 chooses one class for all; else "". Of a function of the user's that is not known."""
    if no_better_than_chance(score, samples, chance_of(task)):
        return _guessing(task.metric.name)
    return _one_class(task.metric, samples) if _chosen(task) == 1 else ""


def chance_of(task: MetricEvaluator) -> float | None:
    """That a guess is right, of a built-in metric that compares classes with labels."""
    places = {"top1": 1, "top5": 5}.get(task.metric.name)
    classes = _classes(task) if places else None
    return places / classes.count if places and classes and classes.count > places else None


def _classes(task: MetricEvaluator) -> Classes | None:
    """Those that FP32 chooses among."""
    return classes_of(task.reference, task.metric.facts)


def _chosen(task: MetricEvaluator) -> int | None:
    """How many different classes FP32 chooses, of samples or of pixels; None of other metrics, and
    where there is but one to choose."""
    if task.metric.takes == "scores":
        classes = _classes(task)
        return classes.chosen if classes is not None and classes.count > 1 else None
    if task.metric.takes == "mask" and not is_ragged(task.reference):
        masks = masks_of(task.reference, task.reference, task.metric.facts)
        return len(np.unique(masks.classes))
    return None


def _one_class(metric: TaskMetric, samples: int) -> str:
    """A note; "" of so few samples that they may well be of one class."""
    if metric.takes == "mask":
        chosen = f"FP32 chooses the same class for every pixel of {counted(samples, 'sample')}"
        return (
            f"{chosen}, so {metric.name} can hardly change. Check the preprocessing first, or give "
            "samples with something to find."
        )
    if samples < ENOUGH_FOR_CLASSES:
        return ""
    return (
        f"FP32 chooses the same class for all {samples} samples, so {metric.name} can hardly "
        "change. "
        "Check the preprocessing first, or give samples of several classes."
    )


def _guessing(name: str) -> str:
    return (
        f"{name} of FP32 is no better than guessing on these samples, so what the lower precision "
        "does to it says nothing yet. First check the preprocessing (range, mean and order of "
        "channels) and that the labels are numbered as the outputs are."
    )


def _step_notes(task: TaskResult, samples: int, gate: Gate) -> list[str]:
    """Whether so few samples can show the change that is allowed of a share of them."""
    step = 1 / samples
    moves = f"With {samples} samples {task.name} moves in steps of {step:.4f}"
    conditions = [c for c in gate.conditions if c.scope == "metric"]
    if not conditions:
        return [f"{moves}: smaller losses do not show."] if step > _SMALL_STEP else []
    notes = []
    for condition in conditions:
        less = condition.operator in (">=", ">")
        allowed = (task.reference - condition.bound) * (1 if less else -1)
        if allowed < 0:
            notes.append(
                f"FP32 itself does not meet {condition.expression}: {task.name} is "
                f"{task.reference:.4f}."
            )
        elif 0 < allowed < step:
            notes.append(
                f"{moves}, and {condition.expression} allows a change of {allowed:.4f} from FP32: "
                f"one step decides. It takes {math.ceil(samples * step / allowed)} or more."
            )
    return notes


def _undecided_notes(task: TaskResult, samples: int, gate: Gate) -> list[str]:
    """Whether the samples cannot tell on which side of a bound the metric is: its distance to
    FP32's may as well be larger or smaller than allowed."""
    notes = []
    for condition in gate.conditions:
        if condition.scope != "metric" or task.uncertainty is None:
            continue
        low, high = (task.reference + end for end in task.uncertainty.change)
        if not low < condition.bound < high or task.candidate == condition.bound:
            continue
        times = ((high - low) / 2 / (task.candidate - condition.bound)) ** 2
        needed = samples * times
        enough = f" About {_rounded(needed)} would." if needed <= _MOST_NEEDED else ""
        notes.append(
            f"{samples} samples do not tell on which side of {condition.bound:g} {task.name} is: "
            f"it is {task.candidate:.4f}, but the 95% interval of its change from FP32 puts it "
            f"between {low:.4f} and {high:.4f}.{enough}"
        )
    return notes


def _rounded(count: float) -> int:
    """Upwards, to two digits: it is an estimate."""
    unit: int = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return math.ceil(count / unit) * unit


def checked_conditions(
    conditions: Sequence[Condition], result: CompareResult
) -> tuple[Checked, ...]:
    """Check every condition by what was measured so far."""
    checked: list[Checked] = []
    for condition in conditions:
        values: list[float | None]
        reason, places = "", list[str]()
        if condition.scope == "metric":
            values = [result.metric.candidate if result.metric else None]
        elif condition.scope == "stage":
            stages = {f"{stage.name}.sqnr_db": stage for stage in stages_of(result)}
            values, reason = [stages[condition.name].sqnr_db], stages[condition.name].told
        elif condition.scope == "layer":
            values = [layer.figure(condition.name) for layer in result.layers]
        elif condition.scope == "part":
            values = [x for o in result.outputs for x in o.part_sqnrs_db]
            places = [x for o in result.outputs for x in o.part_places]
        else:
            judged = result.outputs if condition.scope == "output" else result.tensors
            values = [getattr(x.metrics, condition.name) for x in judged]
            if condition.name == "worst_part_sqnr_db" and condition.scope == "output":
                places = [
                    min(zip(o.part_sqnrs_db, o.part_places, strict=True))[1] for o in result.outputs
                ]
        checked.append(check_condition(condition, values, reason, places))
    return tuple(checked)
