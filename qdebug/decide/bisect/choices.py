"""Which layers a search may pin: to what, at what cost, and how much noise each makes alone."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from qdebug.analyse.effect.effects import noise_alone, own_errors
from qdebug.analyse.layer_results import layer_results
from qdebug.analyse.tensor_errors import affordable_samples, compare_pair
from qdebug.backends.registry import spec_of
from qdebug.config.specs import PinSearchSpec
from qdebug.decide.search.problem import Item, Pins, PinTo, SearchProblem
from qdebug.errors import UsageError
from qdebug.execute.context import Context
from qdebug.execute.engine.latency import profiled_costs, read_kernels
from qdebug.formats.registry import FORMAT_OF, RANGED, SCALED, WEIGHT_ONLY, may_raise
from qdebug.network.macs import macs_per_sample, work_of
from qdebug.network.prepare import Model
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.cost import Costs, mac_costs
from qdebug.plan.pair import ModelPair
from qdebug.plan.select import select_layers
from qdebug.results.compare import LayerResult
from qdebug.results.engine import KernelTime
from qdebug.results.recorded import is_run_file
from qdebug.run.timelimit import OutOfTimeError
from qdebug.types import Precision
from qdebug.wording import option


@dataclass(frozen=True)
class Ratings:
    """What is known of the layers of a network before a search.

    Attributes:
        layers: their own errors, by name.
        noise: Σerr²/Σref² of the outputs with each alone as planned, by name; of layers for which
            it is not known, their own.
    """

    layers: Mapping[str, LayerResult] = field(default_factory=dict)
    noise: Mapping[str, float] = field(default_factory=dict)


def rated(
    context: Context,
    pair: ModelPair,
    subset: SampleSubset,
    ends_at: float = math.inf,
) -> Ratings:
    """Rate the layers on some of the samples: their own errors, and where there is time until
    `ends_at`, on the clock of `time.monotonic`, what each does to the outputs.

    Raises:
        QdebugError: a model does not run.
    """
    limited = context.until(time.monotonic() + (ends_at - time.monotonic()) / 2)
    few = max(1, affordable_samples(macs_per_sample(pair.layers, subset)))
    wanted = min(len(subset.batches), max(1, few // subset.samples.batch_size))
    step = len(subset.batches) / wanted
    batches = tuple(subset.batches[int(i * step)] for i in range(wanted))
    some = SampleSubset(subset.samples, batches)
    layers = dict[str, LayerResult]()
    with suppress(OutOfTimeError):  # then sets are tried in the order of their cost
        found = compare_pair(limited, pair, some, None, local_samples=some.count)
        layers = {r.name: r for r in layer_results(pair, found.errors)}
    own = own_errors([*layers.values()])
    alone = {}
    if time.monotonic() < ends_at:
        until = context.until(min(context.ends_at, ends_at))
        with suppress(OutOfTimeError):
            alone = noise_alone(until, pair, subset)
    return Ratings(layers, {**own, **alone})


@dataclass(frozen=True)
class Space:
    """A problem, and what its costs are made of.

    Attributes:
        base: the precision of every layer with nothing pinned.
    """

    problem: SearchProblem
    costs: Costs
    base: Mapping[str, Precision]

    def everything(self) -> Pins:
        """Every item pinned as high as it may be."""
        return self.problem.always | {(i.name, i.highest) for i in self.problem.items}

    def total(self, pins: Pins) -> float:
        """The cost of the whole network with these pins."""
        return self.costs.total({**self.base, **dict(pins)})


def space_of(
    how: PinSearchSpec, pair: ModelPair, costs: Costs, noise: Mapping[str, float]
) -> Space:
    """What the settings allow to be pinned.

    Raises:
        PlanError: a layer to pin, or never to pin, does not exist.
        UsageError: they contradict each other or leave nothing to pin.
    """
    base, pin_to = pair.precisions, _pin_to(how)
    if pin_to is None:
        pin_to = PinTo.FP32 if SCALED.isdisjoint(base.values()) else PinTo.AUTO
    highest, wanted = pin_to.precision or Precision.FP32, raised_to(how)
    if pin_to.precision is not None:
        wanted = (highest,)
    pinned, never = (
        [x.name for x in select_layers(getattr(how, setting), pair.model, pair.layers, setting)]
        for setting in ("pin", "never_pin")
    )
    always = {name: highest for name in pinned if may_raise(base[name], highest)}
    if both := [name for name in always if name in never]:
        raise UsageError(
            f"layer '{both[0]}' is in {option('pin')} and in {option('never_pin')}",
            "Remove it from one of them.",
            code="QD-USAGE-PIN-CONFLICT",
        )
    items = tuple(
        Item(name, raising, noise.get(name, 0.0))
        for name, start in base.items()
        if name not in never and name not in always
        if (
            raising := {
                p: max(0.0, costs.raising(name, start, p)) for p in wanted if may_raise(start, p)
            }
        )
    )
    if not items and not always:
        why = f"{option('never_pin')} names all of them" if never else _no_way_up(base, highest)
        raise UsageError(
            f"no layer can be kept in higher precision: {why}",
            f"Allow some, or give another {option('precision')} or {option('pin_to')}.",
            code="QD-USAGE-NOTHING-TO-PIN",
        )
    return Space(SearchProblem(items, frozenset(always.items()), pin_to), costs, base)


def _no_way_up(base: Mapping[str, Precision], highest: Precision) -> str:
    """Why no layer may be raised to a precision."""
    shown, alone = highest.upper(), not WEIGHT_ONLY.isdisjoint(base.values())
    if highest in WEIGHT_ONLY and not alone:
        return f"{shown} quantizes weights alone, and only layers in W4 are raised to it"
    if highest in RANGED and alone:
        return f"layers whose weights alone are quantized have no ranges, which {shown} needs"
    return f"all of them run in {shown}, or in more bits, already"


def _pin_to(how: PinSearchSpec) -> PinTo | None:
    """Where layers may be pinned to: auto means what the backend has.

    Raises:
        UsageError: it has no such kernels.
    """
    spec, wanted = spec_of(how.backend), PinTo(how.pin_to) if how.pin_to else None
    if wanted in (None, PinTo.AUTO) and Precision.FP16 not in spec.precisions_on(how.provider):
        return PinTo.FP32
    if wanted is not None and wanted.precision is not None:
        spec.check_precisions([wanted.precision], how.provider)
    return wanted


def raised_to(how: PinSearchSpec) -> tuple[Precision, ...]:
    """The precisions that layers may be raised to.

    Raises:
        UsageError: the backend has no such kernels.
    """
    pin_to = _pin_to(how)
    if pin_to is PinTo.LADDER:
        present = spec_of(how.backend).precisions_on(how.provider)
        return tuple(p for p in FORMAT_OF if p in present)
    if pin_to is None or pin_to.precision is None:
        return Precision.FP16, Precision.FP32
    return (pin_to.precision,)


def profiled(how: PinSearchSpec, model: Model) -> tuple[KernelTime, ...] | None:
    """The kernels of the profile that was given, read before anything is run; None without one.

    Raises:
        UsageError: only what its layers are is given.
        QdebugError: it cannot be read, or does not belong to the model.
    """
    if how.profile is not None:
        return read_kernels(how.profile, how.profile_layers, model.file)
    if how.profile_layers is not None:
        raise UsageError(
            f"{option('profile_layers')} is given without {option('profile')}",
            "Give both.",
            code="QD-USAGE-PROFILE",
        )
    return None


def costs_of(
    how: PinSearchSpec, pair: ModelPair, samples: Samples, kernels: Sequence[KernelTime] | None
) -> Costs:
    """What layers cost: by the kernels that were profiled, else by their multiply-accumulates."""
    first = next(samples.batches())
    feeds = samples.feeds(first.start, 1 if samples.batch_is_free else first.count)
    work = mac_costs(work_of(pair.layers, {name: a.shape for name, a in feeds.items()}))
    if how.profile is None or kernels is None:
        return work
    return profiled_costs(kernels, how.profile, pair, work)


def untimed_notes(how: PinSearchSpec, space: Space) -> tuple[str, ...]:
    """A note that layers are missing from the profile, so that the search counts them as free."""
    free = [item.name for item in space.problem.items if not any(item.costs.values())]
    if space.costs.unit != "ms" or not free:
        return ()
    unexplained = how.profile and not how.profile_layers and not is_run_file(how.profile)
    hint = f" {option('profile_layers')} says which layers its kernels contain."
    return (
        f"The profile has no time for {len(free)} of the {len(space.problem.items)} layers that "
        f"may be pinned, first '{free[0]}': they count as free.{hint if unexplained else ''}",
    )
