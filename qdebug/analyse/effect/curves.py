"""In which order the layers come, and which few of them to keep in FP32: by what the first of an
order restore together.

What a layer costs by itself does not tell what several cost together: errors offset each other, and
one masks another. So two orders are tried by the curve of what their first layers give back: that
by effect, and one in which each layer is the next that gives back most with those before. The
smallest set that gives back most of what was lost is then found along the better one, and made
smaller by leaving out what it does not need (delta debugging; Zeller & Hildebrandt, IEEE TSE 28
(2002) 183).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from qdebug.analyse.causes.overflow import with_overflow_groups
from qdebug.analyse.compared import Choice, Compared
from qdebug.analyse.effect.effects import CURVE_RUNS
from qdebug.analyse.effect.sets import Sets, Yardstick
from qdebug.metrics.effect import is_masked
from qdebug.results.compare import LayerResult
from qdebug.results.curve import Curve, CurvePoint, Figure, Order
from qdebug.results.summary import HALF, HOLDS, MOST_LEADERS, are_few

_DECIDING = (1, 3, 5, 13)
"""So many first layers tell how fast a curve rises, ..."""
_SHOWN = (1, 2, 3, 5, 8, 13)
"""... and so many draw it."""
_FASTER = 0.05
"""An order must restore so much more than that by effect, on average over the deciding points, to
be taken in its place."""
_NEXT = 2
"""So many that give back most by themselves are tried as the next layer, besides the first by
effect and the noisiest alone."""
_GROWS = 1.6
"""Where no curve gives back most, sets grow by this factor, as the Fibonacci numbers do."""
_WITHIN, _NEARLY = 0.15, 0.95
"""Where no set gives back most, fewer layers are named if they give back nearly what more do: of
the loss up to so much less, of the noise so much of it."""
Restored = Callable[[Sequence[str]], float]
"""The part of what was lost that a set of layers gives back; NaN where it is not known."""


def curved(compared: Compared) -> Compared:
    """With its layers in the order whose first ones restore most, and the few to keep in FP32.

    Raises:
        QdebugError: samples cannot be read, or a model does not run.
    """
    result, sets = compared.result, compared.sets
    planned = [x for x in result.layers if x.effect is not None]
    if sets is None or len(planned) < 2 or result.is_as_good_as_fp32:
        return compared
    yardstick = Yardstick.of(sets)
    if yardstick is None:
        return compared
    sets.most = len(sets.known) + CURVE_RUNS

    def restored(names: Sequence[str]) -> float:
        return yardstick.restored(sets([names])[0])

    by_effect = [x.name for x in planned]
    order, names = Order.EFFECT, by_effect
    rises = {str(order): _rise(names, restored)}
    if rises[order] < 1 - _FASTER:
        together = _together(planned, sets, restored)
        rises[str(Order.TOGETHER)] = _rise(together, restored)
        if rises[Order.TOGETHER] > rises[Order.EFFECT] + _FASTER:
            order, names = Order.TOGETHER, together
    points = _points(names, sets, yardstick)
    within = _WITHIN if yardstick.figure is Figure.LOSS else 1 - _NEARLY
    chosen = _chosen(compared, names, restored, within)
    choice = Choice(chosen, restored(chosen))
    shown = names[: max((p.layers for p in points if p.rises), default=0)]
    ranked = [*shown, *(n for n in by_effect if n not in shown)]
    curve = Curve(
        order=order,
        figure=yardstick.figure,
        samples=sets.samples,
        planned=yardstick.shown(yardstick.figure_of(yardstick.planned)),
        reference=yardstick.shown(yardstick.figure_of(yardstick.reference)),
        points=points,
        rises=rises,
        names=tuple(names[: points[-1].layers if points else 0]),
    )
    layers = _ranked(result.layers, ranked)
    return replace(compared.found(layers=layers, curve=curve), choice=choice)


def _points(names: Sequence[str], sets: Sets, yardstick: Yardstick) -> tuple[CurvePoint, ...]:
    sizes = [k for k in _SHOWN if k < len(names)]
    points: list[CurvePoint] = []
    for size, given in zip(sizes, sets([names[:k] for k in sizes]), strict=True):
        before = max((p.restored for p in points), default=0.0)
        if point := yardstick.point(size, given, before):
            points.append(point)
    return tuple(points)


def _rise(names: Sequence[str], restored: Restored) -> float:
    """How fast the curve of an order rises: the mean part restored at the deciding points."""
    found = [restored(names[:k]) for k in _DECIDING if k < len(names)]
    found = [min(1.0, max(0.0, x)) for x in found if not math.isnan(x)]
    return sum(found) / len(found) if found else 0.0


def _together(planned: Sequence[LayerResult], sets: Sets, restored: Restored) -> list[str]:
    """The few first layers, one after the other: each time the next that gives back most with those
    before; then the others by effect."""
    alone = {x.name: (x.effect.alone or 0.0) if x.effect else 0.0 for x in planned}
    single = {n: restored([n]) for n in alone if frozenset([n]) in sets.known}
    single = {n: part for n, part in single.items() if not math.isnan(part)}
    names: list[str] = []
    while len(names) < min(MOST_LEADERS, len(planned) - 1):
        rest = [n for n in alone if n not in names]
        best = sorted((n for n in rest if n in single), key=lambda n: -single[n])
        pool = dict.fromkeys([*best[:_NEXT], rest[0], max(rest, key=lambda n: alone[n])])
        sets([(*names, n) for n in pool])
        known = {n: x for n in pool if not math.isnan(x := restored((*names, n)))}
        names.append(max(known, key=lambda n: known[n]) if known else rest[0])
        if known and max(known.values()) > _NEARLY:
            break
    return [*names, *(n for n in alone if n not in names)]


def _chosen(
    compared: Compared, names: Sequence[str], restored: Restored, within: float
) -> tuple[str, ...]:
    """The smallest set that was found to give back most of what was lost. Where none does, or only
    one that is not small although few layers give back half: these few."""
    tried = [k for k in _SHOWN if k < len(names)]
    if len(names) <= MOST_LEADERS:  # each may break the outputs by itself
        tried.append(len(names))
    first = {k: restored(names[:k]) for k in tried if k <= MOST_LEADERS}
    most = max((x for x in first.values() if not math.isnan(x)), default=0.0)
    least = next((k for k, x in first.items() if x >= most - within * max(0.0, most)), 1)
    leaders = tuple(names[:least])
    holding = next((k for k in tried if restored(names[:k]) >= HOLDS), None)
    if holding is not None:
        before = max((k for k in tried if k < holding), default=0)
        between = range(before + 1, holding + 1)
        smallest = next(k for k in between if restored(names[:k]) >= HOLDS)
        found = _shrunk(names[:smallest], restored)
        small = are_few(len(found), len(names), restored(found))
        return found if small or most < HALF else leaders
    for larger in [] if most >= HALF else _grown(compared, names):
        if restored(larger) >= HOLDS:
            return _shrunk(larger, restored)
    return leaders


def _grown(compared: Compared, names: Sequence[str]) -> list[Sequence[str]]:
    """Larger sets: the layers that break the outputs each by itself, and more and more of the first
    ones, up to half of all."""
    result = compared.result
    noise = result.effect.noise if result.effect else 0.0
    planned = [x for x in result.layers if x.effect is not None]
    breaking = [x for x in planned if x.overflows or (x.effect and is_masked(x.effect, noise))]
    sets: list[Sequence[str]] = []
    if breaking:
        sets.append(with_overflow_groups(compared.pair, breaking, result))
    size = _SHOWN[-1] * _GROWS
    while size <= len(names) / 2:
        sets.append(names[: round(size)])
        size *= _GROWS
    return sets


def _shrunk(names: Sequence[str], restored: Restored) -> tuple[str, ...]:
    """`names` without those that are not needed to give back most: halves, then smaller parts, the
    last ones first. A few first ones of an order are as few as give that back already."""
    left, size = list(names), len(names) // 2
    while size >= 1 and len(names) > MOST_LEADERS:
        for start in reversed(range(0, len(left), size)):
            rest = left[:start] + left[start + size :]
            if rest and restored(rest) >= HOLDS:
                left = rest
        size //= 2
    return tuple(left)


def _ranked(layers: Sequence[LayerResult], names: Sequence[str]) -> tuple[LayerResult, ...]:
    """The layers in the order of `names`, those without an effect behind."""
    place = {name: k for k, name in enumerate(names)}
    ranked = sorted(layers, key=lambda x: place.get(x.name, len(names)))
    return tuple(replace(x, rank=k) for k, x in enumerate(ranked, start=1))
