"""The builder script that `qdebug export --to python` writes, against the real interface."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from qdebug.model.load import read_model
from qdebug.model.prepare import prepare_model
from qdebug.plan.export import TARGETS
from qdebug.plan.export.source import Source
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


@pytest.fixture
def code(bound_plan: Callable[[str, str], BoundPlan], tmp_path: Path) -> Callable[..., str]:
    """What runs the exported script of a mixed plan for the bundled CNN."""
    model = prepare_model(read_model(DATA / "digits_cnn.onnx"))
    bound = bound_plan("digits_cnn", "int8")
    bound = bind_plan(replace(bound.plan, layers=PINS), model, bound.layers)
    script, engine = tmp_path / "precision_build.py", tmp_path / "model.engine"
    rendered = TARGETS["python"].render(Source(model, bound, "precision.yaml"), script)
    for path, data in rendered.files.items():
        path.write_bytes(data)

    def make(*flags: str) -> str:
        return BUILD.format(script=str(script), argv=[str(script), str(engine), *flags])

    return make


def test_tensorrt_10_is_told_the_plan(classic: Run, code: Callable[..., str]) -> None:
    done = json.loads(classic("10.16.1.11", code("--implicit", "--no-tf32")))
    assert done["created"] == [[0]]
    assert done["flags"] == ["INT8", "FP16", "OBEY_PRECISION_CONSTRAINTS"]
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
    assert "TensorRT 11.4.0.106 knows only the explicit model: drop --implicit" in said
