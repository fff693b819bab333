"""What a person sees of a calibration, and of how well its samples cover the values to come."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from qdebug.calibrators.coverage import ENOUGH, Growth
from qdebug.display.blocks import Block, Cells, Column, Line, Parts, Style, Table, flat, table_of
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
from qdebug.results.words import (
    apart,
    decibel,
    figure,
    first_names,
    interval,
    number,
    score,
    share,
)
from qdebug.wording import counted, option, printable

_MOST_LISTED = 5
_MOST_NAMED = 3
_LONGEST_METRIC = 20
_GROUP_DECIMALS = 2
"""Of a metric on a few of the samples."""


def view(result: CalibrateResult) -> list[Block]:
    """The methods side by side, where they differ, coverage, and which one to take."""
    metric, outputs = result.metric, len(result.chosen.trial.outputs)
    notes = [Line(printable(note), "note") for note in result.notes]
    # They say so: the table then says nothing of the metric.
    is_chance = metric is not None and metric.is_chance is True
    told = "" if metric is None else interval(metric.interval).strip(" ()")
    return flat(
        Line(
            f"{printable(result.model.name)}: {counted(result.methods, 'calibration')} of "
            f"{counted(result.calibration_samples, 'sample')}, evaluated on "
            f"{counted(result.held_out_samples, 'held-out sample')}",
            "title",
        ),
        notes if is_chance else None,
        _methods(result),
        Line(f"SQNR, cosine: of the worst of {outputs} outputs", "fine", 2)
        if outputs > 1
        else None,
        Line(f"FP32: {told} on so many samples", "fine", 2) if told else None,
        _better_than_fp32(result),
        _groups(result),
        _differing(result),
        coverage_blocks(result.coverage),
        _difference(result.cache_difference) if result.cache_difference else None,
        None if is_chance else notes,
        Line(f"Best: {result.best}, by {result.best_by}", "good")
        if result.best_by
        else Line(
            "No output can be compared, so that nothing tells the methods apart: "
            f"{result.best}, the first, is taken.",
            "note",
        ),
    )


def _groups(result: CalibrateResult) -> Parts:
    """What each method makes of each group of samples, and which groups are thin."""
    measured = f"SQNR in dB{f', {printable(result.metric.name)}' if result.metric else ''}"
    alike = f", or let every group count alike ({option('balance')})"
    thin = Line(
        f"Thin in the calibration: {first_names(result.thin_groups, _MOST_NAMED)}: add such "
        f"samples{'' if result.balanced else alike}.",
        "note",
    )
    full: Cells[GroupShare] = (
        Column("FP32", "number"),
        lambda g: g.reference if g.reference is None else score(g.reference, _GROUP_DECIMALS),
    )
    table = table_of(
        result.groups,
        [
            (Column("group", "name"), lambda g: g.name),
            (
                Column("calibrated on", "number"),
                lambda g: (
                    f"{g.calibration_samples} "
                    f"({share(g.calibration_samples / result.calibration_samples)})"
                ),
            ),
            (Column("held out", "number"), lambda g: g.held_out_samples),
            full if any(group.reference is not None for group in result.groups) else None,
            *(
                (Column(name, "number", place), partial(_of_group, method.trial.groups))
                for place, (name, method) in enumerate(result.methods.items(), start=1)
            ),
        ],
    )
    by = f"{measured} of the held-out samples by {printable(result.grouped_by)}"
    shown = Line(), Line(by, "title"), table, thin if result.thin_groups else None
    return shown if result.groups else None


def _of_group(figures: Mapping[str, GroupFigures], group: GroupShare) -> str:
    found = figures.get(group.name)
    if found is None:
        return "–"
    metric = "" if found.metric is None else f", {score(found.metric, _GROUP_DECIMALS)}"
    return f"{decibel(found.sqnr_db)}{metric}"


def _methods(result: CalibrateResult) -> Table:
    heads = [m.output_column for m in OUTPUT_METRICS] + ["clipped (mean)", "clipped (most)"]
    rows = [(name, *_figures(method)) for name, method in result.methods.items()]
    styles: list[Style] = ["strong" if name == result.best else "" for name in result.methods]
    if result.metric:
        # Of a metric in a file the name says enough: a path would take the other columns' room.
        heads.insert(0, shorten(printable(result.metric.name.rpartition(":")[2]), _LONGEST_METRIC))
        if (full := result.metric.reference) is not None:
            rows.insert(0, ("FP32", score(full), "exact", *[""] * (len(heads) - 2)))
            styles.insert(0, "")
    columns = (Column("method", "name"), *(Column(head, "number") for head in heads))
    return Table(columns, tuple(rows), tuple(styles))


def _better_than_fp32(result: CalibrateResult) -> Iterator[Line]:
    """That the metric is better than FP32's, which people take for a mistake unless it is said."""
    metric = result.metric
    if metric is None or metric.is_chance or None in (metric.reference, metric.higher_is_better):
        return
    full, sign = metric.reference or 0.0, 1 if metric.higher_is_better else -1
    for name, method in result.methods.items():
        found = method.trial.metric
        if found is not None and (gain := (found - full) * sign) > 0:
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


def _differing(result: CalibrateResult) -> Parts:
    """The tensors whose ranges differ most; name and ranges on lines of their own."""
    methods = [*result.methods.values()]

    def spread(tensor: str) -> float:
        values = [_amax(m, tensor) for m in methods]
        least = min(values)
        return max(values) / least if least > 0 else math.inf if max(values) else 1.0

    def ranges(tensor: str) -> Line:
        amax = ", ".join(f"{m.name} {number(_amax(m, tensor), 3)}" for m in methods)
        return Line(amax, indent=4)

    differing = sorted(methods[0].tensors, key=spread, reverse=True)[:_MOST_LISTED]
    title = Line("Ranges (amax) that differ most between the methods", "title")
    shown = ((Line(printable(tensor), indent=2), ranges(tensor)) for tensor in differing)
    return (Line(), title, shown) if len(methods) > 1 else None


def _amax(method: MethodResult, tensor: str) -> float:
    return float(np.max(method.tensors[tensor].range.amax))


def _difference(difference: CacheDifference) -> Iterator[Line]:
    """How the calibration given differs from a fresh one."""

    def named(names: Sequence[str]) -> str:
        return first_names(names, _MOST_NAMED)

    by, unused, off = difference.written_by, difference.unused, difference.different
    lacks = "it lacks ranges that INT8 layers need" if difference.missing else ""
    count = counted(off, "range") if off else ""
    lines: list[tuple[str, str, Style]] = [
        ("written by ", printable(by), ""),
        ("not evaluated: ", lacks, "note"),
        ("missing: ", named(difference.missing), "note"),
        ("not in the model: ", named(difference.unknown), "note"),
        ("zero or denormal: ", named(difference.degenerate), "note"),
        ("not compared: ", f"{unused} that no INT8 layer reads" if unused else "", ""),
        ("no range is off by more than ", "" if off else f"{FACTOR:g} times", ""),
        (f"off by more than {FACTOR:g} times: ", count, ""),
    ]
    yield Line()
    yield Line("The calibration given, against a fresh one", "title")
    yield from (Line(what + text, style, 2) for what, text, style in lines if text)
    for entry in off[:_MOST_LISTED]:
        told = f"{number(entry.given, 3)}, now {number(entry.fresh, 3)} by {entry.method}"
        yield Line(f"{printable(entry.tensor)}: {told}", indent=4)


def coverage_blocks(coverage: Coverage, over: str = "") -> Iterator[Block]:
    """Growth of the ranges with the number of samples, held-out excess where there are held-out
    data, and samples that stretch a range by themselves. `over` says of which tensors."""
    growth = coverage.growth
    yield Line()
    yield Line(f"Coverage: how much of a range the first samples give {over}".rstrip(), "title")
    rows = (("median tensor", growth.median), ("worst tensor", growth.lowest))
    yield Table(
        (Column("samples"), *(Column(str(count), "number") for count in growth.samples)),
        tuple((name, *(figure(v, "whole share") for v in shares)) for name, shares in rows),
    )
    yield from (Line(text, indent=2) for text in (_grown(growth), *_beyond(coverage)) if text)


def _grown(growth: Growth) -> str:
    """Whether the ranges grew up to the last sample."""
    if len(growth.samples) < 2:
        return "one sample does not show how the ranges grow with more"
    if growth.enough < growth.samples[-1]:
        first = "sample gives" if growth.enough == 1 else f"{growth.enough} samples give"
        least = figure(ENOUGH, "whole share")
        return f"the first {first} every tensor at least {least} of its range"
    # Nothing less reached the mark.
    return "some ranges still grew with the last samples: more might widen them"


def _beyond(coverage: Coverage) -> Iterator[str]:
    """What leaves the ranges, and what makes them by itself."""
    beyond = [e for e in coverage.held_out if e.ratio > 1]
    for worst in beyond[:1]:
        yield (
            f"held-out data exceed the largest range seen in {len(beyond)} of "
            f"{counted(coverage.held_out, 'tensor')}, most in {printable(worst.tensor)} "
            f"({number(worst.ratio, 3)} times, {share(worst.samples_beyond)} of the samples)"
        )
    if coverage.held_out and not beyond:
        yield "held-out data stay within the largest range seen in every tensor"
    for stretch in coverage.stretched_by_one_sample[:_MOST_NAMED]:
        yield (
            f"sample {stretch.sample} by itself stretches {printable(stretch.tensor)}: amax "
            f"{number(stretch.amax, 3)}, without it {number(stretch.without, 3)}"
        )
