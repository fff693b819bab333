"""What every remedy keeps: the function of the network in FP32, a valid model, layers' names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import checker
from repair_networks import NETWORKS

from qdebug.remedies.registry import REMEDIES
from qdebug.types import Precision

BUNDLED = ("digits_cnn", "digits_encoder")
APPLIES: dict[str, frozenset[str]] = {
    "channel-scales": frozenset({"depthwise-relu", "depthwise-silu", "grouped", "digits_cnn"}),
    "equalization": frozenset({*NETWORKS, "digits_encoder"}) - {"depthwise-silu"},
    "smoothing": frozenset({*NETWORKS, *BUNDLED}),
}
"""Networks in which a remedy has something to do; of all others it must have no layers."""


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
        for tensor, values in at.run(result.graph.proto).items():
            largest = np.abs(reference[tensor]).max()
            np.testing.assert_allclose(values, reference[tensor], rtol=0, atol=1e-4 * largest)
        checker.check_model(result.proto(), full_check=True)
        assert all(np.isfinite(v).all() for v in at.run(result.proto()).values())


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_says_what_it_is(name: str) -> None:
    remedy = REMEDIES[name]
    assert remedy.name == name
    assert remedy.summary
    assert remedy.fewest_samples >= 1
