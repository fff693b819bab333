"""Samples in every format, batches, and the memory budget: the numbers stay the same."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image

from qdebug.analyse.tensor_errors import PairTotals
from qdebug.run.runner import Runner

DROPPED = ("timings_s", "notes")


def numbers(result: Any) -> Any:
    return {k: v for k, v in result.items() if k not in DROPPED}


def close(a: Any, b: Any, rel: float = 1e-6) -> None:
    """Every metric of every tensor and layer of two results."""
    for part in ("outputs", "tensors", "layers"):
        left, right = ({x["name"]: x for x in result[part]} for result in (a, b))
        assert list(left) == list(right)
        for name, values in left.items():
            for metric, value in values.items():
                if isinstance(value, float) and metric not in ("mean_abs_err",):
                    expected = pytest.approx(right[name][metric], rel=rel, abs=1e-7)
                    assert value == expected, (name, metric)


def alike(metric: Any, other: Any) -> None:
    """The same score and worst samples; their losses are as exact as the outputs."""
    for each, its in zip(metric.pop("worst"), other["worst"], strict=True):
        assert each == pytest.approx(its, rel=1e-3, abs=1e-6)
    assert metric == {name: value for name, value in other.items() if name != "worst"}


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each pass over the samples compared."""
    seen: list[int] = []
    run = Runner.run

    def counted(one: Runner, variants: Any, reducers: Any, *rest: Any, **named: Any) -> Any:
        seen.extend(len(x.tensors) for x in reducers.values() if isinstance(x, PairTotals))
        return run(one, variants, reducers, *rest, **named)

    monkeypatch.setattr(Runner, "run", counted)
    return seen


def test_memory_budget_changes_nothing(desk: Any, passes: list[int]) -> None:
    """But for the rounding of Conv and ReLU, which ONNX Runtime fuses where it can."""
    flags = ("--calib-data", "calib.npz", "--metric", "top1", "--batch-size", "2")
    whole = desk.result(*flags)
    assert passes == [8]
    for budget, least in (("1", 8), ("20K", 2)):
        passes.clear()
        parts = desk.result(*flags, "--memory-budget", budget)
        assert len(passes) >= least and sum(passes) == 8
        close(parts, whole, rel=1e-4)
        assert parts["verdict"] == whole["verdict"]
        alike(parts["metric"], whole["metric"])
        assert [x["name"] for x in parts["layers"]] == [x["name"] for x in whole["layers"]]


def test_memory_budget_on_a_chain_that_nothing_fuses_is_exact(desk: Any, make: Any) -> None:
    node = helper.make_node
    nodes = [node("MatMul", [f"t{i}", "w"], [f"t{i + 1}"], f"fc{i}") for i in range(5)]
    weight = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32) / 3
    desk.save(make(nodes, {"t0": ("N", 8)}, {"t5": ("N", 8)}, {"w": weight}), "chain.onnx")
    desk.data("c.npz", t0=np.random.default_rng(1).normal(size=(40, 8)).astype(np.float32))
    run = ("compare", "chain.onnx", "--inputs", "c.npz", "--metric", "agreement", "--json", "-")
    whole, parts = desk.run(*run).json, desk.run(*run, "--memory-budget", "1").json
    gains, few = ([x["effect"].pop("metric_gain") for x in y["layers"]] for y in (whole, parts))
    assert None not in gains and few == gains
    assert numbers(whole) == numbers(parts)


def test_batch_size_changes_nothing(desk: Any) -> None:
    flags = ("--calib-data", "calib.npz", "--local-samples", "12")
    free = desk.result(*flags)
    one = desk.result(*flags, "--batch-size", "1")
    five = desk.result(*flags, "--batch-size", "5")
    close(one, free)
    close(one, five)


@pytest.mark.parametrize("kind", ["softmax", "cumsum"])
def test_a_leading_axis_that_is_no_batch_is_not_batched(desk: Any, make: Any, kind: str) -> None:
    """Rows that interact: all with all, or each with those before it."""
    node = helper.make_node
    mix = {
        "softmax": node("Softmax", ["h"], ["m"], "mix", axis=0),
        "cumsum": node("CumSum", ["h", "axis"], ["m"], "mix"),
    }[kind]
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "fc1"),
        mix,
        node("MatMul", ["m", "w"], ["y"], "fc2"),
    ]
    weights = {
        "w": np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32),
        "axis": np.array(0, np.int64),
    }
    desk.save(make(nodes, {"x": ("T", 4)}, {"y": ("T", 4)}, weights), "mix.onnx")
    desk.data("mix.npz", x=np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32))
    run = ("compare", "mix.onnx", "--inputs", "mix.npz", "--json", "-", "--local-samples", "9")
    free, one = desk.run(*run).json, desk.run(*run, "--batch-size", "1").json
    assert numbers(free) == numbers(one)


def test_fixed_batch(desk: Any, cnn: Any) -> None:
    desk.save(cnn(batch=4), "four.onnx")
    desk.save(cnn(batch=1), "one.onnx")
    args = ("--inputs", "data.npz", "--json", "-", "--local-samples", "12")
    four = desk.run("compare", "four.onnx", *args).json
    close(four, desk.run("compare", "one.onnx", *args).json)
    says = ["QD-SAMPLES-BATCH", "--batch-size 3", "4"]
    desk.refused("compare", "four.onnx", "--inputs", "data.npz", "--batch-size", "3", says=says)


def test_every_format_gives_the_same(desk: Any, pictures: Any) -> None:
    x, labels = pictures(12), np.arange(12) % 5
    Path("folder").mkdir()
    np.save("folder/x.npy", x)
    np.save("folder/labels.npy", labels)
    desk.write(
        "feeds.py",
        "import numpy as np\n"
        "def load_data():\n"
        "    data = np.load('data.npz')\n"
        "    for i in range(12):\n"
        "        yield {'x': data['x'][i:i + 1], 'labels': data['labels'][i:i + 1]}\n",
    )
    desk.write("inputs.json", json.dumps([polygraphy(x[i : i + 1]) for i in range(12)]))
    flags = ("--batch-size", "1", "--effect", "none", "--json", "-")
    expected = numbers(desk.run("compare", "net.onnx", "--inputs", "data.npz", *flags).json)
    for data in ("folder", "feeds.py:load_data", "feeds.py", "inputs.json"):
        done = desk.run("compare", "net.onnx", "--inputs", data, *flags)
        assert done.code == 0, done.err
        assert numbers(done.json) == expected, data
        if data != "inputs.json":
            scored = ("--metric", "top1", "--effect", "none")
            assert desk.run("compare", "net.onnx", "--inputs", data, *scored).code == 0


def polygraphy(x: Any) -> dict[str, Any]:
    """One feed as `polygraphy run --save-inputs` writes it."""
    import io

    buffer = io.BytesIO()
    np.save(buffer, x, allow_pickle=False)
    text = base64.b64encode(buffer.getvalue()).decode()
    return {"x": {"array": text, "polygraphy_class": "ndarray"}}


def test_fewer_samples(desk: Any) -> None:
    result = desk.result("--samples", "5", "--metric", "top1")
    assert result["samples"] == 5
    assert desk.result("--samples", "500")["samples"] == 12


@pytest.mark.parametrize("shape", [("N", 3, 4, 6), ("N", 1, 4, 6), ("N", 4, 6, 3), ("N", 4, 6, 1)])
def test_a_folder_of_pictures_alone(
    desk: Any, make: Callable[..., onnx.ModelProto], shape: tuple[Any, ...]
) -> None:
    """Nothing says how they become the input: what is assumed is the first that is said."""
    desk.save(
        make([helper.make_node("Relu", ["pic"], ["y"])], {"pic": shape}, {"y": shape}), "p.onnx"
    )
    Path("pics").mkdir()
    for number in range(2):
        pixels = np.full((9, 9, 3), 100 * number, np.uint8)
        Image.fromarray(pixels).save(f"pics/{number}.png")
    flags = ["compare", "p.onnx", "--precision", "fp32", "--inputs"]
    done = desk.run(*flags, "pics", "--json", "-")
    assert done.code == 0 and done.json["samples"] == 2
    assert done.json["outputs"][0]["ref_amax"] == pytest.approx(100 / 255)
    (read,) = done.json["data"]
    assert read["setting"] == "inputs" and read["path"] == "pics" and read["guess"]
    first = desk.run(
        *flags, "pics/1.png", "--preprocess", "none", "--shape", "pic:" + "x".join(map(str, shape))
    )
    assert first.code == 2 and "QD-SAMPLES-PICTURE-SIZE" in first.err
    shown = desk.run(*flags, "pics", "--preprocess", "yolo")
    assert shown.out.startswith("inputs pics: 2 pictures; ") and "the preset 'yolo'" in shown.out


def test_pictures_by_class_that_cannot_all_be_read(
    desk: Any, make: Callable[..., onnx.ModelProto]
) -> None:
    shape = ("N", 3, "H", "W")
    desk.save(
        make([helper.make_node("Relu", ["pic"], ["y"])], {"pic": shape}, {"y": shape}), "p.onnx"
    )
    for name, value in (("cat", 10), ("dog", 200)):
        Path("pics", name).mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(f"pics/{name}/0.png")
    Path("pics/dog/1.png").write_bytes(b"not a picture")
    flags = ["compare", "p.onnx", "--precision", "fp32", "--inputs", "pics"]
    flags += ["--shape", "Nx3x16x8"]
    done = desk.refused(*flags, says=["QD-SAMPLES-PICTURE", "1 of 3 pictures", "dog/1.png"])
    done = desk.run(*flags, "--skip-bad", "--json", "-")
    assert done.code == 0 and done.json["samples"] == 2
    assert "1 unreadable one left out" in done.json["data"][0]["told"]
