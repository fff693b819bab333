"""What a search may pin: which layers, to what, at what cost, and how suspect each is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qdebug.config.bisect import BisectSettings
from qdebug.errors import UsageError
from qdebug.measure.engine import KernelTime
from qdebug.measure.result import LayerResult
from qdebug.model.macs import work_of
from qdebug.model.samples import Samples
from qdebug.pipeline.engine.latency import profiled_costs
from qdebug.pipeline.engine.run_profile import is_run_file
from qdebug.plan.pair import ModelPair
from qdebug.plan.select import select_layers
from qdebug.run.registry import spec_of
from qdebug.search.cost import Costs, mac_costs
from qdebug.search.problem import Item, Pins, PinTo, Problem, pins_of
from qdebug.search.strategies.exhaustive import MOST
from qdebug.types import Precision

ORDER = (Precision.INT8, Precision.FP16, Precision.FP32)
"""From the lowest to the highest."""


@dataclass(frozen=True)
class Space:
    """A problem, and what its costs are made of."""

    problem: Problem
    costs: Costs
    base: Mapping[str, Precision]

    def everything(self) -> Pins:
        """Every item pinned as high as it may be."""
        raised = {i.name: max(i.costs, key=ORDER.index) for i in self.problem.items}
        return self.problem.always | pins_of(raised)

    def total(self, pins: Pins) -> float:
        """The cost of the whole network with these pins."""
        return self.costs.total({**self.base, **dict(pins)})


def search_space(
    settings: BisectSettings,
    pair: ModelPair,
    samples: Samples,
    rated: Mapping[str, LayerResult],
    kernels: Sequence[KernelTime] | None,
) -> Space:
    """What the settings allow to pin.

    Args:
        kernels: of the engine that --profile measured.

    Raises:
        PlanError: --pin or --never-pin names no layer.
        UsageError: they contradict each other, or leave nothing to pin.
    """
    pin_to = _pin_to(settings, pair)
    base = pair.precisions
    demanded = _demanded(settings, pair, pin_to)
    never = _named(settings.never_pin, pair, "never_pin")
    both = [name for name in demanded if name in never]
    if both:
        raise UsageError(
            f"layer '{both[0]}' is in --pin and in --never-pin", "Remove it from one of them."
        )
    costs = _costs(settings, pair, samples, kernels)
    items = []
    for layer in pair.layers:
        levels = _levels(base[layer.name], pin_to)
        if levels and layer.name not in never and layer.name not in demanded:
            raising = {p: costs.raising(layer.name, base[layer.name], p) for p in levels}
            items.append(Item(layer.name, raising, _noise(rated.get(layer.name))))
    if not items and not demanded:
        raise UsageError(
            "there is no layer to pin: "
            + ("--never-pin names all of them" if never else f"none runs below {pin_to}"),
            "Allow some, or give another --precision or --pin-to.",
        )
    if settings.strategy == "exhaustive" and len(items) > MOST:
        raise UsageError(
            f"--strategy exhaustive tries every set: of {len(items)} layers that is too many",
            f"It takes at most {MOST}. Use auto, or rule layers out with --never-pin.",
        )
    problem = Problem(tuple(items), pins_of(demanded), pin_to)
    return Space(problem, costs, base)


def priced(space: Space, costs: Costs) -> Space:
    """`space` with other costs."""
    items = tuple(
        replace(
            item,
            costs={
                p: max(0.0, costs.raising(item.name, space.base[item.name], p)) for p in item.costs
            },
        )
        for item in space.problem.items
    )
    return Space(replace(space.problem, items=tuple(items)), costs, space.base)


def untimed_note(settings: BisectSettings, space: Space) -> tuple[str, ...]:
    """That layers are not in the profile, so that the search takes them as free; often empty."""
    items = space.problem.items
    free = [item.name for item in items if not any(item.costs.values())]
    if space.costs.unit != "ms" or not free:
        return ()
    profile = settings.profile
    unexplained = profile and not settings.profile_layers and not is_run_file(Path(profile))
    hint = " --profile-layers tells what its kernels hold." if unexplained else ""
    return (
        f"The profile has no time of {len(free)} of the {len(items)} layers that may be pinned, "
        f"first '{free[0]}': they count as free.{hint}",
    )


def _costs(
    settings: BisectSettings,
    pair: ModelPair,
    samples: Samples,
    kernels: Sequence[KernelTime] | None,
) -> Costs:
    first = next(samples.batches())
    feeds = samples.feeds(first.start, 1 if samples.batch_is_free else first.count)
    work = mac_costs(work_of(pair.layers, {name: a.shape for name, a in feeds.items()}))
    if settings.profile is None or kernels is None:
        return work
    return profiled_costs(kernels, settings.profile, pair, work)


def _pin_to(settings: BisectSettings, pair: ModelPair) -> PinTo:
    if settings.pin_to is not None:
        return PinTo(settings.pin_to)
    if Precision.FP16 not in spec_of(settings.backend).precisions:
        return PinTo(Precision.FP32)
    has_int8 = Precision.INT8 in pair.precisions.values()
    return PinTo.AUTO if has_int8 else PinTo.FP32


def _levels(start: Precision, pin_to: PinTo) -> Sequence[Precision]:
    """What a layer may be raised to."""
    above = ORDER[ORDER.index(start) + 1 :]
    if pin_to is PinTo.AUTO:
        return above
    return [p for p in above if p == Precision(pin_to)]


def _demanded(settings: BisectSettings, pair: ModelPair, pin_to: PinTo) -> dict[str, Precision]:
    """Layers of --pin with the highest precision that is allowed."""
    highest = Precision.FP32 if pin_to is PinTo.AUTO else Precision(pin_to)
    return {
        name: highest
        for name in _named(settings.pin, pair, "pin")
        if ORDER.index(pair.precisions[name]) < ORDER.index(highest)
    }


def _named(wanted: Sequence[str], pair: ModelPair, setting: str) -> list[str]:
    return [x.name for x in select_layers(wanted, pair.model, pair.layers, setting)]


def _noise(result: LayerResult | None) -> float:
    """A layer's own Σerr²/Σref²: 0 where it is not known."""
    if result is None or result.local_sqnr_db is None:
        return 0.0
    if math.isnan(result.local_sqnr_db):
        return 1.0 if result.readers_sqnr_db is None else 10 ** (-result.readers_sqnr_db / 10)
    return 10 ** (-result.local_sqnr_db / 10)
