"""Everything that `qdebug bisect` has ready before it searches."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property

from qdebug.analyse.effect.effects import Rating, noise_alone
from qdebug.analyse.gate import check_every_group, check_metric, on_model, refuse_without_arrays
from qdebug.analyse.layer_results import layer_results
from qdebug.analyse.objects import check_objects
from qdebug.backends.engine import EngineRuntime
from qdebug.backends.ort_fast.session import CandidateSessions
from qdebug.backends.registry import spec_of
from qdebug.backends.sizing import parallelism
from qdebug.config.bisect import BisectSettings
from qdebug.config.engine import EngineSettings, check_engine_flags, engine_settings_of
from qdebug.config.specs import PinSearchSpec
from qdebug.decide.bisect.candidates import sessions_of
from qdebug.decide.bisect.durations import checks_after_rating
from qdebug.decide.bisect.grain import Coarse, coarse, told
from qdebug.decide.bisect.target import AccuracyTarget, read_target
from qdebug.decide.search.problem import MEASURED_STD, PinTo
from qdebug.decide.search.space import SearchSpace, local_noise, search_space
from qdebug.decide.search.strategies.exhaustive import check_count
from qdebug.errors import UsageError
from qdebug.execute.cluster.machines import open_executor
from qdebug.execute.context import Context, emulates_fp16, session_settings, simulation_context
from qdebug.execute.engine.build import check_parsed, check_requested, open_runtime
from qdebug.execute.engine.latency import profiled_costs, read_kernels
from qdebug.execute.lockstep import Due, Measured, affordable_samples, run_within
from qdebug.execute.model_pair import (
    CalibratedPlan,
    check_not_quantized,
    load_model,
    plan_from,
    plan_ranges,
    share_pair,
)
from qdebug.formats.registry import FORMAT_OF, may_raise
from qdebug.network.blocks import transformer_blocks
from qdebug.network.macs import macs_per_sample, work_of
from qdebug.network.prepare import Model
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import SampleSubset, open_subsets
from qdebug.network.samplespec import given_specs
from qdebug.plan.cost import Costs, mac_costs
from qdebug.plan.lower import required_opset
from qdebug.plan.pair import ModelPair, planned_pair
from qdebug.plan.select import select_layers
from qdebug.results.compare import LayerResult
from qdebug.results.engine import KernelTime
from qdebug.results.recorded import is_run_file
from qdebug.run.executor import THIS_PROCESS, Executor
from qdebug.types import Fp16Kernels, Precision, ProgressCallback
from qdebug.wording import counted, option

_FOR_RATING = 1 / 3
"""Of the time that is left, for the layers' own errors, and of what is left then for rating them at
the outputs: the search needs the rest."""


@dataclass(frozen=True)
class Setup:
    """What a search starts from.

    Attributes:
        planned: the base plan with all its ranges.
        pair: the reference, and the model with nothing pinned.
        searched, held_out: the samples to search on, and those to verify the answer on.
        rated: the layers, worst first, with their own errors and causes.
        space: what may be pinned.
        engine: what the answer is built with; None for the simulation alone.
        rating_s: seconds that `rated` took.
        interval_s: seconds that the interval of FP32's metric may take.
        engine_settings: how workers of a cluster open the same.
        notes: what the user must know of how the layers were rated.
        coarse: where that is known before anything is run.
    """

    context: Context
    target: AccuracyTarget
    model: Model
    planned: CalibratedPlan
    pair: ModelPair
    searched: SampleSubset
    held_out: SampleSubset
    rated: Mapping[str, LayerResult]
    space: SearchSpace
    engine: EngineRuntime | None
    rating_s: float = 0.0
    interval_s: float = math.inf
    engine_settings: EngineSettings | None = None
    notes: tuple[str, ...] = ()
    coarse: Coarse | None = None

    @cached_property
    def sessions(self) -> CandidateSessions | None:
        """What opens candidates, on whatever samples: weights are quantized once for all."""
        return sessions_of(self.context, self.planned.bound)


@dataclass(frozen=True)
class Ratings:
    """What is known of the layers of a network before a search.

    Attributes:
        layers: their own errors, by name.
        effect: the outputs' noise Σerr²/Σref² with each alone as planned, by name.
        measured: the layers whose effect was measured by itself, and not in a group.
        took_s: seconds that the layers' own errors took.
        notes: what the user must know of it.
        raised: as `effect`, with each alone in another precision, by that.
    """

    layers: Mapping[str, LayerResult]
    effect: Mapping[str, float]
    measured: frozenset[str] = frozenset()
    took_s: float = 0.0
    notes: tuple[str, ...] = ()
    raised: Mapping[Precision, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, layers: Mapping[str, LayerResult], rating: Rating | None, took_s: float) -> Ratings:
        """From what was measured; `rating` is None where there was no time for it."""
        effect = rating.noise(local_noise(layers)) if rating else {}
        measured = frozenset(rating.alone) if rating else frozenset[str]()
        return cls(layers, effect, measured, took_s, _rating_notes(rating))

    def of_changed_network(self) -> Ratings:
        """Of a network with the same layers in which something was changed: no more than where a
        search may start from."""
        return Ratings({}, {**local_noise(self.layers), **self.effect}, raised=self.raised)


@dataclass(frozen=True)
class Start:
    """What has been read and calibrated before the layers are rated.

    Attributes:
        planned, searched, held_out, engine, engine_settings, coarse: see Setup.
        kernels: of the engine that was profiled; None where costs are not times.
    """

    context: Context
    target: AccuracyTarget
    model: Model
    planned: CalibratedPlan
    searched: SampleSubset
    held_out: SampleSubset
    engine: EngineRuntime | None = None
    kernels: Sequence[KernelTime] | None = None
    engine_settings: EngineSettings | None = None
    coarse: Coarse | None = None


def prepare(
    settings: BisectSettings, progress: ProgressCallback, stack: ExitStack | None = None
) -> Setup:
    """Read everything, calibrate, and rate the layers; `stack` releases the workers of a cluster,
    without it there are none.

    Raises:
        UsageError: the precision is FP32, in which there is nothing to pin.
        QdebugError: bad input, or a runtime that failed.
        OutOfTimeError: the time is over before the ranges are calibrated.
    """
    ends_at = time.monotonic() + (settings.time_limit or math.inf)
    check_engine_flags(settings)
    target = read_target(settings.asked)
    sessions = session_settings(settings)
    engine = open_runtime(settings, cached=settings.cache, sessions=sessions, progress=progress)
    plan = plan_from(settings.quantization)
    target_gpus = engine.target if engine else ""
    check_requested(settings.backend, plan, settings.provider, target_gpus)
    if plan.precision is Precision.FP32:
        raise UsageError(
            f"{option('precision')}: in FP32 no layer can be kept in higher precision",
            f"Give {option('precision', 'int8')} or {option('precision', 'fp16')}.",
            code="QD-USAGE-NOTHING-TO-PIN",
        )
    sources = (*settings.quantization.samples, *given_specs(settings.held_out))
    raised = raised_to(settings.search)
    model = load_model(settings.model, plan, sources, sessions, progress, raised=raised)
    check_not_quantized(
        model,
        "its precisions are fixed, so nothing can be searched",
        "Give the FP32 model that it was made from. (`qdebug repair` with "
        f"{option('reference', 'FP32.onnx')} starts from the ranges and the rounding of a "
        "quantized model, and pins layers, too.)",
    )
    kernels = _profiled(settings.search, model)
    searched, held_out = open_subsets(
        settings.compared,
        settings.held_out,
        sample_inputs(model.graph),
        setting="holdout",
        share=settings.holdout_share,
    )
    target = replace(target, metric=on_model(target.metric, model, settings.worst_group))
    for subset in (searched, held_out):
        check_metric(target.metric, model, subset.samples)
    check_every_group({"searched": searched, "held out": held_out})
    if target.of_outputs:
        refuse_without_arrays(model, "a set of layers")
    sets = (searched.count, "samples searched"), (held_out.count, "held-out samples")
    found = told(coarse(target, None, sets))
    executor: Executor = THIS_PROCESS
    if stack:
        executor = open_executor(stack, settings, gpus=spec_of(settings.backend).builds)
    executor.share_model(model, settings.model, required_opset(plan, raised))
    fp16_kernels = Fp16Kernels(settings.fp16_kernels)
    context = simulation_context(
        parallelism(), progress, sessions, settings.batch_size, fp16_kernels, executor
    )
    limited = replace(context, ends_at=ends_at)
    check_objects(limited, model.graph, searched, target.metric)
    planned = plan_ranges(settings.quantization, limited, plan, model, searched)
    own = engine_settings_of(settings) if engine else None
    start = Start(context, target, model, planned, searched, held_out, engine, kernels, own, found)
    return rated(settings.search, start, ends_at)


def rated(
    how: PinSearchSpec,
    start: Start,
    ends_at: float = math.inf,
    known: Ratings | None = None,
) -> Setup:
    """Rate the layers, and say which of them the settings allow to be pinned; with local errors
    alone where there is no time for more.

    Args:
        known: what is known of the layers; None to measure it.

    Raises:
        QdebugError: settings that do not fit the model, or a runtime that failed.
    """
    context, searched = start.context, start.searched
    bound = start.planned.bound
    pair = planned_pair(start.model, bound)
    share_pair(context.executor, pair, bound.corrections)
    if start.engine is not None:
        check_parsed(start.engine, pair, searched.samples)
    ratings = known or _ratings(how, start, pair, ends_at)
    return Setup(
        context=context,
        target=start.target,
        model=start.model,
        planned=start.planned,
        pair=pair,
        searched=searched,
        held_out=start.held_out,
        rated=ratings.layers,
        space=_space(how, pair, searched.samples, ratings, start.kernels),
        engine=start.engine,
        rating_s=ratings.took_s,
        engine_settings=start.engine_settings,
        notes=ratings.notes,
        coarse=start.coarse,
    )


def _ratings(how: PinSearchSpec, start: Start, pair: ModelPair, ends_at: float) -> Ratings:
    context, searched = start.context, start.searched
    began = time.monotonic()
    budget = how.memory_budget
    found = rate_layers(context, pair, searched, budget, _share_of(ends_at))
    took = time.monotonic() - began
    half = emulates_fp16(context, raised_to(how))
    held_out = start.held_out.count / searched.count
    until = _share_of(ends_at - checks_after_rating(took, emulated=half, held_out=held_out))
    rating = None
    if time.monotonic() + took < until:  # it takes no less than that, however few layers are rated
        rating = noise_alone(context, pair, searched, budget, until)
    ratings = Ratings.of(found, rating, took)
    if rating is None or _pin_to(how) is not PinTo.LADDER:
        return ratings
    raised: dict[Precision, dict[str, float]] = {}
    for precision in raised_to(how):
        if precision is not Precision.FP32:
            raised[precision] = _noise_in(precision, how, start, pair, until)
    return replace(ratings, raised=raised)


def _noise_in(
    precision: Precision, how: PinSearchSpec, start: Start, pair: ModelPair, ends_at: float
) -> dict[str, float]:
    """The outputs' noise with each layer alone in `precision`, where it may be raised to that, by
    name; of layers that were measured in groups nothing, since they divide by their local errors.
    """
    layers = {n: precision for n, p in pair.precisions.items() if may_raise(p, precision)}
    if not layers:
        return {}
    bound = start.planned.bound
    plan = replace(bound.plan, layers={**bound.plan.layers, **layers})
    others = planned_pair(
        start.model, replace(bound, plan=plan, precisions={**bound.precisions, **layers})
    )
    rating = noise_alone(start.context, others, start.searched, how.memory_budget, ends_at)
    return {n: x for n, x in rating.alone.items() if n in layers} if rating else {}


def _share_of(ends_at: float) -> float:
    now = time.monotonic()
    return now + _FOR_RATING * (ends_at - now)


def _rating_notes(rating: Rating | None) -> tuple[str, ...]:
    grouped = sum(map(len, rating.groups)) if rating else 0
    if rating is None or not grouped:
        return ()
    return (
        f"The search started from an estimate for {grouped} of {grouped + len(rating.alone)} "
        f"layers, which were rated in {counted(rating.groups, 'group')} of layers that follow each "
        "other, since one by one takes long on so large a model. Every set that it tried was "
        "measured.",
    )


def rate_layers(
    context: Context,
    pair: ModelPair,
    subset: SampleSubset,
    memory_budget: int,
    until: float = math.inf,
) -> dict[str, LayerResult]:
    """Local and cumulative errors of the layers, on some samples spread over the subset: where a
    search for culprits starts. `until`: see Context; then on fewer."""
    context = replace(context, until=until)
    rated = affordable_samples(macs_per_sample(pair.layers, subset))
    wanted = min(len(subset.batches), max(1, rated // subset.samples.batch_size))
    step = len(subset.batches) / wanted
    batches = tuple(subset.batches[int(i * step)] for i in range(wanted))
    few = SampleSubset(subset.samples, batches)
    measured = Measured(lambda few: Due.of(few, None), stage="rate layers")
    errors, _ = run_within(memory_budget, context, pair, few, measured)
    return {r.name: r for r in layer_results(pair, errors)}


def untimed_notes(space: SearchSpace, profile: str | None, layers: str | None) -> tuple[str, ...]:
    """A note that layers are missing from the profile, so that the search counts them as free;
    often empty.

    Args:
        profile, layers: the files of the profile, and of what its kernels hold.
    """
    items = space.problem.items
    free = [item.name for item in items if not any(item.costs.values())]
    if space.costs.unit != "ms" or not free:
        return ()
    unexplained = profile and not layers and not is_run_file(profile)
    hint = (
        f" {option('profile_layers')} says which layers its kernels contain." if unexplained else ""
    )
    return (
        f"The profile has no time for {len(free)} of the {len(items)} layers that may be pinned, "
        f"first '{free[0]}': they count as free.{hint}",
    )


def _space(
    how: PinSearchSpec,
    pair: ModelPair,
    samples: Samples,
    ratings: Ratings,
    kernels: Sequence[KernelTime] | None,
) -> SearchSpace:
    """What the settings allow to be pinned; `kernels` are of the engine that was profiled.

    Raises:
        PlanError: a layer to pin, or never to pin, does not exist.
        UsageError: they contradict each other or leave nothing to pin.
    """

    def named(setting: str) -> list[str]:
        wanted = getattr(how, setting)
        return [x.name for x in select_layers(wanted, pair.model, pair.layers, setting)]

    pin_to = _pin_to(how)
    space = search_space(
        pair.precisions,
        _costs(how.profile, pair, samples, kernels),
        {**local_noise(ratings.layers), **ratings.effect},
        noise_std=dict.fromkeys(ratings.measured, MEASURED_STD),
        raised_noise=ratings.raised,
        pin_to=pin_to,
        among=raised_to(how),
        block_of={
            layer: block.name
            for block in transformer_blocks(pair.model.graph, pair.layers)
            for layer in block.layers
        },
        pin=named("pin"),
        never_pin=named("never_pin"),
    )
    if how.strategy == "exhaustive":
        check_count(len(space.problem.items))
    return space


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


def _costs(
    profile: str | None, pair: ModelPair, samples: Samples, kernels: Sequence[KernelTime] | None
) -> Costs:
    first = next(samples.batches())
    feeds = samples.feeds(first.start, 1 if samples.batch_is_free else first.count)
    work = mac_costs(work_of(pair.layers, {name: a.shape for name, a in feeds.items()}))
    if profile is None or kernels is None:
        return work
    return profiled_costs(kernels, profile, pair, work)


def _profiled(how: PinSearchSpec, model: Model) -> tuple[KernelTime, ...] | None:
    """The kernels of the profile that was given, read before anything is run; None without one."""
    if how.profile is not None:
        return read_kernels(how.profile, how.profile_layers, model.file)
    if how.profile_layers is not None:
        raise UsageError(
            f"{option('profile_layers')} is given without {option('profile')}",
            "Give both.",
            code="QD-USAGE-PROFILE",
        )
    return None
