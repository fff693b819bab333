"""What a person sees of groups of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from qdebug.display.blocks import Block, Column, Line, table_of
from qdebug.metrics.tensor import noise_db
from qdebug.results.compare import CompareResult
from qdebug.results.groups import GroupResult, Groups
from qdebug.results.words import decibel, score, share
from qdebug.wording import printable

_MOST_ROWS = 10


def group_blocks(result: CompareResult) -> Iterator[Block]:
    """The groups as a table, the worst first; nothing without groups."""
    groups = result.groups
    if groups is None:
        return
    hidden = len(groups.each) - _MOST_ROWS
    more = f" ({hidden} more in the JSON)" if hidden > 0 else ""
    yield Line(f"Samples by {printable(groups.name)}, the worst group first{more}", "title")
    columns: list[tuple[Column, Callable[[GroupResult], str]]] = [
        (Column("group", "name"), lambda g: g.name),
        (Column("samples", "number"), lambda g: str(g.samples)),
    ]
    if groups.calibration_samples:
        columns.append((Column("calib.", "number"), lambda g: calibrated(g, groups)))
    columns.append((Column("SQNR dB, 95 %", "number"), _noise_with_interval))
    if result.metric is not None:
        columns += [
            (Column(result.metric.name, "number"), _scores),
            (Column("change, 95 %", "number", 1), _change),
        ]
    worst = groups.each[0].name if groups.worst is not None else None
    shown = groups.each[:_MOST_ROWS]
    yield table_of(shown, columns, lambda g: "worst" if g.name == worst else "")
    yield Line()


def worst_group(result: CompareResult) -> str:
    """Which group of samples loses more than the others, and what is different there, as a
    sentence; "" where none does beyond chance."""
    groups = result.groups
    if groups is None or groups.worst is None or groups.others is None:
        return ""
    worst, others = groups.each[0], groups.others
    name = f"Samples of '{printable(worst.name)}' ({printable(groups.name)})"
    if result.metric is not None and worst.score and others.score and not groups.by_noise:
        moved = [f"{g.candidate - g.reference:+.4f}" for g in (worst.score, others.score)]
        said = f"{name} lose most: {printable(result.metric.name)} {moved[0]} there, {moved[1]} in "
        said += "all others"
    else:
        said = f"{name} have most noise: SQNR {_noise(worst)} dB there, {_noise(others)} in all "
        said += "others"
        if result.metric is not None:
            said += f" (by {printable(result.metric.name)} no group loses more beyond chance)"
    if groups.calibration_samples:
        said += f"; {calibrated(worst, groups)} of the calibration samples are of them"
    return f"{said}."


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


def _scores(group: GroupResult) -> str:
    if group.score is None:
        return "–"
    return f"{score(group.score.reference)} → {score(group.score.candidate)}"


def _change(group: GroupResult) -> str:
    if group.score is None or group.score.uncertainty is None:
        return "–"
    low, high = group.score.uncertainty.change
    return f"{low:+.3f} to {high:+.3f}"
