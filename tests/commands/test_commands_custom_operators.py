"""Commands on models with operators that a library brings along."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from control_flow import value, weights
from documents import run_qdebug
from onnx import helper
from refusals import refused

import qdebug

_PROTOBUF = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
_before = os.environ.get(_PROTOBUF)
extensions = pytest.importorskip("onnxruntime_extensions")
# Its import asks for a slow protobuf in all processes that the tests start from here on.
if _before is None:
    os.environ.pop(_PROTOBUF, None)
else:
    os.environ[_PROTOBUF] = _before
LIBRARY = extensions.get_library_path()
DOMAIN = "ai.onnx.contrib"
INT8 = {"stem", "head", "fc"}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A convolution, an operator that splits by sign, another convolution, a product."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "stem_w"], ["c"], "stem", pads=[1] * 4),
        node("NegPos", ["c"], ["negative", "positive"], "split", domain=DOMAIN),
        node("Mul", ["negative", "slope"], ["leak"], "leak"),
        node("Add", ["leak", "positive"], ["act"], "join"),
        node("Conv", ["act", "head_w"], ["h"], "head"),
        node("GlobalAveragePool", ["h"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flatten"),
        node("Gemm", ["f", "fc_w"], ["y"], "fc"),
    ]
    held = weights(0, stem_w=(6, 3, 3, 3), head_w=(5, 6, 1, 1), fc_w=(5, 4))
    held.append(onnx.numpy_helper.from_array(np.float32(0.1), "slope"))
    graph = helper.make_graph(
        nodes, "g", [value("x", ["n", 3, 8, 8])], [value("y", ["n", 4])], held
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.random.default_rng(0).normal(size=(24, 3, 8, 8)).astype(np.float32))
    return str(path)


def test_its_neighbours_are_quantized(model: str, data: str) -> None:
    result = qdebug.compare(model, inputs=data, custom_op_library=LIBRARY)
    assert {layer.name for layer in result.layers if layer.precision == "int8"} == INT8
    split = next(layer for layer in result.layers if layer.name == "split")
    assert split.precision == "fp32" and split.op_type == "NegPos"
    assert 20 < result.outputs[0].metrics.sqnr_db < 60
    assert {"negative", "positive"} <= {t.name for t in result.tensors}
    with refused("QD-MODEL-REFUSED", "custom_op_library"):  # by itself, it has no such operator
        qdebug.compare(model, inputs=data)


@pytest.mark.parametrize(
    "run",
    [
        lambda m, d, **lib: qdebug.calibrate(m, calib_data=d, method=["minmax", "mse"], **lib),
        lambda m, d, **lib: qdebug.ranges(m, calib_data=d, **lib),
        lambda m, d, **lib: qdebug.bisect(m, inputs=d, target="output.sqnr_db>=40", **lib),
        lambda m, d, **lib: qdebug.sweep(m, inputs=d, backend="onnxruntime", **lib),
        lambda m, d, **lib: qdebug.repair(m, calib_data=d, only=["bias-correction"], **lib),
        lambda m, d, **lib: qdebug.compare(
            m, inputs=d, backend="onnxruntime", effect="exact", **lib
        ),
    ],
    ids=["calibrate", "ranges", "bisect", "sweep", "repair", "compare"],
)
def test_every_command_takes_it(model: str, data: str, run: Callable[..., Any]) -> None:
    with refused("QD-MODEL-REFUSED", "custom_op_library"):
        run(model, data)
    run(model, data, custom_op_library=[LIBRARY])


def test_on_the_command_line_and_in_a_file(model: str, data: str, tmp_path: Path) -> None:
    flags = ["--inputs", data, "--custom-op-library", LIBRARY]
    code, shown, _ = run_qdebug(["compare", model, *flags])
    assert code == 0 and "split" in shown
    library = shutil.copy(LIBRARY, tmp_path / "lib.so")
    settings = tmp_path / "run.yaml"
    settings.write_text(f"model: {model}\ninputs: {data}\ncustom-op-library: [{library}]\n")
    assert run_qdebug(["compare", "--config", str(settings)])[0] == 0


def test_the_script_for_onnx_runtimes_quantizer_takes_it(
    model: str, data: str, tmp_path: Path
) -> None:
    scales, script, made = (tmp_path / n for n in ("scales.yaml", "quantize.py", "int8.onnx"))
    library = ["--custom-op-library", Path(LIBRARY).name]
    qdebug.calibrate(model, calib_data=data, output=scales, custom_op_library=LIBRARY)
    qdebug.export(scales, to="ort", output=script)
    command = [sys.executable, str(script), str(made)]
    assert subprocess.run(command, capture_output=True).returncode != 0
    beside = Path(LIBRARY).parent
    subprocess.run([*command, *library], cwd=beside, check=True, capture_output=True)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(LIBRARY)
    quantized, exact = (
        onnxruntime.InferenceSession(m, options, providers=["CPUExecutionProvider"])
        for m in (str(made), model)
    )
    with np.load(data) as arrays:
        found, expected = (s.run(None, {"x": arrays["x"]})[0] for s in (quantized, exact))
    assert 0 < np.abs(found - expected).max() < 0.2 * np.abs(expected).max()


@pytest.mark.parametrize("what", ["missing", "folder", "text", "no registration"])
def test_a_library_that_cannot_be_loaded(model: str, data: str, tmp_path: Path, what: str) -> None:
    path = tmp_path / "lib.so"
    if what == "text":
        path.write_text("not a library")
    elif what == "folder":
        path.mkdir()
    elif what == "no registration":
        if sys.platform != "linux":
            pytest.skip("any shared object without RegisterCustomOps")
        path = next(Path(np.__file__).parent.rglob("_multiarray_umath*.so"))
    with refused("QD-USAGE-CUSTOM-OPS", "custom_op_library", str(path)):
        qdebug.compare(model, inputs=data, custom_op_library=[str(path)])


def test_what_is_kept_depends_on_the_library(model: str, tmp_path: Path) -> None:
    """The ranges that were gathered with one are not those of another."""
    data = {"x": np.random.default_rng(9).normal(size=(6, 3, 8, 8)).astype(np.float32)}
    first = qdebug.ranges(model, calib_data=data, custom_op_library=LIBRARY)
    again = qdebug.ranges(model, calib_data=data, custom_op_library=LIBRARY)
    changed = tmp_path / "changed.so"
    changed.write_bytes(Path(LIBRARY).read_bytes() + b"\0")  # another build, for all we know
    other = qdebug.ranges(model, calib_data=data, custom_op_library=str(changed))
    cached = [r.calibration.from_cache for r in (first, again, other)]
    assert cached == [False, True, False]


def test_workers_load_it_too(model: str, data: str) -> None:
    alone, spread = (
        qdebug.compare(model, inputs=data, custom_op_library=LIBRARY, effect="none", **cluster)
        for cluster in ({}, {"cluster": "local:1"})
    )
    assert spread.outputs == alone.outputs
