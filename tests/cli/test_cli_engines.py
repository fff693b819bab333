"""`qdebug compare --backend tensorrt-rtx` on a machine that may have no GPU: real builds."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fake_execution import execute_with_fake
from onnx import helper, numpy_helper

from qdebug.backends.tensorrt.execute.device import find_device
from qdebug.config.engine import EngineSettings
from qdebug.testing.tensorrt import fake_build

BUNDLED = Path(__file__).parents[2] / "calib_data"
DETECTOR = Path(__file__).parents[3] / "shared" / "assets" / "ultraface_slim" / "model.onnx"
RTX = ["--backend", "tensorrt-rtx", "--compute-capability", "8.9"]
needs_rtx = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="needs TensorRT for RTX"
)
simulated = pytest.mark.skipif(
    not isinstance(find_device(), str), reason="is about machines without a GPU"
)


@needs_rtx
@simulated
def test_the_bundled_network(desk: Any) -> None:
    flags = ["compare", str(BUNDLED / "digits_cnn.onnx"), "--inputs",
             str(BUNDLED / "digits_holdout.npz"), "--samples", "16", "--effect", "none",
             *RTX]  # fmt: skip
    done = desk.run(*flags)
    assert done.code == 0, done.err
    for words in ("TensorRT for RTX", "8.9", "as-planned"):
        assert words in done.out
    engine = desk.run(*flags, "--json", "-").json["engine"]
    assert engine["executed"] is False and engine["not_executed_because"]
    assert engine["cached"] is True  # the first run built it
    assert engine["audit"]["passed"] and engine["audit"]["mismatches"] == []
    asked = {row["name"]: row["requested"] for row in engine["audit"]["layers"]}
    assert len(asked) == 19 and list(asked.values()).count("int8") == 14
    fp16 = [*flags, "--precision", "fp16", "--json", "-"]
    assert desk.run(*fp16).json["fp16_kernels"] == "tensorrt"
    assert desk.run(*fp16, "--fp16-kernels", "exact").json["fp16_kernels"] == "exact"
    same = desk.run(*flags[:-4], "--json", "-").json  # the errors are those of the simulation
    assert same["outputs"] == desk.run(*flags, "--json", "-").json["outputs"]
    assert same["engine"] is None


@needs_rtx
@simulated
@pytest.mark.skipif(
    not DETECTOR.is_file(), reason="the face detector is not beside the checkout (../shared/assets)"
)
def test_layers_are_counted_as_inspect_counts_them(desk: Any) -> None:
    """Its engine has two dozen that only make others wait."""
    flags = [
        "--inputs",
        str(DETECTOR.with_name("inputs.npz")),
        "--samples",
        "1",
        "--effect",
        "none",
        "--save-log",
        "log",
    ]
    built = desk.run("compare", str(DETECTOR), *flags, *RTX, "--json", "-").json["engine"]
    seen = desk.run("inspect", "log", "--json", "-").json
    assert built["layers"] == seen["values"]["layer_count"] < len(seen["layers"])


@needs_rtx
@simulated
def test_the_engine_and_its_log_are_kept_where_asked(desk: Any) -> None:
    flags = ["compare", "net.onnx", "--inputs", "data.npz", *RTX, "--save-log", "build.log",
             "--save-engine", "net.engine", "--save-plan", "plan.yaml"]  # fmt: skip
    done = desk.run(*flags, "--json", "-")
    assert done.code == 0, done.err
    assert Path("net.engine").stat().st_size == done.json["engine"]["size_bytes"]
    audit = desk.run("inspect", "build.log", "--expect", "plan.yaml", "--json", "-").json["audit"]
    assert audit["layers"] == done.json["engine"]["audit"]["layers"]
    desk.refused("inspect", "net.engine", says=["QD-USAGE-ENGINE-FILE-FOREIGN", "net.engine"])
    desk.refused(*flags, says=["QD-STORE-OUTPUT-EXISTS", "--force"])
    again = desk.run(*flags, "--force")
    assert again.code == 0
    assert again.out.endswith("Wrote plan.yaml\nWrote net.engine\nWrote build.log\n")


@needs_rtx
@simulated
def test_the_engine_of_a_search_is_kept_too(desk: Any) -> None:
    flags = ["bisect", "net.onnx", "--inputs", "data.npz", "--target", "output.sqnr_db>=20",
             *RTX, "-o", "plan.yaml", "--save-log", "build.log",
             "--save-engine", "net.engine"]  # fmt: skip
    done = desk.run(*flags, "--json", "-")
    assert done.code == 0, done.err
    assert Path("net.engine").stat().st_size == done.json["engine"]["size_bytes"]
    assert desk.run("inspect", "build.log", "--expect", "plan.yaml").code == 0
    Path("plan.yaml").unlink()
    desk.refused(*flags, says=["QD-STORE-OUTPUT-EXISTS", "--save-engine: net.engine", "--force"])


FOR_ENGINES = [
    ["--compute-capability", "8.9"], ["--optimization-level", "0"], ["--workspace", "1G"],
    ["--tactic-source", "JIT_CONVOLUTIONS"], ["--timing-cache", "t.bin"], ["--tf32"],
    ["--sparsity"], ["--plugin", "p.so"], ["--refit"], ["--version-compatible"],
    ["--save-engine", "net.engine"], ["--save-log", "build.log"], ["--typing", "implicit"],
    ["--capture", "debug"], ["--provider", "CUDA"], ["--provider-option", "use_tf32=0"],
    ["--build-timeout", "60"],
]  # fmt: skip


@pytest.mark.parametrize("flags", FOR_ENGINES, ids=lambda flags: flags[0])
def test_flags_of_engines_without_an_engine(desk: Any, flags: list[str]) -> None:
    says = ["QD-USAGE-BACKEND-SETTING", f"{flags[0]}: --backend simulation", "--backend "]
    desk.refused("compare", "net.onnx", "--inputs", "data.npz", *flags, says=says)
    target = ["--target", "output.cosine>=0.9"]
    desk.refused("bisect", "net.onnx", "--inputs", "data.npz", *target, *flags, says=says)


def test_every_setting_of_an_engine_is_refused_without_one() -> None:
    named = {flags[0].removeprefix("--").replace("-", "_") for flags in FOR_ENGINES}
    named = {"tactic_sources" if n == "tactic_source" else n for n in named}
    assert {f.name for f in fields(EngineSettings)} == named | {"backend"}


@needs_rtx
@simulated
def test_refit_and_version_compatible_reach_the_builder(desk: Any) -> None:
    flags = ["compare", "net.onnx", "--inputs", "data.npz", *RTX]
    done = desk.spawn(*flags, "--refit")
    # TensorRT for RTX would add a line of its own.
    assert done.code == 3 and "[QD-BACKEND-REFIT-NEEDS-GPU]" in done.err, done
    assert "--refit" in done.err and len(done.err.splitlines()) == 2
    done = desk.run(*flags, "--version-compatible")
    assert done.code == 3 and "[QD-BACKEND-NOT-LOADABLE]" in done.err, done
    assert "--version-compatible" in done.err


@needs_rtx
@simulated
def test_capture_without_an_execution_is_said(desk: Any) -> None:
    flags = ["net.onnx", "--inputs", "data.npz", *RTX]
    target = ["--target", "output.cosine>=0.5"]
    for command in (["compare", *flags], ["bisect", *flags, *target]):
        (note,) = [
            n
            for n in desk.run(*command, "--capture", "outputs", "--json", "-").json["notes"]
            if n.startswith("--capture outputs ")
        ]
        assert note not in desk.run(*command).out
        assert "--capture outputs" in desk.run(*command, "--capture", "outputs").out


@needs_rtx
@simulated
def test_a_layer_built_in_another_precision_fails(desk: Any, make: Any) -> None:
    """TensorRT for RTX has no INT8 ConvTranspose: it takes the layer, and builds it in FP32."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (4, 4, 3, 3), "w2": (4, 8, 2, 2), "w3": (4, 8, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("ConvTranspose", ["b", "w2"], ["c"], "up", strides=[2, 2]),
        helper.make_node("Conv", ["c", "w3"], ["y"], "last"),
    ]
    weights = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    desk.save(make(nodes, {"x": (1, 4, 8, 8)}, {"y": (1, 4, 16, 16)}, weights), "up.onnx")
    desk.data("up.npz", x=rng.normal(size=(2, 4, 8, 8)).astype(np.float32))
    done = desk.run("compare", "up.onnx", "--inputs", "up.npz", *RTX)
    assert done.code == 1, (done.out, done.err)
    assert "mismatch" in done.out and "not-as-planned" in done.out
    found = desk.run("compare", "up.onnx", "--inputs", "up.npz", *RTX, "--json", "-").json
    assert found["engine"]["audit"]["mismatches"] == ["up"]
    causes = {x["name"]: x["causes"][0] for x in found["layers"] if x["causes"]}
    assert causes["up"]["label"] == "not-as-planned" and causes["up"]["share"] is None
    assert "fp32" in causes["up"]["remedy"]


@needs_rtx
@simulated
def test_a_pinned_product_whose_casts_are_folded_gets_advice_that_helps(desk: Any) -> None:
    """TensorRT for RTX drops the casts around an FP32 product of FP16 data."""
    products = [f"/layers/layers.0/attention/{m}" for m in ("MatMul", "MatMul_1")]

    def compared(pins: list[str]) -> Any:
        layers = "".join(f"  {name}: fp32\n" for name in pins)
        text = (
            f"schema: qdebug.plan/1\nprecision: int8\nfallback_precision: fp16\nlayers:\n{layers}"
        )
        desk.write("plan.yaml", text)
        return desk.run(
            *("compare", BUNDLED / "digits_encoder.onnx", "--plan", "plan.yaml", *RTX),
            *("--inputs", BUNDLED / "digits_holdout.npz", "--samples", "2", "--effect", "none"),
            *("--top", "1", "--json", "found.json", "--force"),
        )

    done = compared(products)
    assert done.code == 1 and "--fallback-precision fp32" in done.out
    audit = json.loads(Path("found.json").read_text())["engine"]["audit"]
    assert audit["mismatches"] == products
    advice = [row["advice"] for row in audit["layers"] if row["verdict"] == "mismatch"]
    feeders = [text.split("'")[1] for text in advice]
    assert compared([*products, *feeders]).code == 0
    assert compared(products[1:]).code == 0  # a kernel of its own: it sums in FP32, as asked
    rows = json.loads(Path("found.json").read_text())["engine"]["audit"]["layers"]
    (row,) = [r for r in rows if r["name"] == products[1]]
    assert row["verdict"] == "fused"


@needs_rtx
@simulated
def test_an_engine_that_is_wrong_in_fp32_already(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real builds, executed by a fake whose kernels add 1 to a bias, in any precision."""

    def spoilt(library: Any, proto: onnx.ModelProto, *rest: Any, **more: Any) -> Any:
        copied = onnx.ModelProto()
        copied.CopyFrom(proto)
        bias = next(i for i in copied.graph.initializer if i.name == "b3")
        bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(1), "b3"))
        return fake_build(library, copied, *rest, **more)

    execute_with_fake(monkeypatch, spoilt)
    flags = ["compare", "net.onnx", "--inputs", "data.npz", *RTX]
    found = desk.run(*flags, "--json", "-").json
    execution = found["engine"]["execution"]
    assert execution["preflight"]["reference_mismatch"] == ["out"]
    labels = {t["tensor"]: t["label"] for t in execution["tensors"]}
    assert labels["out"] == "reference-mismatch" and labels["r1"] == "quantization"
    layers = {x["name"]: [c["label"] for c in x["causes"]] for x in found["layers"]}
    assert layers["fc"][0] == "reference-mismatch"
    assert "reference-mismatch" not in layers["conv1"]


@needs_rtx
@simulated
def test_a_run_on_the_gpu_tells_bisect_what_layers_cost(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real builds, executed and profiled by a fake: 0.5 ms for each node."""
    desk.run("compare", "net.onnx", "--inputs", "data.npz", *RTX, "-o", "built.h5")
    execute_with_fake(monkeypatch)
    compared = desk.run("compare", "net.onnx", "--inputs", "data.npz", *RTX, "-o", "run.h5")
    assert compared.code == 0, compared.err
    search = ["bisect", "net.onnx", "--inputs", "data.npz", "--target", "output.sqnr_db>=55"]
    result = desk.run(*search, "--profile", "run.h5", "--json", "-").json
    assert result["cost"]["unit"] == "ms"
    assert result["cost"]["base"] == pytest.approx(0.5 * 8)  # the nodes of net.onnx
    desk.refused(*search, "--profile", "built.h5", says=["QD-USAGE-PROFILE-RUN", "built.h5"])
    desk.refused(
        *search,
        "--profile",
        "run.h5",
        "--profile-layers",
        "x",
        says=["QD-USAGE-PROFILE", "--profile-layers"],
    )


@needs_rtx
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--compute-capability", "5.0"], ["QD-USAGE-COMPUTE-CAPABILITY", "5.0", "8.9"]),
        (["--compute-capability", "ada"], ["QD-USAGE-COMPUTE-CAPABILITY", "'ada'", "8.9"]),
        (["--tactic-source", "CUDNN"], ["QD-USAGE-TACTIC-SOURCE", "CUDNN", "JIT_CONVOLUTIONS"]),
        (["--plugin", "nothing.so"], ["QD-USAGE-PLUGIN", "nothing.so"]),
        (["--optimization-level", "9"], ["QD-USAGE-VALUE", "9"]),
        (["--typing", "implicit"], ["QD-USAGE-BACKEND-SETTING", "--typing", "--backend tensorrt"]),
        (
            ["--timing-cache", "t.bin"],
            ["QD-USAGE-BACKEND-SETTING", "--timing-cache", "--backend tensorrt"],
        ),
        (["--plugin", "."], ["QD-USAGE-PLUGIN", "--plugin: ."]),
        (
            ["--typing", "weak"],
            ["QD-USAGE-CHOICE", "--typing", "'weak'", "strong, implicit, implicit-cache"],
        ),
    ],
)
def test_bad_settings_cost_nothing(desk: Any, flags: list[str], says: list[str]) -> None:
    base = ["compare", "net.onnx", "--inputs", "data.npz", "-o", "run.h5"]
    desk.refused(*base, "--backend", "tensorrt-rtx", *flags, says=says)


@needs_rtx
@simulated
@pytest.mark.parametrize(
    ("op", "domain", "says"),
    [
        ("Det", "", ["QD-MODEL-REFUSED", "'suspect'", "Det", "17"]),
        ("QuickGelu", "com.microsoft", ["QD-MODEL-REFUSED", "'suspect'", "--plugin FILE"]),
        ("Own", "acme", ["QD-MODEL-REFUSED", "'suspect'", "'acme'", "--plugin FILE"]),
    ],
)
def test_an_operator_that_is_not_known_is_told_before_any_work(
    desk: Any, make: Any, monkeypatch: pytest.MonkeyPatch, op: str, domain: str, says: list[str]
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was simulated")

    monkeypatch.setattr("qdebug.commands.compare.command.compare_pair", never)
    monkeypatch.setattr("qdebug.decide.bisect.steps.rated", never)
    nodes = [helper.make_node("Relu", ["x"], ["r"], "relu"),
             helper.make_node(op, ["r"], ["y"], "suspect", domain=domain)]  # fmt: skip
    proto = make(nodes, {"x": ("N", 3, 8, 8)}, {"y": ("N", 3) if op == "Det" else ("N", 3, 8, 8)})
    if domain:
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    desk.save(proto, "odd.onnx")
    run = ["odd.onnx", "--inputs", "data.npz", *RTX, "--precision", "fp16"]
    desk.refused("bisect", *run, "--target", "output.cosine>=0.9", says=says)
    desk.refused("compare", *run, "-o", "run.h5", says=says)
    if domain == "acme":
        says = ["QD-MODEL-REFUSED", "acme:Own"]
        desk.refused("compare", *run[:3], "--allow-unquantized", says=says)


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="it is installed")
def test_a_library_that_is_not_there(desk: Any) -> None:
    flags = ["compare", "net.onnx", "--inputs", "data.npz", "--backend", "tensorrt"]
    desk.refused(
        *flags,
        says=["QD-USAGE-BACKEND-NOT-INSTALLED", "pip install tensorrt", "tensorrt-rtx"],
        spawn=True,
    )
