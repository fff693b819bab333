"""Layers that an answer pins for the engine's sake: the simulation would pass without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qdebug.measure.attribution import KERNEL
from qdebug.measure.result import Cause
from qdebug.pipeline.bisect.setup import Setup
from qdebug.pipeline.bisect.verify import SEARCHED, Verifier
from qdebug.search.outcome import PinnedLayer
from qdebug.search.problem import Measurement, Pins


def with_kernel_causes(
    setup: Setup, pins: Pins, layers: Sequence[PinnedLayer]
) -> tuple[PinnedLayer, ...]:
    """`layers` of an answer that was searched on engines; those without which the engine fails and
    the simulation does not get the cause `kernel`.

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
    with Verifier(setup, setup.searched, SEARCHED) as simulation:
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
        "Its kernel is wrong, not its ranges: quantizing otherwise does not help.",
    )


def _value(measured: Measurement) -> str:
    return "no value" if measured.value is None else f"{measured.value:.6g}"
