"""The answer of a search on real engines: built, audited, and run where there is a GPU."""

from __future__ import annotations

from qdebug.model.samples.subset import SampleSubset
from qdebug.pipeline.bisect.candidates import Engines
from qdebug.pipeline.bisect.setup import Setup
from qdebug.pipeline.bisect.space import Space, priced
from qdebug.pipeline.engine.build import Engine, Target, engine_of, save_engine, why_not_run
from qdebug.pipeline.engine.latency import costs_of, kernel_times
from qdebug.pipeline.engine.observe import for_samples
from qdebug.pipeline.engine.request import build_request, planned_graph
from qdebug.plan.pair import planned_pair
from qdebug.plan.plan import PrecisionPlan, bind_plan
from qdebug.run.base import Backend
from qdebug.run.tensorrt.backend import TensorRTBackend
from qdebug.run.tensorrt.execute.observe.ways import ways_from
from qdebug.run.tensorrt.execute.session import EngineSession
from qdebug.run.tensorrt.factory import EngineFactory


def engines_of(setup: Setup) -> Engines | None:
    """What runs candidates as engines on this machine's GPU; None where they are only built, or
    not asked for."""
    target = setup.engine
    if target is None or why_not_run(target):
        return None

    way = ways_from(setup.settings.capture)[0]

    def opened(subset: SampleSubset) -> Backend:
        return TensorRTBackend(_maker(setup, target, subset), way)

    return Engines(opened, lambda bound: planned_graph(target.typing, bound).proto)


def built_answer(setup: Setup, plan: PrecisionPlan) -> Engine | None:
    """The engine of the answer, audited, and saved where that was asked for; None without an
    engine's backend.

    Raises:
        QdebugError: it cannot be built, or not be written.
    """
    target = setup.engine
    if target is None:
        return None
    pair = planned_pair(setup.model, bind_plan(plan, setup.model, setup.pair.layers))
    samples, progress = setup.searched.samples, setup.context.progress
    engine = engine_of(target, pair, samples, progress, not_run=why_not_run(target))
    save_engine(engine, setup.settings)
    return engine


def in_milliseconds(setup: Setup, target: Target) -> Space:
    """The search space with costs measured on the engine of nothing pinned, layer by layer.

    Raises:
        QdebugError: the engine cannot be built or run.
    """
    samples = setup.searched.samples
    engine = engine_of(target, setup.pair, samples, setup.context.progress, not_run="")
    maker = _maker(setup, target, setup.searched)
    asked = build_request(target.typing, setup.pair)
    first = setup.searched.batches[0]
    with EngineSession(maker.make(asked.graph.proto).engine) as session:
        measured = session.layer_times(samples.feeds(first.start, first.count))
    kernels = kernel_times(engine.info, measured)
    costs = costs_of(kernels, setup.pair, setup.space.costs)
    return setup.space if costs is None else priced(setup.space, costs)


def _maker(setup: Setup, target: Target, subset: SampleSubset) -> EngineFactory:
    maker = target.maker(setup.context.progress)
    return for_samples(maker, setup.model.graph, subset.samples, subset.batches)
