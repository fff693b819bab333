"""Outputs of several parts: none hides another, and one scale for unlike parts is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import detectors
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat

import qdebug
from qdebug.plan.planfile import read_plan
from qdebug.types import Precision

Make = Callable[[detectors.Builder], str]


def _db(reference: Any, values: Any) -> float:
    error = np.square(reference - values, dtype=np.float64).sum()
    return float(10 * np.log10(np.square(reference, dtype=np.float64).sum() / error))


def _output(model: Path) -> Any:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {"image": detectors.images()})[0]


@pytest.mark.parametrize(
    ("make", "axis", "ends", "culprit", "settings"),
    [
        (detectors.joined, 1, [4, 9], "join", {}),
        (detectors.joined, 1, [4, 9], "join", {"quant_format": QuantFormat.QOperator}),
        (detectors.turned, 2, [4, 9], "join", {}),
        (detectors.three, 1, [4, 5, 10], "join", {}),
        (detectors.pyramid, 1, [4, 9], "levels", {}),
    ],
)
def test_one_scale_for_boxes_and_scores(
    make: Make, axis: int, ends: list[int], culprit: str, settings: Any, tmp_path: Path
) -> None:
    """The scores are all zero, which the SQNR of the output does not show."""
    fp32, int8, samples = detectors.quantized(make, tmp_path, **settings)
    how = {"reference": str(fp32), "inputs": str(samples), "effect": "exact"}
    result = qdebug.compare(str(int8), fail_on=["output.sqnr_db>=35", "part.sqnr_db>=35"], **how)
    output, first = result.outputs[0], result.layers[0]
    found = [np.split(_output(m), ends[:-1], axis) for m in (fp32, int8)]
    expected = [_db(x, y) for x, y in zip(*found, strict=True)]
    assert [p.sqnr_db for p in output.parts] == pytest.approx(expected, abs=0.05)
    assert [p.last + 1 for p in output.parts] == ends
    assert min(expected) == pytest.approx(0.0, abs=0.1) and max(expected) > 35
    assert output.metrics.worst_part_sqnr_db == pytest.approx(min(expected), abs=0.05)
    assert [c.passed for c in result.conditions] == [True, False]
    worst = output.worst_part
    assert worst and result.conditions[1].at == f"{output.name}: {worst.places} from {worst.branch}"
    assert (first.name, first.causes[0].label) == (culprit, "mixed-scales")
    assert first.causes[0].share == pytest.approx(1.0, abs=0.05)
    assert result.summary is not None and result.summary.layers == (culprit,)
    assert result.summary.sqnr_db == pytest.approx(min(expected), abs=0.05)
    assert result.summary.restored_sqnr_db is not None and result.summary.restored_sqnr_db > 30


@pytest.mark.parametrize(
    ("make", "settings"),
    [(detectors.unit, {}), (detectors.joined, {"nodes_to_exclude": ["join"]})],
)
def test_a_scale_that_suits_is_no_cause(make: Make, settings: Any, tmp_path: Path) -> None:
    fp32, int8, samples = detectors.quantized(make, tmp_path, **settings)
    result = qdebug.compare(str(int8), reference=str(fp32), inputs=str(samples), effect="none")
    assert "mixed-scales" not in {c.label for x in result.layers for c in x.causes}


def test_two_faults_in_two_parts_are_both_found(tmp_path: Path) -> None:
    """The last layer of either branch reads what a range 20 times too wide has rounded."""
    net = detectors.Builder()
    fp32 = net.save(tmp_path / "fp32.onnx", detectors.joined(net))
    file = str(tmp_path / "images.npz")
    np.savez(file, image=detectors.images())
    how: dict[str, Any] = {"inputs": file, "effect": "exact"}
    qdebug.compare(str(fp32), save_plan=str(tmp_path / "plan.yaml"), calib_data=file, **how)
    plan = read_plan(str(tmp_path / "plan.yaml"))
    wide = replace(plan.tensors["neck.relu"], amax=150.0)
    high = {**plan.layers, "stem": Precision.FP32, "neck": Precision.FP32}
    plan = replace(plan, layers=high, tensors={**plan.tensors, "neck.relu": wide})
    result = qdebug.compare(str(fp32), plan=plan, **how)
    noise = [10 ** (-p.sqnr_db / 10) for p in result.outputs[0].parts]
    assert result.effect is not None
    assert result.effect.noise == pytest.approx(np.mean(noise), rel=1e-3)
    shares = {x.name: x.output_share for x in result.layers if x.effect}
    expected = dict(zip(("boxes.conv", "scores.conv"), noise / np.sum(noise), strict=True))
    assert shares == pytest.approx(expected, abs=0.01)
    assert result.summary is not None and set(result.summary.layers) == set(expected)


@pytest.mark.parametrize("alike", [True, False])
def test_inputs_of_a_concat_with_one_range(alike: bool, tmp_path: Path) -> None:
    """What is joined was quantized before, but the scores with the range of the boxes: with their
    scale, or in UINT8 where the boxes are in INT8."""
    fp32, int8, samples = detectors.quantized(detectors.joined, tmp_path)
    model = onnx.load(int8)
    _without_pair(model, "join_QuantizeLinear_Input")
    scale = next(x for x in model.graph.initializer if x.name == "boxes_scale")
    step = numpy_helper.to_array(scale)
    one, other = (step, np.int8(-128)), (step, np.int8(-128))
    if not alike:
        one, other = (step * np.float32(255 / 127), np.int8(0)), (step, np.uint8(0))
    for tensor, pair in (("boxes", one), ("scores", other)):
        for kind, value in zip(("scale", "zero_point"), pair, strict=True):
            name = f"{tensor}_{kind}"
            constant = next(x for x in model.graph.initializer if x.name == name)
            constant.CopyFrom(numpy_helper.from_array(np.asarray(value), name))
    onnx.save(model, int8)
    result = qdebug.compare(str(int8), reference=str(fp32), inputs=str(samples), effect="none")
    causes = {x.name: [c.label for c in x.causes] for x in result.layers}
    assert causes["join"][0] == "mixed-scales"


def _without_pair(model: onnx.ModelProto, tensor: str) -> None:
    """Leave the Q/DQ pair that reads a tensor out."""
    nodes = model.graph.node
    quantizer = next(n for n in nodes if n.input[0] == tensor)
    back = next(n for n in nodes if n.input[0] == quantizer.output[0])
    maker = next(n for n in nodes if tensor in n.output)
    maker.output[0] = back.output[0]
    nodes.remove(quantizer)
    nodes.remove(back)


def test_channels_of_every_output(tmp_path: Path) -> None:
    fp32, int8, samples = detectors.quantized(detectors.turned, tmp_path)
    how = {"reference": str(fp32), "inputs": str(samples), "effect": "none"}
    worst = qdebug.compare(str(int8), **how).outputs[0].metrics
    reference, given = (np.moveaxis(_output(m), 2, 0) for m in (fp32, int8))
    each = [_db(x, y) for x, y in zip(reference, given, strict=True)]
    assert worst.worst_channel_sqnr_db == pytest.approx(min(each), abs=0.05)


def _halves(net: detectors.Builder) -> str:
    """A Split gives two halves of unlike range, with one scale."""
    wide = net.conv(net.features(), 16, 8, "both")
    weight = next(x for x in net.constants if x.name == "both.w")
    values = numpy_helper.to_array(weight) * np.where(np.arange(8) < 4, 1, 0.1)[:, None, None, None]
    weight.CopyFrom(numpy_helper.from_array(values.astype(np.float32), "both.w"))
    net.nodes.append(onnx.helper.make_node("Split", [wide], ["large", "small"], "halves", axis=1))
    return net.conv("small", 4, 4, "last")


def test_a_half_is_not_calibrated_on_other_data(tmp_path: Path) -> None:
    fp32, int8, samples = detectors.quantized(_halves, tmp_path)
    result = qdebug.compare(str(int8), reference=str(fp32), inputs=str(samples), effect="none")
    last = next(x for x in result.layers if x.name == "last")
    assert last.causes[0].label == "coarse-step"


def _coordinates(net: detectors.Builder) -> str:
    """The last layer reads features beside coordinates of hundreds, which it weighs down."""
    x = net.features()
    size = net.constant("size", np.float32(300))
    wide = net.op("Mul", net.conv(x, 16, 2, "raw"), size, name="coordinates")
    both = net.op("Concat", x, wide, name="both", axis=1)
    last = net.conv(both, 18, 4, "last")
    weight = next(x for x in net.constants if x.name == "last.w")
    values = numpy_helper.to_array(weight) / np.where(np.arange(18) < 16, 1, 300)[:, None, None]
    weight.CopyFrom(numpy_helper.from_array(values.astype(np.float32), "last.w"))
    return last


def test_one_scale_for_what_a_layer_reads(tmp_path: Path) -> None:
    net = detectors.Builder()
    fp32 = net.save(tmp_path / "fp32.onnx", _coordinates(net))
    file = str(tmp_path / "images.npz")
    np.savez(file, image=detectors.images(64))
    result = qdebug.compare(str(fp32), inputs=file, calib_data=file)
    first = result.layers[0]
    assert (first.name, first.causes[0].label) == ("last", "mixed-scales")
    wanted = {
        "target": "output.sqnr_db>=25",
        "pin": False,
        "output": str(tmp_path / "repaired.onnx"),
    }
    assert qdebug.repair(str(fp32), calib_data=file, **wanted).passed
