"""What a search does with real engines: candidates run on them, and the answer is built."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from qdebug.backends.engine import EngineRuntime
from qdebug.backends.registry import spec_of
from qdebug.decide.bisect.candidates import Engines
from qdebug.decide.bisect.evaluation import SEARCHED, open_verifier
from qdebug.decide.bisect.setup import Setup
from qdebug.decide.bisect.spread import engines_on
from qdebug.decide.search.outcome import PinnedLayer
from qdebug.decide.search.problem import Measurement, Pins
from qdebug.decide.search.space import SearchSpace
from qdebug.execute.engine.build import Engine, engine_of, fitted
from qdebug.execute.engine.latency import costs_of, kernel_times
from qdebug.execute.engine.request import build_request
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.pair import planned_pair
from qdebug.plan.plan import PrecisionPlan, bind_plan
from qdebug.results.attribution import KERNEL
from qdebug.results.compare import Cause


def engines_of(setup: Setup) -> Engines | None:
    """What runs candidates as engines on this machine; None where they are only built, or not asked
    for."""
    runtime = setup.engine
    if runtime is None or runtime.not_run:
        return None
    return engines_on(runtime, setup.model)


def built_answer(setup: Setup, plan: PrecisionPlan) -> Engine | None:
    """The engine of the answer, audited; None without an engine's backend.

    Raises:
        QdebugError: it cannot be built.
    """
    if setup.engine is None:
        return None
    pair = planned_pair(setup.model, bind_plan(plan, setup.model, setup.pair.layers))
    return engine_of(fitted(setup.engine, pair.candidate, setup.searched.samples), pair)


def in_milliseconds(setup: Setup, runtime: EngineRuntime) -> SearchSpace:
    """The search space with costs measured on the engine of nothing pinned, layer by layer; as it
    was, where the backend measures no layers.

    Raises:
        QdebugError: the engine cannot be built or run.
    """
    if not spec_of(runtime.name).profiles:
        return setup.space
    samples = setup.searched.samples
    ready = _fitted(setup, runtime, setup.searched)
    engine = engine_of(ready, setup.pair, not_run="")
    requested = build_request(runtime.typing, setup.pair)
    first = setup.searched.batches[0]
    with closing(ready.clean(requested.graph.proto, engine.built)) as session:
        measured = session.layer_times(samples.feeds(first.start, first.count))
    kernels = kernel_times(engine.info, measured)
    costs = costs_of(kernels, setup.pair, setup.space.costs)
    return setup.space if costs is None else setup.space.priced(costs)


def _fitted(setup: Setup, runtime: EngineRuntime, subset: SampleSubset) -> EngineRuntime:
    return fitted(runtime, setup.model.graph, subset.samples, subset.batches)


def with_kernel_causes(
    setup: Setup, pins: Pins, layers: Sequence[PinnedLayer]
) -> tuple[PinnedLayer, ...]:
    """`layers` of an answer that was searched on engines. Those that it pins for the engine's sake,
    since the simulation would pass without them, get the cause `kernel`.

    Raises:
        QdebugError: the runtime or the metric failed.
    """
    without = {
        x.name: pins - {(x.name, x.precision)}
        for x in layers
        if x.if_unpinned is not None and not x.if_unpinned.passed
    }
    if not without:
        return tuple(layers)
    with open_verifier(setup, setup.searched, SEARCHED) as simulation:
        simulated = simulation.measure(list(without.values()))
    explained = []
    for layer in layers:
        found = simulated[without[layer.name]] if layer.name in without else None
        if found is not None and found.passed and layer.if_unpinned is not None:
            cause = _cause(found, layer.if_unpinned)
            layer = replace(layer, causes=(cause, *layer.causes))
        explained.append(layer)
    return tuple(explained)


def _cause(simulated: Measurement, engine: Measurement) -> Cause:
    gives = engine.failure or _value(engine)
    return Cause(
        KERNEL,
        None,
        f"without it the simulation passes ({_value(simulated)}) and the engine does not ({gives})",
        "The kernel causes the error, not the ranges: another calibration does not help.",
    )


def _value(measured: Measurement) -> str:
    return "no value" if measured.value is None else f"{measured.value:.6g}"
