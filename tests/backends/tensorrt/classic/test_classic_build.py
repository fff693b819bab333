"""TensorRT 10 and 11: our build, and Polygraphy under it, against the real interface.

Nothing is built: NVIDIA's Python module is real, its library is not (see conftest). What is checked
is that every class, enum member, property and signature is used as it is declared, and that what
was asked for is what the builder is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from qdebug.plan.lower import Lowered
from qdebug.plan.trtcache import read_cache

Run = Callable[..., str]
VERSIONS = ("10.16.1.11", "11.4.0.106")

PRELUDE = """
import json, onnx
from library import recorded_library
from pathlib import Path
from qdebug.errors import QdebugError
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.plan import PrecisionPlan, TensorRange, bind_plan
from qdebug.backends.tensorrt.build.build import build_engine
from qdebug.memo import Memo
from qdebug.backends.tensorrt.build.implicit import make_calibrator
from qdebug.plan.constraints import constrained_graph, constraints_in
from qdebug.backends.tensorrt.build.settings import BuildSettings, ShapeRange
from qdebug.types import Precision
library, recorder = recorded_library()
trt = library.module
profile = {"input": ShapeRange((1, 1, 8, 8), (2, 1, 8, 8), (4, 1, 8, 8))}
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_strongly_typed_build(
    classic: Run, lowered: Callable[[str, str], Lowered], tmp_path: Path, version: str
) -> None:
    model = tmp_path / "int8.onnx"
    model.write_bytes(lowered("digits_cnn", "int8").graph.proto.SerializeToString())
    timing = tmp_path / "cache" / "timing.bin"
    code = f"""
settings = BuildSettings(
    workspace_bytes=2**30, optimization_level=4, tactic_sources=("JIT_CONVOLUTIONS",),
    timing_cache=Path({str(timing)!r}), sparsity=True, profile=profile, refit=True,
    version_compatible=True, unfused_debug_tensors=True,
)
steps, cache = [], Memo(Path({str(tmp_path)!r}) / "engines")
for _ in range(2):  # the second is taken from the cache
    built = build_engine(
        library, onnx.load({str(model)!r}), settings, cache=cache, progress=steps.append,
        outputs=["/stem/act/Clip_output_0", "nowhere"], debug=["/stem/conv/Conv_output_0"],
    )
build_engine(library, onnx.load({str(model)!r}), settings)  # reads the timing cache
print(json.dumps(dict(
    engine=built.engine.decode(), cached=built.cached, done=steps[-1].done,
    skipped=[s.tensor for s in built.skipped],
    network=recorder.of("create_network"),
    set=[f.name for f, in recorder.of("set_flag")],
    cleared=[f.name for f, in recorder.of("clear_flag")],
    memory=[(pool.name, size) for pool, size in recorder.of("set_memory_pool_limit")],
    sources=[mask for mask, in recorder.of("set_tactic_sources")] ,
    level=recorder.of("builder_optimization_level"),
    verbosity=[v.name for v, in recorder.of("profiling_verbosity")],
    shapes=recorder.of("set_shape"),
    outputs=[t.name for t, in recorder.of("mark_output")],
    debug=[t.name for t, in recorder.of("mark_debug")],
    timings=[data.decode() for data, in recorder.of("create_timing_cache")],
    jit=1 << int(trt.TacticSource.JIT_CONVOLUTIONS),
    typed=1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED),
)))
"""
    told = json.loads(classic(version, PRELUDE + code))
    assert (told["engine"], told["cached"], told["done"]) == ("engine", True, 100)
    assert told["skipped"] == ["nowhere"]
    assert told["network"] == [[told["typed"] if version.startswith("10") else 0]] * 2
    assert set(told["set"]) == {"REFIT", "SPARSE_WEIGHTS", "VERSION_COMPATIBLE"}
    assert set(told["cleared"]) == {"TF32"}
    assert told["memory"][0] == ["WORKSPACE", 2**30]
    assert told["sources"][0] == told["jit"]
    assert told["level"][0] == [4] and set(told["verbosity"]) == {"DETAILED"}
    assert told["shapes"][0] == ["input", [1, 1, 8, 8], [2, 1, 8, 8], [4, 1, 8, 8]]
    assert told["outputs"][0] == "/stem/act/Clip_output_0"
    assert told["debug"][0] == "/stem/conv/Conv_output_0"
    assert timing.read_bytes() == b"timings" and "timings" in told["timings"]


IMPLICIT = (
    PRELUDE
    + """
def constrained(by_cache):
    plan = PrecisionPlan(
        Precision.INT8,
        fallback_precision=Precision.FP16,
        layers={"/classifier/Gemm": Precision.FP32},
    )
    model = prepare_model(read_model(DATA))
    layers = find_layers(model.graph)
    missing = bind_plan(plan, model, layers).missing_ranges()
    ranges = {t: TensorRange(i + 1.0) for i, t in enumerate(missing)}
    bound = bind_plan(plan.with_ranges(ranges, ""), model, layers)
    return constrained_graph(bound, by_cache=by_cache).proto

def build(by_cache):
    proto = constrained(by_cache)
    build_engine(library, proto, BuildSettings(profile=profile))
    return constraints_in(proto)
"""
)


@pytest.fixture(scope="module")
def implicit() -> str:
    data = Path(__file__).parents[4] / "calib_data" / "digits_cnn.onnx"
    return f"DATA = {str(data)!r}\n" + IMPLICIT


def test_the_implicit_way_of_tensorrt_10(classic: Run, implicit: str) -> None:
    code = """
made = build(by_cache=False)
print(json.dumps(dict(
    network=recorder.of("create_network"),
    flags=[f.name for f, in recorder.of("set_flag")],
    precision={o: a[0].name for o, m, a in recorder.calls if m == "precision"},
    types={o: a[1].name for o, m, a in recorder.calls if m == "set_output_type"},
    ranges={o: a for o, m, a in recorder.calls if m == "set_dynamic_range"},
    asked=made.ranges,
)))
"""
    told = json.loads(classic("10.16.1.11", implicit + code))
    assert told["network"] == [[0]]
    assert set(told["flags"]) == {"OBEY_PRECISION_CONSTRAINTS", "FP16", "INT8"}
    precision, types = told["precision"], told["types"]
    assert (
        precision["/stem/conv/Conv"] == precision["/blocks/blocks.0/depthwise/conv/Conv"] == "INT8"
    )
    assert precision["/classifier/Gemm"] == types["/classifier/Gemm"] == "FLOAT"
    assert set(precision.values()) == {"INT8", "HALF", "FLOAT"}
    # INT8 is passed on where an INT8 layer reads it; what others read is stored in FP16.
    assert "/stem/act/Clip" not in types and "HALF" in types.values()
    asked = {t: [-amax, amax] for t, amax in told["asked"].items()}
    assert len(asked) > 5 and "input" in asked
    assert {t: told["ranges"][t] for t in asked} == asked
    # Nothing runs in INT8 without a range for what it writes: here what FP32 and FP16 layers read.
    assert told["ranges"]["/stem/conv/Conv_output_0"] == asked["/stem/act/Clip_output_0"]
    assert all(low == -high and high > 0 for low, high in told["ranges"].values())


def test_calibrators_serve_the_plan(classic: Run, implicit: str, tmp_path: Path) -> None:
    code = f"""
made = build(by_cache=True)
assert not recorder.of("set_dynamic_range")
(calibrator,), = recorder.of("int8_calibrator")
assert isinstance(calibrator, trt.IInt8EntropyCalibrator2)
Path({str(tmp_path / "cache")!r}).write_bytes(calibrator.read_calibration_cache())
assert (calibrator.get_batch_size(), calibrator.refused) == (1, False)
assert calibrator.get_algorithm() == trt.CalibrationAlgoType.ENTROPY_CALIBRATION_2
calibrator.write_calibration_cache(b"")
assert calibrator.get_batch(["input"]) is None and calibrator.refused
for kind, base in (("MinMaxCalibration", "IInt8MinMaxCalibrator"),
                   ("EntropyCalibration", "IInt8EntropyCalibrator")):
    other = make_calibrator(library, {{"x": 1.0}}, kind)
    assert isinstance(other, getattr(trt, base))
    assert other.read_calibration_cache().decode().startswith(f"TRT-101601-{{kind}}\\n")
print(json.dumps(dict(made.ranges)))
"""
    asked = json.loads(classic("10.16.1.11", implicit + code))
    cache = read_cache(tmp_path / "cache")
    assert (cache.version, cache.kind) == (101601, "EntropyCalibration2")
    assert {t: cache.amax[t] for t in asked} == pytest.approx(asked, rel=1e-6)
    assert "/stem/conv/Conv_output_0" in cache.amax and "/stem/conv/Conv_output_0" not in asked


def test_warnings_about_layers_that_are_not_int8_are_expected(classic: Run, implicit: str) -> None:
    code = """
import library as stand_in
run = stand_in._run
def warn(recorder, config):
    for text in (
        "Calibrator is not being used. Users must provide dynamic range for all tensors that are "
        "not Int32 or Bool.",
        "Missing scale and zero-point for tensor x, expect fall back to non-int8 implementation "
        "for any layer consuming or producing given tensor",
        "No implementation obeys /stem/conv/Conv",
    ):
        library.logs.add("WARNING", text)
    library.logs.add(trt.ILogger.WARNING, "Weights of /stem/conv/Conv are subnormal")
    return run(recorder, config)
stand_in._run = warn
built = build_engine(library, constrained(False), BuildSettings(profile=profile))
print(json.dumps([[w.text, w.nodes] for w in built.warnings]))
"""
    told = json.loads(classic("10.16.1.11", implicit + code))
    assert [text for text, _ in told][:1] == ["No implementation obeys /stem/conv/Conv"]
    assert all(nodes == ["/stem/conv/Conv"] for _, nodes in told) and told


def test_a_refused_cache_is_named(classic: Run, implicit: str) -> None:
    code = """
import library as stand_in
def refuse(recorder, config):
    config.int8_calibrator.get_batch(["input"])
    return None
stand_in._run = refuse
try:
    build(by_cache=True)
except QdebugError as error:
    print(error.exit_code, error.code)
"""
    assert classic("10.16.1.11", implicit + code).strip() == "3 QD-BACKEND-CACHE-REFUSED"


def test_tensorrt_11_has_no_implicit_way(classic: Run, implicit: str) -> None:
    code = """
for attempt in (lambda: build(False), lambda: make_calibrator(library, {})):
    try:
        attempt()
    except QdebugError as error:
        print(error.exit_code, error)
"""
    said = classic("11.4.0.106", implicit + code)
    assert said.count("2 TensorRT 11.4.0.106") == said.count("QD-USAGE-IMPLICIT") == 2


LOAD = """
from qdebug.errors import QdebugError
from qdebug.backends.tensorrt.library import LibraryKind, load_library
try:
    print(load_library(LibraryKind.CLASSIC))
except QdebugError as error:
    print(error.exit_code, error)
"""


def test_a_missing_shared_object(classic: Run) -> None:
    said = classic("10.16.1.11", LOAD, over="")
    assert said.startswith("3 ") and "libnv" in said and "QD-BACKEND-NOT-LOADABLE" in said


def test_bindings_and_library_of_different_versions(classic: Run) -> None:
    said = classic("10.16.1.11", LOAD, over="10.9.0.34")
    assert said.startswith("3 ") and "QD-BACKEND-VERSIONS-DIFFER" in said
    assert "10.16.1.11" in said and "10.9.0" in said


def test_a_library_that_gives_no_builder(classic: Run) -> None:
    """What happens with an old driver: the entry point returns null."""
    code = """
from qdebug.backends.tensorrt.library import LibraryKind, load_library
from qdebug.backends.tensorrt.build import build
from qdebug.backends.tensorrt.build import settings
from qdebug.backends.tensorrt.execute.device import Device
from qdebug.backends.tensorrt.build.settings import BuildSettings
from qdebug.errors import QdebugError
import onnx
settings.find_device = lambda: Device("a GPU", (8, 9), 1)
try:
    build.build_engine(load_library(LibraryKind.CLASSIC), onnx.ModelProto(), BuildSettings())
except QdebugError as error:
    print(error.exit_code, error)
"""
    said = classic("11.4.0.106", code)
    assert said.startswith("3 TensorRT 11.4.0.106") and "QD-BACKEND-VERSIONS-DIFFER" in said
