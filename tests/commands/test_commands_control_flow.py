"""Commands on networks that are inside of an If, whose branch samples choose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from control_flow import (
    BOOL,
    constant,
    loop_net,
    model_of,
    scan_net,
    value,
    voice_net,
    voice_samples,
    weights,
)
from onnx import helper, numpy_helper
from refusals import refused

import qdebug
from qdebug.plan.planfile import read_plan

INT8 = {"conv", "deep", "out"}


def saved(path: Path, proto: onnx.ModelProto) -> str:
    onnx.save(proto, path)
    return str(path)


def in_int8(result: Any) -> set[str]:
    return {layer.name for layer in result.layers if layer.precision == "int8"}


def outputs(proto: Any, feeds: Any) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [session.run(None, feed) for feed in feeds]


def sqnr_db(reference: list[Any], found: list[Any]) -> float:
    want, got = (np.concatenate([np.ravel(a) for a in x]) for x in (reference, found))
    return float(10 * np.log10(np.sum(want**2) / np.sum((want - got) ** 2)))


def test_the_network_in_an_if_is_what_is_compared(tmp_path: Path) -> None:
    model = saved(tmp_path / "voice.onnx", voice_net())
    plan = tmp_path / "plan.yaml"
    samples = voice_samples(5)
    result = qdebug.compare(
        model, inputs=samples, calib_data=voice_samples(4, seed=1), save_plan=plan
    )
    assert in_int8(result) == INT8
    note = next(n for n in result.notes if "'rate_if' (then_branch)" in n)
    assert "9 samples" in note and "'inner' (then_branch)" in note
    assert read_plan(plan).control_flow == {"rate_if": "then_branch", "inner": "then_branch"}
    exported = qdebug.export(plan, to="onnx", output=tmp_path / "qdq.onnx")
    assert any("'rate_if'" in note for note in exported.notes)
    reference, found = (
        outputs(onnx.load(path), samples) for path in (model, tmp_path / "qdq.onnx")
    )
    # The exported model is the one that was compared: against the user's own, at the same error.
    assert sqnr_db(reference, found) == pytest.approx(result.outputs[0].metrics.sqnr_db, abs=0.5)


@pytest.mark.parametrize("rate", [16000, 8000])
def test_the_branch_is_the_samples_own(rate: int) -> None:
    result = qdebug.compare(voice_net(), inputs=voice_samples(3, rate), cache=False)
    branch = "then_branch" if rate == 16000 else "else_branch"
    assert any(f"'rate_if' ({branch})" in note for note in result.notes)
    assert in_int8(result) == INT8


def test_samples_that_disagree_are_told_of(tmp_path: Path) -> None:
    model = saved(tmp_path / "voice.onnx", voice_net())
    mixed = [*voice_samples(3), *voice_samples(1, rate=8000)]
    with refused("QD-USAGE-NOTHING-TO-QUANTIZE", "'rate_if'", "3 of 4"):
        qdebug.compare(model, inputs=mixed)
    with refused("QD-USAGE-NOTHING-TO-QUANTIZE", "'rate_if'", "3 of 4"):
        qdebug.calibrate(model, calib_data=mixed)
    # Calibration samples count as well.
    with refused("QD-USAGE-NOTHING-TO-QUANTIZE", "'rate_if'", "3 of 5"):
        qdebug.compare(model, inputs=voice_samples(3), calib_data=voice_samples(2, rate=8000))
    with refused("QD-USAGE-NOTHING-TO-QUANTIZE", "'rate_if'", "7 of 8", "Split the samples"):
        qdebug.repair(model, calib_data=mixed, inputs=voice_samples(4), batch_size=1)
    # As far as the samples agree, it is followed.
    short = [*voice_samples(3), *voice_samples(1, length=8)]
    result = qdebug.compare(model, inputs=short, batch_size=1)
    assert in_int8(result) == {"conv", "out"}
    assert any("'rate_if' (then_branch)" in note for note in result.notes)
    assert any("'inner' (3 of 4" in note for note in result.notes)


def test_a_plan_is_for_its_branches(tmp_path: Path) -> None:
    model = saved(tmp_path / "voice.onnx", voice_net())
    scales, plan = tmp_path / "scales.yaml", tmp_path / "plan.yaml"
    calibrated = qdebug.calibrate(model, calib_data=voice_samples(6), output=scales)
    assert calibrated.control_flow["rate_if"] == "then_branch"
    assert any("'rate_if' (then_branch)" in note for note in calibrated.notes)
    narrow = voice_samples(3, rate=8000)
    for calibration in (scales, calibrated):
        with refused("QD-PLAN-CONTROL-FLOW", "'rate_if'", "then_branch", "else_branch"):
            qdebug.compare(model, inputs=narrow, calibration=calibration)
    same = qdebug.compare(model, inputs=voice_samples(3), calibration=scales, save_plan=plan)
    assert in_int8(same) == INT8
    with refused("QD-PLAN-CONTROL-FLOW"):
        qdebug.compare(model, inputs=narrow, plan=plan)
    qdebug.export(scales, to="onnx", output=tmp_path / "qdq.onnx")
    qdebug.export(plan, to="trtexec", output=tmp_path / "build.sh")
    assert "If" not in {n.op_type for n in onnx.load(tmp_path / "build.implicit.onnx").graph.node}
    for target in ("modelopt", "ort", "trt-cache"):
        with refused("QD-PLAN-CONTROL-FLOW", "'rate_if'"):
            qdebug.export(plan, to=target, output=tmp_path / target)
    audited = qdebug.inspect(tmp_path / "qdq.onnx", expect=plan, model=model)
    assert audited.audit is not None and audited.audit.mismatches == ()


@pytest.mark.parametrize("wrong", ["rate_ifs: then_branch", "is_16k: else_branch"])
def test_a_plan_whose_control_flow_is_not_the_model_s(tmp_path: Path, wrong: str) -> None:
    model = saved(tmp_path / "voice.onnx", voice_net())
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"schema: qdebug.plan/1\nprecision: fp32\ncontrol_flow:\n  {wrong}\n")
    with refused("QD-PLAN-CONTROL-FLOW", wrong.partition(":")[0]):
        qdebug.export(plan, model=model, to="onnx", output=tmp_path / "out.onnx")
    plan.write_text("schema: qdebug.plan/1\ncontrol_flow: {rate_if: 3}\n")
    with refused("QD-PLAN-FILE", "plan.yaml:2"):
        qdebug.export(plan, model=model, to="onnx", output=tmp_path / "out.onnx")


def test_every_command_follows_the_branch(tmp_path: Path) -> None:
    model = saved(tmp_path / "voice.onnx", voice_net())
    samples = voice_samples(12)
    ranges = qdebug.ranges(model, calib_data=samples)
    assert {"c", "act", "o"} <= {t.name for t in ranges.tensors}
    assert any("'rate_if' (then_branch)" in note for note in ranges.notes)
    found = qdebug.bisect(model, inputs=samples, target="output.sqnr_db>=100", max_evaluations=8)
    assert found.candidates == len(INT8)
    assert found.plan.control_flow["rate_if"] == "then_branch"
    swept = qdebug.sweep(model, inputs=samples[:3], backend="onnxruntime")
    assert any("'rate_if' (then_branch)" in note for note in swept.notes)
    repaired = qdebug.repair(model, calib_data=voice_samples(12, seed=3), only=["ranges"])
    assert any("'rate_if' (then_branch)" in note for note in repaired.notes)


def test_the_plan_of_a_repair_is_for_the_model_that_it_writes(tmp_path: Path) -> None:
    whole, plan = tmp_path / "whole.onnx", tmp_path / "plan.yaml"
    repaired = qdebug.repair(
        voice_net(),
        calib_data=voice_samples(12, seed=3),
        only=["ranges"],
        save_plan=plan,
        save_fp32=whole,
    )
    exported = tmp_path / "qdq.onnx"
    qdebug.export(plan, model=whole, to="onnx", output=exported)
    samples = voice_samples(3)
    mine, its = (outputs(x, samples) for x in (onnx.load(exported), repaired.model_proto()))
    np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("op_type", ["Loop", "Scan"])
def test_a_loop_or_a_scan_stays_as_it_is(op_type: str) -> None:
    rng = np.random.default_rng(0)
    shape, proto = ((1, 3, 8, 8), loop_net(2)) if op_type == "Loop" else ((1, 4, 5), scan_net())
    samples = [{"x": rng.normal(size=shape).astype(np.float32)} for _ in range(4)]
    result = qdebug.compare(proto, inputs=samples, cache=False)
    assert in_int8(result) == ({"stem"} if op_type == "Loop" else {"head"})
    assert any(op_type in note and "FP32 as it is" in note for note in result.notes)


def quantized_in_an_if(quantized: bool) -> onnx.ModelProto:
    """A product in both branches of an If, with Q/DQ or without."""

    def branch(seed: int) -> onnx.GraphProto:
        held = weights(seed, w=(6, 4))
        nodes = [helper.make_node("MatMul", ["x", "w"], ["p"], "fc")]
        if quantized:
            held.append(numpy_helper.from_array(np.float32(0.03), "s"))
            held.append(numpy_helper.from_array(np.int8(0), "z"))
            pair = [
                helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
                helper.make_node("DequantizeLinear", ["q", "s", "z"], ["dq"], "dq"),
            ]
            nodes[0].input[0] = "dq"
            nodes = [*pair, *nodes]
        return helper.make_graph([constant("unused", np.float32(0)), *nodes], "b", [],
                                 [value("p")], held)  # fmt: skip

    choice = helper.make_node(
        "If", ["flag"], ["y"], "if", then_branch=branch(0), else_branch=branch(1)
    )
    graph = helper.make_graph(
        [choice],
        "g",
        [value("x", ["n", 6]), value("flag", [], BOOL)],
        [value("y", ["n", 4])],
    )
    return model_of(graph, 13)


def test_a_quantized_model_in_an_if(tmp_path: Path) -> None:
    quantized = saved(tmp_path / "int8.onnx", quantized_in_an_if(True))
    reference = saved(tmp_path / "fp32.onnx", quantized_in_an_if(False))
    rng = np.random.default_rng(0)
    samples = [
        {"x": rng.normal(size=(1, 6)).astype(np.float32), "flag": np.array(False)} for _ in range(5)
    ]
    for settings in ({}, {"reference": reference}):
        result = qdebug.compare(quantized, inputs=samples, **settings)
        assert in_int8(result) == {"fc"}
        assert any("'if' (else_branch)" in note for note in result.notes)
        assert 20 < result.outputs[0].metrics.sqnr_db < 60


def test_inspect_says_what_is_inside(tmp_path: Path) -> None:
    result = qdebug.inspect(voice_net())
    text = json.dumps(result.to_dict())
    assert "rate_if" in text and "then_branch" in text
