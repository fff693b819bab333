"""What a person sees of groups of samples."""

from __future__ import annotations

from qdebug.display.blocks import Cells, Column, Line, Parts, table_of
from qdebug.metrics.tensor import noise_db
from qdebug.results.compare import CompareResult
from qdebug.results.groups import GroupResult, Groups
from qdebug.results.words import decibel, figure, score, share
from qdebug.wording import printable

_MOST_ROWS = 10


def group_blocks(result: CompareResult) -> Parts:
    """The groups as a table, the worst first; nothing without groups."""
    groups, metric = result.groups, result.metric
    if groups is None:
        return None
    hidden = len(groups.each) - _MOST_ROWS
    more = f" ({hidden} more in the JSON)" if hidden > 0 else ""
    calib: Cells[GroupResult] = Column("calib.", "number"), lambda g: calibrated(g, groups)
    table = table_of(
        groups.each[:_MOST_ROWS],
        [
            (Column("group", "name"), lambda g: g.name),
            (Column("samples", "number"), lambda g: g.samples),
            calib if groups.calibration_samples else None,
            (Column("SQNR dB, 95 %", "number"), _noise_with_interval),
            (
                Column(metric.name, "number"),
                lambda g: g.score and f"{score(g.score.reference)} → {score(g.score.candidate)}",
            )
            if metric
            else None,
            (Column("change, 95 %", "number", 1), _change) if metric else None,
        ],
        lambda g: "worst" if groups.worst is not None and g.name == groups.each[0].name else "",
    )
    title = f"Samples by {printable(groups.name)}, the worst group first{more}"
    return Line(title, "title"), table, Line()


def worst_group(result: CompareResult) -> str:
    """Which group of samples loses more than the others, and what is different there, as a
    sentence; "" where none does beyond chance."""
    groups, metric = result.groups, result.metric
    if groups is None or groups.worst is None or groups.others is None:
        return ""
    worst, others = groups.each[0], groups.others
    if metric is not None and worst.score and others.score and not groups.by_noise:
        scores = worst.score, others.score
        there, elsewhere = (figure(s.candidate - s.reference, "change") for s in scores)
        said = f"lose most: {printable(metric.name)} {there} there, {elsewhere} in all others"
    else:
        said = f"have most noise: SQNR {_noise(worst)} dB there, {_noise(others)} in all others"
        if metric is not None:
            said += f" (by {printable(metric.name)} no group loses more beyond chance)"
    if groups.calibration_samples:
        said += f"; {calibrated(worst, groups)} of the calibration samples are of them"
    return f"Samples of '{printable(worst.name)}' ({printable(groups.name)}) {said}."


def calibrated(group: GroupResult, groups: Groups) -> str:
    """How many of the calibration samples are of a group, such as "3 (1.2%)"."""
    of, all_of_them = group.calibration_samples or 0, groups.calibration_samples or 1
    return f"{of} ({share(of / all_of_them)})"


def _noise(group: GroupResult) -> str:
    return decibel(None if group.noise is None else noise_db(group.noise))


def _noise_with_interval(group: GroupResult) -> str:
    if group.noise_interval is None:
        return _noise(group)
    high, low = (decibel(noise_db(noise)) for noise in group.noise_interval)
    return f"{_noise(group)} ({low} to {high})"


def _change(group: GroupResult) -> str | None:
    if group.score is None or group.score.uncertainty is None:
        return None
    return "{:+.3f} to {:+.3f}".format(*group.score.uncertainty.change)
