"""What every remedy keeps: the function of the network in FP32, a valid model, layers' names."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import checker
from repair_networks import NETWORKS

from qdebug.config.remedies import SUMMARIES
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.registry import REMEDIES
from qdebug.decide.remedies.remedy import Proposal
from qdebug.decide.remedies.walk import Walk
from qdebug.network.weights import serialized
from qdebug.plan.plan import Correction
from qdebug.types import Precision

BUNDLED = ("digits_cnn", "digits_encoder")
APPLIES: dict[str, frozenset[str]] = {
    "channel-scales": frozenset({"depthwise-relu", "depthwise-silu", "grouped", "digits_cnn"}),
    "weight-scales": frozenset(),
    "equalization": frozenset({*NETWORKS, "digits_encoder"}) - {"depthwise-silu"},
    "smoothing": frozenset({*NETWORKS, *BUNDLED}),
}
"""Networks in which a remedy has something to do; of all others it must have no layers."""
KEEP_WEIGHTS = ("offsets",)
"""They rewrite the network, but no weight."""


@pytest.mark.parametrize("network", [*NETWORKS, *BUNDLED])
@pytest.mark.parametrize("name", REMEDIES)
def test_a_proposal_computes_the_same_in_fp32_and_lowers_to_a_valid_model(
    name: str, network: str, case: Callable[..., Any], bundled: Callable[[str], Any]
) -> None:
    remedy = REMEDIES[name]
    at = bundled(network) if network in BUNDLED else case(NETWORKS[network]())
    layers = remedy.layers(at.start)
    if name in APPLIES:
        assert bool(layers) == (network in APPLIES[name])
    if not layers:
        return
    reference = at.run(at.start.graph.proto)
    proposals = list(remedy.propose(at.study, at.start, layers))
    order = [layer.name for layer in at.start.bound.layers_in(Precision.INT8)]
    for proposal in proposals:
        result = proposal.result
        assert set(proposal.layers) <= set(layers)
        assert [layer.name for layer in result.bound.layers_in(Precision.INT8)] == order
        assert not result.bound.missing_ranges()
        if not remedy.rewrites:
            _check_only_quantization_changes(at.start, proposal)
        for tensor, values in at.run(result.graph.proto).items():
            largest = np.abs(reference[tensor]).max()
            np.testing.assert_allclose(values, reference[tensor], rtol=0, atol=1e-4 * largest)
        checker.check_model(result.proto(), full_check=True)
        assert all(np.isfinite(v).all() for v in at.run(result.proto()).values())


@pytest.mark.parametrize("network", ["depthwise-relu", "residual", "post-norm"])
@pytest.mark.parametrize("name", REMEDIES)
def test_executions_at_once_change_no_proposal(
    name: str, network: str, case: Callable[..., Any]
) -> None:
    remedy, at = REMEDIES[name], case(NETWORKS[network](), count=96)
    layers = remedy.layers(at.start)

    def proposed(**how: Any) -> list[bytes]:
        study = replace(at.study, **how)
        found = remedy.propose(study, at.start, layers) if layers else ()
        return [serialized(proposal.result.proto()) for proposal in found]

    assert proposed() == proposed(workers=3)
    alone = at.study.backend
    assert proposed(memory_bytes=1) == proposed(memory_bytes=1, workers=8, alone=alone)


@pytest.mark.parametrize(("memory_bytes", "several"), [(1 << 30, True), (1, False)])
def test_as_many_executions_at_once_as_the_memory_holds(
    case: Callable[..., Any], memory_bytes: int, several: bool
) -> None:
    """Those of other trials count as well."""
    at = case(NETWORKS["residual"](), count=96)
    study = replace(at.study, workers=4, memory_bytes=memory_bytes)
    threads = set[str]()

    def error(_: int, __: int) -> float:
        threads.add(threading.current_thread().name)
        time.sleep(0.01)
        return 1.0

    walk = iter(Walk(study, at.start))
    site = next(walk)
    count = len(site.inputs)
    assert site.by_execution(error, range(8)) == [count] * 8
    assert (len(threads) > 1, count > 1) == (several, several)


def _check_only_quantization_changes(start: Quantized, proposal: Proposal) -> None:
    """The FP32 network is the same object; only weights, biases and ranges of INT8 layers differ,
    and biases and weights only in layers that are said to be changed."""
    before, after = start.bound, proposal.result.bound
    assert proposal.result.model is start.model
    assert after.layers is before.layers
    assert after.precisions == before.precisions
    assert replace(after.plan, tensors={}) == replace(before.plan, tensors={})
    allowed = set(before.needed_ranges())
    for layer in before.layers_in(Precision.INT8):
        allowed |= {layer.weight} if layer.name in proposal.layers and layer.weight else set()
    tensors = {*before.plan.tensors, *after.plan.tensors}
    assert {
        t for t in tensors if before.plan.tensors.get(t) != after.plan.tensors.get(t)
    } <= allowed
    corrected = {*before.corrections, *after.corrections}
    changed = {n for n in corrected if before.corrections.get(n) is not after.corrections.get(n)}
    assert changed <= set(proposal.layers)
    weighted = {layer.name: layer for layer in start.weighted()}
    for name in changed:
        correction, weight = after.corrections[name], weighted[name].weight
        values = start.graph.constant(weight or "")
        assert values is not None
        if correction.weight is not None:
            assert correction.weight.shape == values.shape
            assert correction.weight.dtype == np.float32
        if correction.bias is not None:
            assert correction.bias.ndim == 1
            assert correction.bias.dtype == np.float32


@pytest.mark.parametrize(
    "name",
    [n for n, x in REMEDIES.items() if x.rewrites and n not in KEEP_WEIGHTS],
)
@pytest.mark.parametrize("network", ["depthwise-relu", "residual", "post-norm"])
def test_corrections_stay_where_the_weight_is_the_same(
    name: str, network: str, case: Callable[..., Any]
) -> None:
    """A quantized model that was given has some; where another weight is read they end."""
    at = case(NETWORKS[network]())
    remedy = REMEDIES[name]
    known = {layer.name: Correction(bias=np.zeros(1, np.float32)) for layer in at.start.weighted()}
    start = at.start.with_corrections(known)
    layers = remedy.layers(start)
    for proposal in remedy.propose(at.study, start, layers) if layers else ():
        result = proposal.result
        same = set()
        for layer in result.weighted():
            old, new = (n.layers.by_name[layer.name].weight for n in (start, result))
            values = start.graph.constant(old), result.graph.constant(new)
            if old == new and np.array_equal(*values):
                same.add(layer.name)
        assert set(result.bound.corrections) == same
        assert all(result.bound.corrections[n] is known[n] for n in same)
        assert len(same) < len(known)


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_says_what_it_is(name: str) -> None:
    remedy = REMEDIES[name]
    assert remedy.name == name
    assert SUMMARIES[name]
    assert remedy.fewest_samples >= 1
