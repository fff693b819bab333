"""What a person sees of a calibration, and of how well its samples cover the values to come."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from qdebug.calibrators.coverage import ENOUGH
from qdebug.display.blocks import Block, Column, Line, Style, Table, table_of
from qdebug.display.names import shorten
from qdebug.metrics.tensor import OUTPUT_METRICS
from qdebug.results.calibrate import (
    FACTOR,
    CacheDifference,
    CalibrateResult,
    Coverage,
    GroupFigures,
    GroupShare,
    MethodResult,
)
from qdebug.results.words import apart, decibel, figure, first_names, number, score, share
from qdebug.wording import counted, option, printable

_MOST_LISTED = 5
_MOST_NAMED = 3
_LONGEST_METRIC = 20
_GROUP_DECIMALS = 2
"""Of a metric on a few of the samples."""


def view(result: CalibrateResult) -> list[Block]:
    """The methods side by side, where they differ, coverage, and which one to take."""
    blocks: list[Block] = [
        Line(
            f"{printable(result.model.name)}: {counted(len(result.methods), 'calibration')} of "
            f"{counted(result.calibration_samples, 'sample')}, evaluated on "
            f"{counted(result.held_out_samples, 'held-out sample')}",
            "title",
        )
    ]
    notes = [Line(printable(note), "note") for note in result.notes]
    is_chance = result.metric is not None and result.metric.is_chance is True
    if is_chance:  # they say so: the table then says nothing of the metric
        blocks += notes
    blocks.append(_methods(result))
    if (outputs := len(result.chosen.trial.outputs)) > 1:
        blocks.append(Line(f"SQNR, cosine: of the worst of {outputs} outputs", "fine", 2))
    if result.metric and result.metric.interval:
        low, high = result.metric.interval
        text = f"FP32: 95% {score(low)} to {score(high)} on so many samples"
        blocks.append(Line(text, "fine", 2))
    blocks += _better_than_fp32(result)
    blocks += _groups(result)
    blocks += _differing(result)
    blocks += coverage_blocks(result.coverage)
    if result.cache_difference:
        blocks += _difference(result.cache_difference)
    if not is_chance:
        blocks += notes
    blocks.append(_chosen(result))
    return blocks


def _groups(result: CalibrateResult) -> Iterator[Block]:
    """What each method makes of each group of samples, and which groups are thin."""
    if not result.groups:
        return
    yield Line()
    measured = f"SQNR in dB{f', {printable(result.metric.name)}' if result.metric else ''}"
    yield Line(f"{measured} of the held-out samples by {printable(result.grouped_by)}", "title")
    columns: list[tuple[Column, Callable[[GroupShare], str]]] = [
        (Column("group", "name"), lambda g: g.name),
        (Column("calibrated on", "number"), lambda g: _of(g.calibration_samples, result)),
        (Column("held out", "number"), lambda g: str(g.held_out_samples)),
    ]
    if any(group.reference is not None for group in result.groups):
        columns.append((Column("FP32", "number"), _of_reference))
    for place, (name, method) in enumerate(result.methods.items(), start=1):
        figures = method.trial.groups
        columns.append((Column(name, "number", place), partial(_of_group, figures)))
    yield table_of(result.groups, columns)
    if result.thin_groups:
        alike = f", or let every group count alike ({option('balance')})"
        yield Line(
            f"Thin in the calibration: {first_names(result.thin_groups, _MOST_NAMED)}: add such "
            f"samples{'' if result.balanced else alike}.",
            "note",
        )


def _of(samples: int, result: CalibrateResult) -> str:
    return f"{samples} ({share(samples / result.calibration_samples)})"


def _of_reference(group: GroupShare) -> str:
    return "–" if group.reference is None else score(group.reference, _GROUP_DECIMALS)


def _of_group(figures: Mapping[str, GroupFigures], group: GroupShare) -> str:
    found = figures.get(group.name)
    if found is None:
        return "–"
    metric = "" if found.metric is None else f", {score(found.metric, _GROUP_DECIMALS)}"
    return f"{decibel(found.sqnr_db)}{metric}"


def _chosen(result: CalibrateResult) -> Line:
    if not result.best_by:
        text = "No output can be compared, so that nothing tells the methods apart"
        return Line(f"{text}: {result.best}, the first, is taken.", "note")
    return Line(f"Best: {result.best}, by {result.best_by}", "good")


def _methods(result: CalibrateResult) -> Table:
    heads = [m.output_column for m in OUTPUT_METRICS] + ["clipped (mean)", "clipped (most)"]
    if result.metric:
        # Of a metric in a file the name says enough: a path would take the other columns' room.
        heads.insert(0, shorten(printable(result.metric.name.rpartition(":")[2]), _LONGEST_METRIC))
    rows = [(name, *_figures(method)) for name, method in result.methods.items()]
    styles: list[Style] = ["strong" if name == result.best else "" for name in result.methods]
    if result.metric and result.metric.reference is not None:
        rows.insert(0, ("FP32", score(result.metric.reference), "exact", *[""] * (len(heads) - 2)))
        styles.insert(0, "")
    columns = (Column("method", "name"), *(Column(head, "number") for head in heads))
    return Table(columns, tuple(rows), tuple(styles))


def _better_than_fp32(result: CalibrateResult) -> Iterator[Line]:
    """That the metric is better than FP32's, which people take for a mistake unless it is said."""
    metric = result.metric
    if metric is None or metric.is_chance:
        return
    if metric.reference is None or metric.higher_is_better is None:
        return
    for name, method in result.methods.items():
        if method.trial.metric is None:
            continue
        gain = (method.trial.metric - metric.reference) * (1 if metric.higher_is_better else -1)
        if gain > 0:
            by = apart(gain, result.held_out_samples, is_share=metric.is_share)
            yield Line(f"{name} is better than FP32 by {by}", indent=2)


def _figures(method: MethodResult) -> Iterator[str]:
    trial, clipped = method.trial, method.clipped
    if trial.metric is not None:
        yield score(trial.metric)
    for metric in OUTPUT_METRICS:
        yield figure(metric.worst(trial.outputs), metric.unit)
    yield share(float(np.mean(clipped)) if clipped else None)
    yield share(max(clipped) if clipped else None)


def _differing(result: CalibrateResult) -> Iterator[Line]:
    """The tensors whose ranges differ most; name and ranges on lines of their own."""
    shown = [*result.methods.values()]
    if len(shown) < 2:
        return
    yield Line()
    yield Line("Ranges (amax) that differ most between the methods", "title")
    for tensor in _most_different(shown):
        yield Line(printable(tensor), indent=2)
        amax = ", ".join(f"{m.name} {number(_amax(m, tensor), 3)}" for m in shown)
        yield Line(amax, indent=4)


def _most_different(methods: Sequence[MethodResult]) -> list[str]:
    def spread(tensor: str) -> float:
        values = [_amax(m, tensor) for m in methods]
        if max(values) == 0:
            return 1.0
        return max(values) / min(values) if min(values) > 0 else math.inf

    return sorted(methods[0].tensors, key=spread, reverse=True)[:_MOST_LISTED]


def _amax(method: MethodResult, tensor: str) -> float:
    return float(np.max(method.tensors[tensor].range.amax))


def _difference(difference: CacheDifference) -> Iterator[Line]:
    """How the calibration given differs from a fresh one."""
    yield Line()
    yield Line("The calibration given, against a fresh one", "title")
    if difference.written_by:
        yield Line(f"written by {printable(difference.written_by)}", indent=2)
    if difference.missing:
        yield Line("not evaluated: it lacks ranges that INT8 layers need", "note", 2)
    for what, names in (
        ("missing", difference.missing),
        ("not in the model", difference.unknown),
        ("zero or denormal", difference.degenerate),
    ):
        if names:
            yield Line(f"{what}: {first_names(names, _MOST_NAMED)}", "note", 2)
    if difference.unused:
        yield Line(f"not compared: {difference.unused} that no INT8 layer reads", indent=2)
    if not difference.different:
        yield Line(f"no range is off by more than {FACTOR:g} times", indent=2)
        return
    count = counted(len(difference.different), "range")
    yield Line(f"off by more than {FACTOR:g} times: {count}", indent=2)
    for entry in difference.different[:_MOST_LISTED]:
        told = f"{number(entry.given, 3)}, now {number(entry.fresh, 3)} by {entry.method}"
        yield Line(f"{printable(entry.tensor)}: {told}", indent=4)


def coverage_blocks(coverage: Coverage, over: str = "") -> Iterator[Block]:
    """Growth of the ranges with the number of samples, held-out excess where there are held-out
    data, and samples that stretch a range by themselves. `over` says of which tensors."""
    growth = coverage.growth
    yield Line()
    yield Line(f"Coverage: how much of a range the first samples give {over}".rstrip(), "title")
    heads = (str(count) for count in growth.samples)
    rows = [
        (name, *(f"{100 * value:.0f}%" for value in shares))
        for name, shares in (("median tensor", growth.median), ("worst tensor", growth.lowest))
    ]
    columns = (Column("samples"), *(Column(head, "number") for head in heads))
    yield Table(columns, tuple(rows))
    if len(growth.samples) < 2:
        yield Line("one sample does not show how the ranges grow with more", indent=2)
    elif growth.enough < growth.samples[-1]:
        first = "sample gives" if growth.enough == 1 else f"{growth.enough} samples give"
        text = f"the first {first} every tensor at least {100 * ENOUGH:.0f}% of its range"
        yield Line(text, indent=2)
    else:  # nothing less reached the mark
        text = "some ranges still grew with the last samples: more might widen them"
        yield Line(text, indent=2)
    beyond = [e for e in coverage.held_out if e.ratio > 1]
    if beyond:
        worst = beyond[0]
        text = (
            f"held-out data exceed the largest range seen in {len(beyond)} of "
            f"{counted(len(coverage.held_out), 'tensor')}, most in {printable(worst.tensor)} "
            f"({number(worst.ratio, 3)} times, {share(worst.samples_beyond)} of the samples)"
        )
        yield Line(text, indent=2)
    elif coverage.held_out:
        yield Line("held-out data stay within the largest range seen in every tensor", indent=2)
    for stretch in coverage.stretched_by_one_sample[:_MOST_NAMED]:
        text = (
            f"sample {stretch.sample} by itself stretches {printable(stretch.tensor)}: amax "
            f"{number(stretch.amax, 3)}, without it {number(stretch.without, 3)}"
        )
        yield Line(text, indent=2)
