"""Scales per channel before grouped convolutions."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from repair_networks import IMAGES, NETWORKS, Builder

import qdebug
from qdebug.backends.tensorrt.execute.device import find_device
from qdebug.decide.remedies.channel_scales import REMEDY, equal_reach
from qdebug.decide.remedies.channels import channel_ranges


def ops(network: Any) -> list[str]:
    return [node.op_type for node in network.graph.nodes]


def only(at: Any) -> Any:
    """The proposal in which channels reach equally far: the last."""
    return list(REMEDY.propose(at.study, at.start, REMEDY.layers(at.start)))[-1]


def test_channels_reach_equally_far_and_nothing_is_inserted_behind_relu(
    case: Callable[..., Any],
) -> None:
    at = case(NETWORKS["depthwise-relu"]())
    before = channel_ranges(at.study, at.start.graph, {"relu3_out": -3})["relu3_out"].mean_amax
    result = only(at).result
    assert ops(result) == ops(at.start)
    after = channel_ranges(at.study, result.graph, {"relu3_out": -3})["relu3_out"].mean_amax
    assert before.max() > 5 * before[before > 0].min()
    np.testing.assert_allclose(after[before > 0], before.max(), rtol=1e-5)


@pytest.mark.parametrize("network", ["depthwise-relu", "depthwise-silu"])
def test_the_noise_of_a_depthwise_layer_falls(network: str, case: Callable[..., Any]) -> None:
    at = case(NETWORKS[network]())
    (name,) = REMEDY.layers(at.start)
    alone = at.only(name)
    proposals = list(REMEDY.propose(at.study, alone, [name]))
    assert len(proposals) == 2
    for proposal in proposals:
        assert at.noise(proposal.result) < 0.5 * at.noise(alone)


def test_with_one_scale_the_range_of_the_weight_counts_too(case: Callable[..., Any]) -> None:
    """One channel of the weight reaches far beyond the others."""
    b = Builder(3, spread=0.1)
    x = b.add("Clip", b.conv("x", 3, 8), b.constant(np.float32(0)), b.constant(np.float32(6)))
    spatial = b.conv(x, 8, 8, groups=8)
    b.constants[b.nodes[-1].input[1]][0] *= 100
    project = b.conv(spatial, 8, 8, size=1)
    b.constants[b.nodes[-1].input[1]][:, 0] /= 100
    at = case(b.model(IMAGES, project), weights="per-tensor")
    (name,) = REMEDY.layers(at.start)
    alone = at.only(name)
    first = next(iter(REMEDY.propose(at.study, alone, [name])))
    assert at.noise(first.result) < 0.2 * at.noise(alone)


def test_silu_does_not_commute_with_a_factor_so_one_product_stays(case: Callable[..., Any]) -> None:
    at = case(NETWORKS["depthwise-silu"]())
    result = only(at).result
    assert ops(result).count("Mul") == ops(at.start).count("Mul") + 1


def test_readers_of_one_tensor_share_the_factors(case: Callable[..., Any]) -> None:
    at = case(NETWORKS["grouped"]())
    result = only(at).result
    assert "Mul" not in ops(result)
    left, right = REMEDY.layers(at.start)
    for name, groups in ((left, 4), (right, 8)):
        weights = [n.graph.constant(n.layers.by_name[name].weight) for n in (at.start, result)]
        ratio = (weights[0] / weights[1]).reshape(groups, 16 // groups, 8 // groups, 9)
        each = ratio[:, 0, :, 0].reshape(-1)
        np.testing.assert_allclose(
            ratio[:, :, :, 0], ratio[:, :1, :, 0].repeat(16 // groups, axis=1), rtol=1e-5
        )
        np.testing.assert_allclose(
            each,
            equal_reach(
                channel_ranges(at.study, at.start.graph, {"leakyrelu1_out": -3})[
                    "leakyrelu1_out"
                ].mean_amax
            ),
            rtol=1e-5,
        )


def test_a_channel_that_is_zero_keeps_its_scale() -> None:
    np.testing.assert_allclose(equal_reach(np.array([4.0, 0.0, 1.0])), [1, 1, 4])
    np.testing.assert_allclose(equal_reach(np.zeros(2)), [1, 1])
    assert equal_reach(np.array([1.0, 1e-9]))[1] == pytest.approx(64)


def test_an_output_of_the_network_is_not_rescaled(case: Callable[..., Any]) -> None:
    b = Builder(7)
    seen = b.add("Relu", b.conv("x", 3, 8))
    at = case(b.model(IMAGES, b.head(b.conv(seen, 8, 8, groups=8), 8), seen))
    result = only(at).result
    assert ops(result).count("Mul") == 1
    np.testing.assert_allclose(
        at.run(result.graph.proto)[seen], at.run(at.start.graph.proto)[seen], rtol=1e-6
    )


def test_statistics_of_channels_do_not_depend_on_the_batches(case: Callable[..., Any]) -> None:
    at = case(NETWORKS["residual"](), count=20)  # batches of 16 and 4
    feeds = at.feeds()
    assert [len(f["x"]) for f in feeds] == [16, 4]
    found = channel_ranges(at.study, at.start.graph, {"x": -3})["x"]
    whole = np.concatenate([f["x"] for f in feeds])
    np.testing.assert_allclose(found.amax, np.abs(whole).max((0, 2, 3)))
    np.testing.assert_allclose(found.mean_amax, np.abs(whole).max((2, 3)).mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.low, whole.min((0, 2, 3)))
    np.testing.assert_allclose(found.high, whole.max((0, 2, 3)))


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="needs TensorRT for RTX"
)
@pytest.mark.skipif(not isinstance(find_device(), str), reason="is about machines without a GPU")
def test_tensorrt_builds_no_kernel_for_the_product(
    case: Callable[..., Any], tmp_path: Path
) -> None:
    at = case(NETWORKS["depthwise-silu"]())
    result = only(at).result
    assert ops(result).count("Mul") == ops(at.start).count("Mul") + 1
    np.savez(tmp_path / "x.npz", **at.feeds()[0])
    layers = []
    for network in (at.start, result):
        onnx.save(network.proto(), tmp_path / "int8.onnx")
        engine = qdebug.compare(
            tmp_path / "int8.onnx",
            inputs=tmp_path / "x.npz",
            backend="tensorrt-rtx",
            compute_capability="8.9",
        ).engine
        assert engine is not None and engine.audit is not None
        products = [row for row in engine.audit.layers if row.op_type in ("Conv", "Gemm")]
        assert [row.built for row in products] == ["int8"] * 5
        layers.append(engine.layers)
    assert layers[1] == layers[0]
