"""Overflows and underflows of FP16 that another form of the same network is rid of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_networks import HEALTHY, OVERFLOWING, norm, written_out, zero_rows

import qdebug
from qdebug.decide.remedies.fp16_rewrites import REMEDY
from qdebug.network.prepare import Model


def ops(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def sqnr_db(found: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    """NaN where something is not finite."""
    (tensor,) = reference
    with np.errstate(over="ignore", invalid="ignore"):
        noise = np.square(found[tensor].astype(np.float64) - reference[tensor]).sum()
    return 10 * math.log10(
        np.square(reference[tensor].astype(np.float64)).sum() / max(noise, 1e-30)
    )


def proposals(at: Any) -> list[Any]:
    return list(REMEDY.propose(at.study, at.start, REMEDY.layers(at.start)))


@pytest.mark.parametrize("network", OVERFLOWING)
def test_a_network_that_fp16_cannot_hold_does_well_in_fp16(
    network: str, half: Callable[[Model], Any]
) -> None:
    at = half(OVERFLOWING[network]())
    reference = at.run(at.start.graph.proto)
    before = sqnr_db(at.run(at.start.proto()), reference)
    assert not before > 35
    found = []
    for proposal in proposals(at):
        same = at.run(proposal.result.graph.proto)
        found.append(sqnr_db(at.run(proposal.result.proto()), reference))
        for tensor, values in same.items():
            atol = 1e-5 * np.abs(reference[tensor]).max()
            np.testing.assert_allclose(values, reference[tensor], rtol=0, atol=atol)
    assert max(found, default=math.nan) > 40


@pytest.mark.parametrize("network", HEALTHY)
def test_where_nothing_is_wrong_nothing_is_proposed(
    network: str, half: Callable[[Model], Any]
) -> None:
    at = half(HEALTHY[network]())
    assert proposals(at) == []
    assert sqnr_db(at.run(at.start.proto()), at.run(at.start.graph.proto)) > 50


@pytest.mark.parametrize("network", ["tiny", "logits"])
def test_repair_makes_it_finite_without_a_pin(network: str, tmp_path: Path) -> None:
    model = OVERFLOWING[network]()
    onnx.save(model.graph.proto, tmp_path / "net.onnx")
    x = np.random.default_rng(5).normal(size=(48, 6, 16)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    found = qdebug.repair(
        tmp_path / "net.onnx", calib_data=tmp_path / "x.npz", precision="fp16", pin=False
    )
    assert not found.proof.start.sqnr_db > 0
    assert found.proof.repaired.sqnr_db > 50
    assert found.accepted == ("fp16-rewrites",)
    assert found.pinning is None


def test_a_written_out_normalization_becomes_one_operator(half: Callable[[Model], Any]) -> None:
    at = half(written_out())
    (proposal,) = proposals(at)
    assert ops(proposal.result.graph.proto).count("LayerNormalization") == 1
    assert not {"Pow", "ReduceMean", "Sqrt", "Sub", "Div"} & set(ops(proposal.result.graph.proto))
    reference = at.run(at.start.graph.proto)
    before, after = (sqnr_db(at.run(n.proto()), reference) for n in (at.start, proposal.result))
    assert after > before
    assert sqnr_db(at.run(proposal.result.graph.proto), reference) > 100


@pytest.mark.parametrize("network", ["rms_operator", "bare_softmax", "softplus"])
def test_an_operator_alone_holds_what_overflows_on_the_way(
    network: str, half: Callable[[Model], Any]
) -> None:
    at = half(OVERFLOWING[network]())
    first = proposals(at)[0]
    assert first.what in ("1 RMSNormalization fused", "1 Softmax fused", "1 Softplus fused")
    reference = at.run(at.start.graph.proto)
    assert sqnr_db(at.run(first.result.proto()), reference) > 50


def test_layers_that_are_left_out_are_not_rewritten(half: Callable[[Model], Any]) -> None:
    at = half(norm())
    kept = [name for name in REMEDY.layers(at.start) if not name.startswith("sqrt")]
    found = list(REMEDY.propose(at.study, at.start, kept))
    assert all("Sqrt" in ops(one.result.graph.proto) for one in found)


def test_a_row_of_zeros_is_normalized_as_before(half: Callable[[Model], Any]) -> None:
    at = half(zero_rows())
    (proposal,) = proposals(at)
    session = at.study.simulation.open(proposal.result.proto(), ())
    x = np.random.default_rng(1).normal(size=(4, 6, 16)).astype(np.float32)
    x[:, 2] = 0
    (found,) = session.run({"x": x}).values()
    session.close()
    assert np.isfinite(found).all()
