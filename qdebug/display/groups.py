"""What a person sees of groups of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from qdebug.display.blocks import Block, Column, Line, table_of
from qdebug.metrics.tensor import noise_db
from qdebug.results.clusters import SampleCluster, SampleClusters
from qdebug.results.compare import CompareResult
from qdebug.results.groups import GroupClipping, GroupResult, Groups
from qdebug.results.words import decibel, in_decibels, number, score, share
from qdebug.wording import counted, printable

_MOST_ROWS = 10
_MOST_NUMBERS = 5


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
    for group in shown:
        if group.clipping:
            yield Line(f"{printable(group.name)}: {clipped_more(group.clipping[0])}", indent=2)
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
    if worst.clipping:
        said += f"; {clipped_more(worst.clipping[0])}"
    if groups.calibration_samples:
        said += f"; {calibrated(worst, groups)} of the calibration samples are of them"
    return f"{said}."


def alike(result: CompareResult) -> str:
    """What the samples that lose most have in common, as sentences; "" where nothing is."""
    clusters = result.clusters
    if clusters is None:
        return ""
    worst = "noisiest samples" if clusters.by_noise else "samples that lose most"
    if result.metric is not None and not clusters.by_noise and result.metric.lost == 0:
        worst = f"samples whose loss rises most (by {printable(result.metric.name)} none is lost)"
    return " ".join(_alike(cluster, clusters, worst) for cluster in clusters.each)


def _alike(cluster: SampleCluster, clusters: SampleClusters, worst: str) -> str:
    numbers = ", ".join(map(str, cluster.samples[:_MOST_NUMBERS]))
    more = ", …" * (len(cluster.samples) > _MOST_NUMBERS)
    all_of = cluster.of_worst == clusters.worst
    which = f"All {clusters.worst}" if all_of else f"{cluster.of_worst} of the {clusters.worst}"
    return (
        f"{which} {worst} fail alike: they are among {len(cluster.samples)} of the "
        f"{counted(clusters.samples, 'sample')} whose SQNR after {printable(cluster.layer)} is "
        f"{in_decibels(cluster.sqnr_db)}; that of the others is "
        f"{in_decibels(cluster.others_sqnr_db)} (medians). These {len(cluster.samples)} "
        f"are {numbers}{more or '.'}"
    )


def clipped_more(one: GroupClipping) -> str:
    """How much more is clipped, such as "4.1 × as many values clipped at /stem/Conv (6% against
    1.5%)"."""
    where = printable(one.layer or one.tensor)
    if math.isinf(one.times):
        return f"{share(one.clipped_fraction)} of the values clipped at {where}, elsewhere none"
    both = f"{share(one.clipped_fraction)} against {share(one.others_fraction)}"
    return f"{number(one.times, 2)} × as many values clipped at {where} ({both})"


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
