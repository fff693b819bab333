"""The scripts that `qdebug export --to python` and polygraphy write, against the real interface."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from qdebug.execute.engine.request import planned_graph
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.export import EXPORT_TARGETS
from qdebug.plan.export.models import dynamic_inputs
from qdebug.plan.export.source import ExportSource
from qdebug.plan.plan import BoundPlan, bind_plan
from qdebug.types import Precision

Run = Callable[..., str]
DATA = Path(__file__).parents[4] / "calib_data"
PINS = {"/stem/conv/Conv": Precision.FP16, "/classifier/Gemm": Precision.FP16}

BUILD = """
import json, runpy, sys
import library as stand_in
from recording import Memory
stand_in._run = lambda recorder, config: Memory(b"engine")
library, recorder = stand_in.recorded_library()
sys.modules["tensorrt"] = library.module
sys.argv = {argv!r}
try:
    runpy.run_path({script!r}, run_name="__main__")
except SystemExit as end:
    print(end)
else:
    layers = {{name: p.name for name, what, (p,) in
               (c for c in recorder.calls if c[1] == "precision")}}
    print(json.dumps(dict(
        typed=1 << int(library.module.NetworkDefinitionCreationFlag.STRONGLY_TYPED),
        created=recorder.of("create_network"),
        flags=[f.name for f, in recorder.of("set_flag")],
        layers=layers,
        types={{name: t.name for name, what, (_, t) in
                (c for c in recorder.calls if c[1] == "set_output_type")}},
        ranges=len(recorder.of("set_dynamic_range")),
        shapes=recorder.of("set_shape"),
    )))
"""


def export(source: ExportSource, folder: Path) -> None:
    for target in ("python", "polygraphy"):
        path = folder / f"precision{EXPORT_TARGETS[target].suffix}"
        for file, data in EXPORT_TARGETS[target].render(source, path).files.items():
            file.write_bytes(data)


@pytest.fixture
def code(bound_plan: Callable[[str, str], BoundPlan], tmp_path: Path) -> Callable[..., str]:
    """What runs the exported script of a mixed plan for the bundled CNN."""
    model = prepare_model(read_model(DATA / "digits_cnn.onnx"))
    bound = bound_plan("digits_cnn", "int8")
    bound = bind_plan(replace(bound.plan, layers=PINS), model, bound.layers)
    script, engine = tmp_path / "precision_build.py", tmp_path / "model.engine"
    export(ExportSource(model, bound, "precision.yaml"), tmp_path)

    def make(*flags: str) -> str:
        return BUILD.format(script=str(script), argv=[str(script), str(engine), *flags])

    return make


def test_tensorrt_10_is_told_the_plan(classic: Run, code: Callable[..., str]) -> None:
    done = json.loads(classic("10.16.1.11", code("--implicit", "--no-tf32")))
    assert done["created"] == [[0]]
    assert set(done["flags"]) == {"INT8", "FP16", "OBEY_PRECISION_CONSTRAINTS"}
    assert done["layers"]["/stem/conv/Conv"] == "HALF"
    assert done["layers"]["/classifier/Gemm"] == "HALF"
    assert done["layers"]["/pool/GlobalAveragePool"] == "FLOAT"
    assert done["types"]["/classifier/Gemm"] == "FLOAT"  # logits: the model's interface
    assert done["ranges"] > 10
    assert done["shapes"] == [["input", [1, 1, 8, 8], [1, 1, 8, 8], [1, 1, 8, 8]]]


@pytest.mark.parametrize("version", ["10.16.1.11", "11.4.0.106"])
def test_the_explicit_model_for_tensorrt_10_and_11(
    classic: Run, code: Callable[..., str], version: str
) -> None:
    done = json.loads(classic(version, code()))
    assert done["created"] == [[done["typed"]]]
    assert done["flags"] == [] and done["layers"] == {} and done["ranges"] == 0


def test_tensorrt_11_refuses_the_implicit_way(classic: Run, code: Callable[..., str]) -> None:
    said = classic("11.4.0.106", code("--implicit"))
    assert "TensorRT 11.4.0.106" in said and "drop --implicit" in said


TOLD = """
import json, onnx, runpy, sys
import library as stand_in
from recording import Memory
from pathlib import Path
from qdebug.backends.tensorrt.build.build import build_engine
from qdebug.backends.tensorrt.build.settings import BuildSettings, ShapeRange
library, recorder = stand_in.recorded_library()
trt = sys.modules["tensorrt"] = library.module
run, stand_in._run = stand_in._run, lambda recorder, config: Memory(b"engine")
folder = Path({folder!r})

def told():
    found = sorted(
        [name, what, *(str(getattr(a, "name", a)) for a in arguments)]
        for name, what, arguments in recorder.calls
        if what in ("precision", "set_output_type", "set_dynamic_range", "set_flag")
    )
    recorder.calls.clear()
    return found

sys.argv = ["script", str(folder / "model.engine"), "--implicit"]
runpy.run_path(str(folder / "precision_build.py"), run_name="__main__")
by_python = told()

script = runpy.run_path(str(folder / "precision_polygraphy.py"))
builder = trt.Builder(library.logger)
network = builder.create_network(0)
trt.OnnxParser(network, library.logger).parse((folder / "precision.implicit.onnx").read_bytes())
config = builder.create_builder_config()
script["postprocess"](network=network)
script["postprocess_config"](builder=builder, network=network, config=config)
by_polygraphy = told()

stand_in._run = run
ends = {ends!r}
profile = {{name: ShapeRange(shape, shape, shape) for name, shape in ends.items()}}
build_engine(library, onnx.load(folder / "asked.onnx"), BuildSettings(profile=profile))
by_compare = told()
print(json.dumps([by_compare, by_python, by_polygraphy]))
"""


@pytest.mark.parametrize(
    ("net", "kind"), [("digits_cnn", "mixed"), ("digits_encoder", "int8"), ("digits_cnn", "fp16")]
)
def test_scripts_tell_what_compare_tells(
    classic: Run, bound_plan: Callable[[str, str], BoundPlan], tmp_path: Path, net: str, kind: str
) -> None:
    """Precisions, types, ranges and flags: the same calls, on the same model."""
    bound = bound_plan(net, kind)
    model = prepare_model(read_model(DATA / f"{net}.onnx"))
    export(ExportSource(model, bound, "precision.yaml"), tmp_path)
    asked = planned_graph("implicit", bound).proto  # what `compare --typing implicit` builds
    assert onnx.load(tmp_path / "precision.implicit.onnx") == asked
    onnx.save(asked, tmp_path / "asked.onnx")
    ends = dynamic_inputs(bound.layers.graph)
    told = json.loads(classic("10.16.1.11", TOLD.format(folder=str(tmp_path), ends=ends)))
    by_compare, by_python, by_polygraphy = told
    assert by_python == by_polygraphy == by_compare
    assert len(by_compare) > 30
    ranged = [entry for entry in by_compare if entry[1] == "set_dynamic_range"]
    assert bool(ranged) == (kind != "fp16")
