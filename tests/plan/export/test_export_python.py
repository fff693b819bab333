"""The builder script: run with TensorRT for RTX, and the implicit way with a stand-in."""

from __future__ import annotations

import json
import runpy
import sys
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PINS = {"/stem/conv/Conv": "fp16", "/classifier/Gemm": "fp32"}


def tensorrt_10(network: Any) -> SimpleNamespace:
    """TensorRT 10 as far as the script uses it, with the enumerations of RTX; its engine is a
    report."""
    import tensorrt_rtx as real

    done: dict[str, Any] = {"flags": [], "cleared": [], "shapes": {}}

    def engine(built: Any, config: Any) -> bytes:
        tensors = network.inputs + [t for x in network.layers for t in x.outputs]
        done["amax"] = {t.name: t.amax for t in tensors if t.amax is not None}
        return json.dumps(done | {"precisions": network.precisions}).encode()

    config = SimpleNamespace(
        set_flag=lambda flag: done["flags"].append(flag.name),
        clear_flag=lambda flag: done["cleared"].append(flag.name),
        add_optimization_profile=lambda profile: None,
    )
    profile = SimpleNamespace(set_shape=lambda name, *shapes: done["shapes"].update({name: shapes}))
    builder = SimpleNamespace(
        create_network=lambda flags: done.update(created=flags) or network,
        create_builder_config=lambda: config,
        create_optimization_profile=lambda: profile,
        build_serialized_network=engine,
    )
    return SimpleNamespace(
        __version__="10.16.1",
        Builder=lambda logger: builder,
        BuilderFlag=Enum("BuilderFlag", "FP16 INT8 TF32 OBEY_PRECISION_CONSTRAINTS"),
        DataType=real.DataType,
        LayerType=real.LayerType,
        Logger=real.Logger,
        NetworkDefinitionCreationFlag=real.NetworkDefinitionCreationFlag,
        ProfilingVerbosity=real.ProfilingVerbosity,
        OnnxParser=lambda net, log: SimpleNamespace(parse_from_file=lambda p: net.parse(Path(p))),
    )


@pytest.fixture
def build(tmp_path: Path, empty_network: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the script against the stand-in; what it did."""

    def run(*flags: str, **other: Any) -> Any:
        library = SimpleNamespace(**{**vars(tensorrt_10(empty_network)), **other})
        monkeypatch.setitem(sys.modules, "tensorrt", library)
        engine = tmp_path / "model.engine"
        monkeypatch.setattr(sys, "argv", ["precision_build.py", str(engine), *flags])
        runpy.run_path(str(tmp_path / "precision_build.py"), run_name="__main__")
        return json.loads(engine.read_bytes())

    return run


def test_tensorrt_for_rtx_builds_the_bundled_network(
    cnn: Path, plan_for: Any, write: Any, script: Any, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    write(plan_for(cnn, PINS), "python")
    path, engine = tmp_path / "precision_build.py", tmp_path / "model.engine"
    flags = ["--rtx", "--compute-capability", "8.9", "--no-tf32", "--verbose"]
    done = script(path, engine, *flags, cwd="/")
    assert done.returncode == 0, done.stderr
    assert engine.stat().st_size > 10_000
    assert "Int8" in done.stderr + done.stdout  # the engine's layers
    refused = script(path, engine, "--rtx", "--implicit")
    assert refused.returncode == 2 and "explicit" in refused.stderr


def test_the_implicit_way_sets_flags_ranges_and_constraints(
    cnn: Path, plan_for: Any, write: Any, build: Any
) -> None:
    source = plan_for(cnn, PINS)
    rendered = write(source, "python")
    done = build("--implicit", "--no-tf32")
    assert done["created"] == 0 and done["cleared"] == ["TF32"]
    assert set(done["flags"]) == {"INT8", "FP16", "OBEY_PRECISION_CONSTRAINTS"}
    needed = dict.fromkeys(source.bound.needed_ranges(), pytest.approx(4))
    assert done["amax"].items() >= needed.items()
    # What INT8 layers write has a range too, also where only layers in float read it.
    assert "/blocks/blocks.1/pointwise/act/Clip_output_0" in done["amax"].keys() - needed.keys()
    assert done["precisions"]["/stem/conv/Conv_output_0"] == "HALF"
    assert done["precisions"]["logits"] == "FLOAT"
    assert done["precisions"]["/blocks/blocks.0/depthwise/conv/Conv_output_0"] == "INT8"
    assert done["shapes"] == {"input": [[1, 1, 8, 8]] * 3}
    assert any("edit SHAPES" in note for note in rendered.notes)


def test_the_explicit_way_is_strongly_typed(
    cnn: Path, plan_for: Any, write: Any, build: Any
) -> None:
    import tensorrt_rtx as real

    write(plan_for(cnn, PINS), "python")
    done = build()
    assert done["flags"] == [] and done["precisions"] == {} and done["amax"] == {}
    assert done["created"] == 1 << int(real.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def test_a_library_that_knows_no_constraints_says_so(
    cnn: Path, plan_for: Any, write: Any, build: Any
) -> None:
    write(plan_for(cnn, PINS), "python")
    with pytest.raises(SystemExit, match="drop --implicit"):
        build("--implicit", __version__="11.4", BuilderFlag=Enum("BuilderFlag", "TF32"))
