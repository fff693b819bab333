"""The answer of a search on real engines: built, audited, and run where there is a GPU."""

from __future__ import annotations

from contextlib import closing

from qdebug.model.samples.subset import SampleSubset
from qdebug.pipeline.bisect.candidates import Engines
from qdebug.pipeline.bisect.setup import Setup
from qdebug.pipeline.bisect.space import Space, priced
from qdebug.pipeline.engine.build import Engine, engine_of, fitted, save_engine
from qdebug.pipeline.engine.latency import costs_of, kernel_times
from qdebug.pipeline.engine.request import build_request, planned_graph
from qdebug.plan.pair import planned_pair
from qdebug.plan.plan import PrecisionPlan, bind_plan
from qdebug.run.base import Backend
from qdebug.run.engine import EngineRuntime


def engines_of(setup: Setup) -> Engines | None:
    """What runs candidates as engines on this machine; None where they are only built, or not asked
    for."""
    runtime = setup.engine
    if runtime is None or runtime.not_run:
        return None

    def opened(subset: SampleSubset) -> Backend:
        return _fitted(setup, runtime, subset)

    return Engines(opened, lambda bound: planned_graph(runtime.typing, bound).proto)


def built_answer(setup: Setup, plan: PrecisionPlan) -> Engine | None:
    """The engine of the answer, audited, and saved where that was asked for; None without an
    engine's backend.

    Raises:
        QdebugError: it cannot be built, or not be written.
    """
    if setup.engine is None:
        return None
    pair = planned_pair(setup.model, bind_plan(plan, setup.model, setup.pair.layers))
    engine = engine_of(fitted(setup.engine, pair.candidate, setup.searched.samples), pair)
    save_engine(engine, setup.settings)
    return engine


def in_milliseconds(setup: Setup, runtime: EngineRuntime) -> Space:
    """The search space with costs measured on the engine of nothing pinned, layer by layer.

    Raises:
        QdebugError: the engine cannot be built or run.
    """
    samples = setup.searched.samples
    ready = _fitted(setup, runtime, setup.searched)
    engine = engine_of(ready, setup.pair, not_run="")
    asked = build_request(runtime.typing, setup.pair)
    first = setup.searched.batches[0]
    with closing(ready.clean(asked.graph.proto, engine.built)) as session:
        measured = session.layer_times(samples.feeds(first.start, first.count))
    kernels = kernel_times(engine.info, measured)
    costs = costs_of(kernels, setup.pair, setup.space.costs)
    return setup.space if costs is None else priced(setup.space, costs)


def _fitted(setup: Setup, runtime: EngineRuntime, subset: SampleSubset) -> EngineRuntime:
    return fitted(runtime, setup.model.graph, subset.samples, subset.batches)
