"""Everything that `qdebug bisect` has ready before it searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qdebug.config.bisect import BisectSettings
from qdebug.config.engine import check_engine_flags
from qdebug.errors import UsageError, given_by
from qdebug.measure.engine import KernelTime
from qdebug.measure.result import LayerResult
from qdebug.measure.task import labels_of
from qdebug.model.prepare import Model
from qdebug.model.samples import Samples, open_samples
from qdebug.model.samples.subset import SampleSubset, split, whole
from qdebug.pipeline.bisect.space import Space, search_space
from qdebug.pipeline.bisect.suspects import rate_layers
from qdebug.pipeline.bisect.target import Target, read_target
from qdebug.pipeline.context import Context, simulation_context
from qdebug.pipeline.engine.build import check_parsed, open_runtime
from qdebug.pipeline.engine.latency import read_kernels
from qdebug.pipeline.model_pair import Planned, load_model, plan_from, plan_ranges
from qdebug.plan.pair import ModelPair, planned_pair
from qdebug.run.engine import EngineRuntime
from qdebug.run.sizing import parallelism
from qdebug.types import Fp16Kernels, Precision, ProgressCallback


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
    """

    settings: BisectSettings
    context: Context
    target: Target
    model: Model
    planned: Planned
    pair: ModelPair
    searched: SampleSubset
    held_out: SampleSubset
    rated: Mapping[str, LayerResult]
    space: Space
    engine: EngineRuntime | None


def prepare(settings: BisectSettings, progress: ProgressCallback) -> Setup:
    """Read everything, calibrate, and rate the layers.

    Raises:
        QdebugError: bad input, or a runtime that failed.
    """
    check_engine_flags(settings)
    target = read_target(settings)
    engine = open_runtime(settings, cached=settings.cache, progress=progress)
    plan = plan_from(settings)
    if plan.precision is Precision.FP32:
        raise UsageError(
            "--precision: in FP32 there is nothing to pin", "Give --precision int8 or fp16."
        )
    model = load_model(settings.model, plan)
    if model.quantized:
        raise UsageError(
            f"{settings.model} carries Q/DQ nodes: its layers cannot be unpinned",
            "Give the FP32 model that it was made from, and its ranges with --calibration.",
        )
    kernels = _profiled(settings, model)
    searched, held_out = _portions(settings, model)
    for subset in (searched, held_out):
        if target.metric is not None and target.metric.needs_labels:
            labels_of(subset.samples.extras)
    parallel = parallelism()
    context = simulation_context(
        parallel, progress, settings.batch_size, Fp16Kernels(settings.fp16_kernels)
    )
    planned = plan_ranges(settings, context, plan, model, searched)
    pair = planned_pair(model, planned.bound)
    if engine is not None:
        check_parsed(engine, pair, searched.samples)
    rated = rate_layers(context, pair, searched)
    return Setup(
        settings=settings,
        context=context,
        target=target,
        model=model,
        planned=planned,
        pair=pair,
        searched=searched,
        held_out=held_out,
        rated=rated,
        space=search_space(settings, pair, searched.samples, rated, kernels),
        engine=engine,
    )


def _profiled(settings: BisectSettings, model: Model) -> tuple[KernelTime, ...] | None:
    """The kernels that --profile measured, read before anything is run; None without one."""
    if settings.profile is not None:
        return read_kernels(Path(settings.profile), settings.profile_layers, model.file)
    if settings.profile_layers is not None:
        raise UsageError("--profile-layers is given without --profile", "Give both.")
    return None


def _portions(settings: BisectSettings, model: Model) -> tuple[SampleSubset, SampleSubset]:
    """The samples to search on, and those held out."""

    def opened(setting: str, data: str, limit: int | None = None) -> Samples:
        inputs, batch_size = model.graph.inputs, settings.batch_size
        with given_by(setting):
            return open_samples(data, inputs, limit=limit, batch_size=batch_size)

    samples = opened("inputs", settings.inputs, settings.samples)
    if settings.holdout is None:
        return split(samples, settings.holdout_share)
    held_out = opened("holdout", settings.holdout)
    if held_out.digest == samples.digest:
        raise UsageError(
            f"--holdout: {settings.holdout} holds the same samples as --inputs",
            "Leave it out: then a share of --inputs is held out.",
        )
    return whole(samples), whole(held_out)
