"""In which order the layers come, and which few of them to keep in FP32: by what the first of an
order give back together.

What a layer costs by itself does not tell what several cost together: errors offset each other, and
one masks another. So two orders are tried by the curve of what their first layers give back: that
by effect, and one of what layers give back together (stepwise selection, backward and forward;
Efroymson, Mathematical Methods for Digital Computers, 1960). Backward finds layers that each ruin
the outputs by themselves, forward does not follow errors that offset each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from qdebug.analyse.compared import Choice, Compared
from qdebug.analyse.effect.effects import CURVE_RUNS
from qdebug.analyse.effect.sets import Sets, Yardstick
from qdebug.results.compare import LayerResult
from qdebug.results.curve import Curve, CurvePoint, Order
from qdebug.results.summary import HALF, MOST_LEADERS, are_few

_SIZES = (1, 2, 3, 5, 8, 13)
"""So many first layers draw a curve."""
_DECIDING = (1, 3, 5, 13)
"""So many tell how fast it rises."""
_GROWS = 1.6
"""Where they give back less than half, sets grow by this factor, up to half of all layers."""
_FASTER = 0.05
"""An order must give back so much more than that by effect, on average over the deciding points, to
be taken in its place."""
_WITHIN = 0.1
"""A set is as good as the best where it gives back at most so much less of what was lost."""


def curved(compared: Compared) -> Compared:
    """With its layers in the order whose first ones give back most, and the few to keep in FP32:
    the smallest set of few layers that is as good as the best of the curve.

    Raises:
        QdebugError: samples cannot be read, or a model does not run.
    """
    result, sets = compared.result, compared.sets
    by_effect = [x.name for x in result.layers if x.effect is not None]
    if sets is None or len(by_effect) < 2 or result.is_as_good_as_fp32:
        return compared
    yardstick = Yardstick.of(sets)
    if yardstick is None:
        return compared
    sets.most = len(sets.known) + CURVE_RUNS
    order, names = Order.EFFECT, by_effect
    points = _points(names, sets, yardstick)
    rises = {str(order): _rise(points)}
    if rises[order] < 1 - _FASTER:
        others = _together([x for x in result.layers if x.effect is not None], sets, yardstick)
        curves = [_points(x, sets, yardstick) for x in others]
        together, rise = max(zip(others, curves, strict=True), key=lambda x: _rise(x[1]))
        rises[str(Order.TOGETHER)] = _rise(rise)
        if rises[Order.TOGETHER] > rises[Order.EFFECT] + _FASTER:
            order, names, points = Order.TOGETHER, together, rise
    if not points:
        return compared
    few = [p for p in points if are_few(p.layers, len(names), p.restored)] or points[:1]
    chosen = _smallest(few)
    curve = Curve(
        order=order,
        figure=yardstick.figure,
        samples=sets.samples,
        planned=yardstick.shown(yardstick.figure_of(yardstick.planned)),
        reference=yardstick.shown(yardstick.figure_of(yardstick.reference)),
        points=points,
        rises=rises,
        names=tuple(names[: points[-1].layers]),
    )
    shown = names[: max((p.layers for p in points if p.rises), default=0)]
    ranked = [*shown, *(n for n in by_effect if n not in shown)]
    compared = compared.found(layers=_ranked(result.layers, ranked), curve=curve)
    return replace(compared, choice=Choice(tuple(names[: chosen.layers]), chosen.restored))


def _points(names: Sequence[str], sets: Sets, yardstick: Yardstick) -> tuple[CurvePoint, ...]:
    """The curve of an order, as far as its sets could be run."""
    due, points = [k for k in _SIZES if k <= len(names)], list[CurvePoint]()
    while due:
        for size, outcome in zip(due, sets([names[:k] for k in due]), strict=True):
            before = max((p.restored for p in points), default=0.0)
            if point := yardstick.point(size, outcome, before):
                points.append(point)
        most = max((p.restored for p in points), default=1.0)
        grown = round(due[-1] * _GROWS)
        due = [grown] if most < HALF and _SIZES[-1] < grown <= len(names) / 2 else []
    return tuple(points)


def _rise(points: Sequence[CurvePoint]) -> float:
    """How fast a curve rises: the mean part restored at the deciding points."""
    parts = [min(1.0, max(0.0, p.restored)) for p in points if p.layers in _DECIDING]
    return sum(parts) / len(parts) if parts else 0.0


def _together(layers: Sequence[LayerResult], sets: Sets, yardstick: Yardstick) -> list[list[str]]:
    """Orders in which layers help together.

    Backward: those with the most noise alone, by what is lost again when only this one of them is
    as planned. Forward: each the one that gives back most with those before, of those that lead
    backward, by what they give back by themselves, and by their noise alone.
    """

    def restored(*names: str) -> float:
        part = yardstick.restored(sets([names])[0])
        return -math.inf if math.isnan(part) else part

    names = [x.name for x in layers]
    noise = {x.name: (x.effect.alone or 0.0) if x.effect else 0.0 for x in layers}
    noisy = sorted(names, key=lambda n: -noise[n])
    first = noisy[: _SIZES[-1]]
    without = {name: [n for n in first if n != name] for name in first}
    sets([*without.values()])
    backward = sorted(first, key=lambda n: restored(*without[n]))
    single = [n for n in names if frozenset([n]) in sets.known]
    leads = [backward, sorted(single, key=lambda n: -restored(n)), noisy]
    forward: list[str] = []
    while len(forward) < min(MOST_LEADERS, len(names) - 1):
        rests = [[n for n in lead if n not in forward] for lead in leads]
        nexts = list(dict.fromkeys(rest[0] for rest in rests if rest))
        sets([(*forward, n) for n in nexts])
        forward.append(max(nexts, key=lambda n: restored(*forward, n)))
    return [[*x, *(n for n in noisy if n not in x)] for x in (backward, forward)]


def _smallest(points: Sequence[CurvePoint]) -> CurvePoint:
    """The smallest set that is as good as the best of the curve."""
    best = max(p.restored for p in points)
    return next(p for p in points if p.restored >= best - _WITHIN)


def _ranked(layers: Sequence[LayerResult], names: Sequence[str]) -> tuple[LayerResult, ...]:
    """The layers in the order of `names`, those without an effect behind."""
    place = {name: k for k, name in enumerate(names)}
    ranked = sorted(layers, key=lambda x: place.get(x.name, len(names)))
    return tuple(replace(x, rank=k) for k, x in enumerate(ranked, start=1))
