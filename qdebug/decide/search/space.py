"""What a search may pin: which layers, to what, at what cost, and how suspect each is."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from qdebug.decide.search.problem import ROUGH_STD, Item, Pins, PinTo, SearchProblem, pins_of
from qdebug.errors import UsageError
from qdebug.formats.registry import FORMAT_OF, RANGED, SCALED, WEIGHT_ONLY, may_raise, order_of
from qdebug.plan.cost import Costs
from qdebug.results.compare import LayerResult
from qdebug.types import Precision
from qdebug.wording import option


@dataclass(frozen=True)
class SearchSpace:
    """A problem, and what its costs are made of.

    Attributes:
        base: the precision of every layer with nothing pinned.
        never_pinned: the layers that the user excluded.
    """

    problem: SearchProblem
    costs: Costs
    base: Mapping[str, Precision]
    never_pinned: tuple[str, ...] = ()

    def everything(self) -> Pins:
        """Every item pinned as high as it may be."""
        raised = {i.name: max(i.costs, key=order_of) for i in self.problem.items}
        return self.problem.always | pins_of(raised)

    def total(self, pins: Pins) -> float:
        """The cost of the whole network with these pins."""
        return self.costs.total({**self.base, **dict(pins)})

    def priced(self, costs: Costs) -> SearchSpace:
        """The same space with other costs."""
        items = tuple(
            replace(
                i, costs={p: max(0.0, costs.raising(i.name, self.base[i.name], p)) for p in i.costs}
            )
            for i in self.problem.items
        )
        return replace(self, problem=replace(self.problem, items=items), costs=costs)


def search_space(
    base: Mapping[str, Precision],
    costs: Costs,
    noise: Mapping[str, float],
    *,
    noise_std: Mapping[str, float] | None = None,
    raised_noise: Mapping[Precision, Mapping[str, float]] | None = None,
    pin_to: PinTo | None = None,
    among: Collection[Precision] = tuple(FORMAT_OF),
    block_of: Mapping[str, str] | None = None,
    pin: Sequence[str] = (),
    never_pin: Sequence[str] = (),
) -> SearchSpace:
    """The layers that may be pinned.

    Args:
        base: the precision of every layer, in execution order.
        noise, noise_std: by layer, an estimate of what it adds to the output's noise; see Item.
            What has no noise_std is estimated roughly.
        raised_noise: the same as `noise` by precision that layers may be raised to; see Item.
        pin_to: the precision to pin to; None takes AUTO, and FP32 where no layer is quantized.
        among: the precisions of the ladder.
        block_of: the name of the block that a layer is part of, for those that are in one.
        pin: names of layers that are always pinned, to the highest precision allowed.
        never_pin: names of layers that never are.

    Raises:
        UsageError: `pin` and `never_pin` contradict each other, or leave nothing to pin.
    """
    if pin_to is None:
        pin_to = PinTo.FP32 if SCALED.isdisjoint(base.values()) else PinTo.AUTO
    highest = pin_to.precision or Precision.FP32
    always = {name: highest for name in pin if may_raise(base[name], highest)}
    wanted: Collection[Precision] = (highest,)
    if pin_to is PinTo.AUTO:
        wanted = (Precision.FP16, Precision.FP32)
    elif pin_to is PinTo.LADDER:
        wanted = [p for p in FORMAT_OF if p in among]
    both = [name for name in always if name in never_pin]
    if both:
        raise UsageError(
            f"layer '{both[0]}' is in {option('pin')} and in {option('never_pin')}",
            "Remove it from one of them.",
            code="QD-USAGE-PIN-CONFLICT",
        )
    items = []
    for name, start in base.items():
        levels = [p for p in wanted if may_raise(start, p)]
        if levels and name not in never_pin and name not in always:
            raising = {p: max(0.0, costs.raising(name, start, p)) for p in levels}
            std = (noise_std or {}).get(name, ROUGH_STD)
            measured = (raised_noise or {}).items()
            known = {p: n[name] for p, n in measured if p in raising and name in n}
            block = (block_of or {}).get(name, "")
            items.append(Item(name, raising, noise.get(name, 0.0), std, known, block))
    if not items and not always:
        why = f"{option('never_pin')} names all of them" if never_pin else _no_way_up(base, highest)
        raise UsageError(
            f"no layer can be kept in higher precision: {why}",
            f"Allow some, or give another {option('precision')} or {option('pin_to')}.",
            code="QD-USAGE-NOTHING-TO-PIN",
        )
    problem = SearchProblem(tuple(items), pins_of(always), pin_to)
    return SearchSpace(problem, costs, base, tuple(never_pin))


def _no_way_up(base: Mapping[str, Precision], highest: Precision) -> str:
    """Why no layer may be raised to a precision."""
    shown, alone = highest.upper(), not WEIGHT_ONLY.isdisjoint(base.values())
    if highest in WEIGHT_ONLY and not alone:
        return f"{shown} quantizes weights alone, and only layers in W4 are raised to it"
    if highest in RANGED and alone:
        return f"layers whose weights alone are quantized have no ranges, which {shown} needs"
    return f"all of them run in {shown}, or in more bits, already"


def local_noise(rated: Mapping[str, LayerResult]) -> dict[str, float]:
    """The layers' own Σerr²/Σref², by name; without those where it is not known."""
    return {name: _own_noise(r) for name, r in rated.items() if r.local_sqnr_db is not None}


def _own_noise(result: LayerResult) -> float:
    assert result.local_sqnr_db is not None
    if math.isnan(result.local_sqnr_db):
        return 1.0 if result.readers_sqnr_db is None else 10 ** (-result.readers_sqnr_db / 10)
    return 10 ** (-result.local_sqnr_db / 10)
