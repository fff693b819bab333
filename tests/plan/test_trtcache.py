"""TensorRT's calibration cache and the other files that hold ranges."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
from onnxruntime.quantization.quant_utils import write_calibration_table

from qdebug.errors import PlanError
from qdebug.plan.plan import PrecisionPlan, TensorRange
from qdebug.plan.planfile import plan_to_yaml
from qdebug.plan.rangesfile import read_ranges, scales_to_yaml
from qdebug.plan.trtcache import CalibrationCache, cache_text, is_cache, read_cache
from qdebug.types import Precision

CACHE = """TRT-101100-EntropyCalibration2
input: 3c010a14
/conv1/Conv_output_0: 3d4ccccd
(Unnamed Layer* 3) [Shuffle]_output: 3f800000
"""

names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1).filter(
    lambda name: len(name.splitlines()) == 1
)
scales = st.floats(min_value=0, max_value=2.0**99, width=32)


@pytest.mark.parametrize(
    ("version", "release"), [(8601, "8.6.1"), (7103, "7.1.3"), (101600, "10.16.0")]
)
def test_versions_as_people_write_them(version: int, release: str) -> None:
    assert CalibrationCache(version, "EntropyCalibration2", {}).release == release


def test_scales_are_big_endian_float32_bits(tmp_path: Path) -> None:
    path = tmp_path / "calibration.cache"
    path.write_text(CACHE)
    cache = read_cache(path)
    assert (cache.version, cache.kind) == (101100, "EntropyCalibration2")
    assert cache.scales["/conv1/Conv_output_0"] == np.float32(0.05)
    assert cache.scales["(Unnamed Layer* 3) [Shuffle]_output"] == 1.0
    assert cache.amax["(Unnamed Layer* 3) [Shuffle]_output"] == 127.0
    assert cache.scales["input"] == struct.unpack(">f", bytes.fromhex("3c010a14"))[0]


def test_text_is_what_tensorrt_wrote(tmp_path: Path) -> None:
    path = tmp_path / "calibration.cache"
    path.write_text(CACHE)
    assert cache_text(read_cache(path)) == CACHE


@given(entries=st.dictionaries(names, scales))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, entries: dict[str, float]) -> None:
    path = tmp_path_factory.mktemp("cache") / "c"
    cache = CalibrationCache(101600, "MinMaxCalibration", entries)
    path.write_text(cache_text(cache), encoding="utf-8")
    assert read_cache(path) == cache


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("", 1, "not a TensorRT calibration cache"),
        ("hello\n", 1, "not a TensorRT calibration cache"),
        ("TRT-101100-EntropyCalibration2\nx 3c010a14\n", 2, "not a line"),
        ("TRT-101100-EntropyCalibration2\nx: 3c010a1\n", 2, "not a line"),
        ("TRT-101100-EntropyCalibration2\nx: 3c010a1g\n", 2, "not a line"),
        ("TRT-101100-EntropyCalibration2\nx: 7fc00000\n", 2, "the scale of 'x' is nan"),
        ("TRT-101100-EntropyCalibration2\nx: ff800000\n", 2, "the scale of 'x' is -inf"),
        ("TRT-101100-EntropyCalibration2\nx: bf800000\n", 2, "the scale of 'x' is -1.0"),
        ("TRT-1-A\nx: 3f800000\nx: 3f800000\n", 3, "listed twice"),
    ],
)
def test_bad_lines(tmp_path: Path, text: str, line: int, part: str) -> None:
    path = tmp_path / "bad.cache"
    path.write_text(text)
    with pytest.raises(PlanError) as error:
        read_cache(path)
    assert f"bad.cache:{line}:" in str(error.value)
    assert part in str(error.value)
    assert error.value.code == "QD-PLAN-CACHE"


def test_tensorrt_10_writes_zero_as_one_digit(tmp_path: Path) -> None:
    path = tmp_path / "calibration.cache"
    path.write_text("TRT-101000-EntropyCalibration2\nx: 3c010a14\n/Constant: 0\n")
    assert read_cache(path).scales["/Constant"] == 0.0


def test_infinite_ranges_are_none_and_named(tmp_path: Path) -> None:
    path = tmp_path / "calibration.cache"
    path.write_text("TRT-8601-EntropyCalibration2\nx: 3c010a14\nmask: 7f800000\n")
    assert read_cache(path).scales.keys() == {"x"}
    found = read_ranges(path)
    assert (found.tensors.keys(), found.unbounded) == ({"x"}, ("mask",))


def test_tables_of_onnx_runtime_are_those_that_it_writes(tmp_path: Path) -> None:
    ends = {"x": (-3.5, 2.25), "/a:b": (0.0, 6.0)}
    data = {n: tuple(np.array(v, np.float32) for v in pair) for n, pair in ends.items()}
    written = TensorsData(CalibrationMethod.MinMax, data)
    write_calibration_table(written.data, str(tmp_path))
    found = read_ranges(tmp_path / "calibration.json")
    assert {n: entry.amax for n, entry in found.tensors.items()} == {"x": 3.5, "/a:b": 6.0}
    # What the provider reads is the highest value.
    table = read_ranges(tmp_path / "calibration.flatbuffers")
    assert {n: entry.amax for n, entry in table.tensors.items()} == {"x": 2.25, "/a:b": 6.0}
    text = read_ranges(tmp_path / "calibration.cache")
    assert text == table
    assert found.partial and table.partial
    (tmp_path / "old.json").write_text('{"x": [-3.5, 2.25]}')
    assert read_ranges(tmp_path / "old.json").tensors["x"].amax == 3.5


@pytest.mark.parametrize("cut", [0, 3, 40, 60])
def test_a_damaged_table_of_onnx_runtime_is_refused(tmp_path: Path, cut: int) -> None:
    data = {"x": (np.array(-1, np.float32), np.array(1, np.float32))}
    write_calibration_table(TensorsData(CalibrationMethod.MinMax, data).data, str(tmp_path))
    for name in ("calibration.flatbuffers", "calibration.json"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:cut] if name.endswith("s") else b'{"x": [1, "a"]}')
        with pytest.raises(PlanError, match="QD-PLAN-CACHE"):
            read_ranges(path)


def test_missing_and_binary(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="QD-PLAN-FILE"):
        read_cache(tmp_path / "none")
    assert not is_cache(tmp_path / "none")
    binary = tmp_path / "binary"
    binary.write_bytes(b"TRT-\xff\xfe")
    with pytest.raises(PlanError, match="QD-PLAN-FILE"):
        read_cache(binary)


def test_ranges_from_a_cache_are_partial(tmp_path: Path) -> None:
    path = tmp_path / "c.cache"
    path.write_text(CACHE)
    ranges = read_ranges(path)
    assert ranges.partial
    assert ranges.tensors["(Unnamed Layer* 3) [Shuffle]_output"] == TensorRange(
        127.0, "TensorRT EntropyCalibration2"
    )


def test_scales_round_trip(tmp_path: Path) -> None:
    tensors = {"a": TensorRange(3.5, "minmax"), "b/é:c": TensorRange(0.0, "entropy")}
    path = tmp_path / "scales.yaml"
    path.write_text(
        scales_to_yaml(
            {"a": tensors["a"]},
            {"b/é:c": tensors["b/é:c"]},
            precision=Precision.A16W8,
            method="mix",
            calibration="of 3 samples",
            model_path="m.onnx",
            model_sha256="0" * 64,
            control_flow={"if": "then_branch", "other": "else_branch"},
        ),
        encoding="utf-8",
    )
    ranges = read_ranges(path)
    assert ranges.tensors == tensors
    assert ranges.control_flow == {"if": "then_branch", "other": "else_branch"}
    assert ranges.partial
    assert "scale: 0.0001068" in path.read_text("utf-8")


def test_ranges_from_a_plan_name_tensors_of_the_model(tmp_path: Path) -> None:
    plan = PrecisionPlan(Precision.INT8, tensors={"x": TensorRange(math.pi)})
    path = tmp_path / "plan.yaml"
    path.write_text(plan_to_yaml(plan))
    ranges = read_ranges(path)
    assert not ranges.partial
    assert ranges.tensors == plan.tensors


def test_neither_kind(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("schema: other/1\n")
    with pytest.raises(PlanError, match=r"x\.yaml:1"):
        read_ranges(path)
