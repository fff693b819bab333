"""A framework's outputs against the ONNX model: pairs of models that differ in one planted thing,
of which one stands for the framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # registers bfloat16 with numpy
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from half_networks import Builder
from onnx import numpy_helper

import qdebug
from qdebug.display.framework import framework_blocks
from qdebug.errors import ModelError, SampleError
from qdebug.results.compare import CompareResult
from qdebug.results.framework import FrameworkResult

RANDOM = np.random.default_rng(3)
PICTURES = RANDOM.uniform(0, 1, (10, 3, 8, 8)).astype(np.float32)
VECTORS = RANDOM.normal(size=(10, 12)).astype(np.float32)


def pictures(
    mode: str = "linear", align: str = "half_pixel", pad: str = "constant", **changed: Any
) -> onnx.ModelProto:
    b = Builder(7)
    padded = b.add("Pad", "x", b.constant([0, 0, 1, 1, 0, 0, 1, 1], np.int64), mode=pad)
    h = b.add("Conv", padded, b.weight(6, 3, 3, 3), b.weight(6))
    h = b.add("Relu", h)
    h = b.add(
        "Resize", h, "", b.constant([1, 1, 2, 2]), mode=mode, coordinate_transformation_mode=align
    )
    return b.model({"x": ["n", 3, 8, 8]}, [b.add("Conv", h, b.weight(4, 6, 3, 3))])


def vectors(epsilon: float = 1e-5, axis: int | None = None) -> onnx.ModelProto:
    """With an axis, the softmax is that of a matrix for each sample."""
    b = Builder(7)
    h = b.linear("x", 12, 16)
    scale, shift = b.constant(np.linspace(0.5, 1.5, 16)), b.constant(np.zeros(16))
    h = b.add("LayerNormalization", h, scale, shift, epsilon=epsilon)
    h = b.linear(b.add("Relu", h), 16, 8)
    if axis is not None:
        h = b.add("Reshape", h, b.constant([-1, 2, 4], np.int64))
    return b.model({"x": ["n", 12]}, [b.add("Softmax", h, axis=-1 if axis is None else axis)])


def rounded(model: onnx.ModelProto) -> onnx.ModelProto:
    half = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in half.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return half


def outputs(model: onnx.ModelProto, x: Any, *, every: bool = False) -> dict[str, Any]:
    """What a model gives, each value with a rounding error of its own."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    if every:
        known = {o.name for o in copy.graph.output}
        for node in copy.graph.node:
            if node.output[0] not in known:
                copy.graph.output.append(
                    onnx.helper.make_tensor_value_info(node.output[0], 1, None)
                )
    session = ort.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"x": x}), strict=True))
    noise = np.random.default_rng(0)
    return {
        n: (a * (1 + noise.uniform(-3e-7, 3e-7, a.shape))).astype(np.float32)
        for n, a in found.items()
    }


def compared(model: Any, x: Any, framework: Any, **more: Any) -> CompareResult:
    return qdebug.compare(
        model, inputs={"x": x}, framework=framework, effect="none", cache=False, **more
    )


def checked(model: Any, x: Any, framework: Any) -> FrameworkResult:
    found = compared(model, x, framework).framework
    assert found is not None
    return found


@pytest.mark.parametrize(("model", "x"), [(pictures(), PICTURES), (vectors(), VECTORS)])
def test_a_right_export(model: onnx.ModelProto, x: Any) -> None:
    found = checked(model, x, outputs(model, x, every=True))
    assert found.agrees and found.first_differing == ""
    assert all(m.agrees for m in found.modules) and len(found.modules) > 3
    assert 60 < found.limit_db <= 90


def test_outputs_that_rounding_decides_are_left_open() -> None:
    """sin(2²² a): the last bit of a is half a radian."""
    b = Builder(7)
    h = b.add("Mul", b.linear("x", 12, 8), b.constant(2.0**22))
    model = b.model({"x": ["n", 12]}, [b.add("Sin", h)])
    result = compared(model, VECTORS, outputs(model, VECTORS * np.float32(1 + 2**-22)))
    found = result.framework
    assert found is not None and found.agrees is None
    assert found.limit_db < found.worst.sqnr_db < 20
    blocks = [str(b) for b in framework_blocks(result, detailed=True)]
    assert any("cannot be told" in b for b in blocks) and not any("agrees" in b for b in blocks)
    assert result.stages[0].state == "measured"


FAULTS: Mapping[str, tuple[onnx.ModelProto, onnx.ModelProto, Any]] = {
    "interpolation": (pictures(), pictures(mode="nearest", align="asymmetric"), PICTURES),
    "interpolation ": (pictures(), pictures(align="align_corners"), PICTURES),
    "padding": (pictures(), pictures(pad="reflect"), PICTURES),
    "epsilon": (vectors(), vectors(epsilon=1e-3), VECTORS),
    "softmax-axis": (vectors(axis=2), vectors(axis=1), VECTORS),
    "half-weights": (vectors(), rounded(vectors()), VECTORS),
    "half-weights ": (rounded(vectors()), vectors(), VECTORS),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen_in_the_outputs(fault: str) -> None:
    right, wrong, x = FAULTS[fault]
    found = checked(wrong, x, outputs(right, x))
    assert found.agrees is False and found.worst.sqnr_db < found.limit_db


@pytest.mark.parametrize("batch_size", [3, 10])
def test_samples_in_another_order(batch_size: int) -> None:
    model = vectors()
    right = {n: np.ascontiguousarray(a[::-1]) for n, a in outputs(model, VECTORS).items()}
    found = compared(model, VECTORS, right, batch_size=batch_size).framework
    assert found is not None and found.agrees is False


def recurrent() -> onnx.ModelProto:
    """Gives [time, samples, 8] twice."""
    b = Builder(7)
    h = b.add("Transpose", b.linear("x", 6, 8), perm=[1, 0, 2])
    return b.model({"x": ["n", 5, 6]}, [b.add("Relu", h), b.add("Tanh", h)])


SEQUENCES = RANDOM.normal(size=(10, 5, 6)).astype(np.float32)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("how", ["as the model", "samples first", "function", "too few"])
def test_samples_on_another_axis(how: str, batch_size: int) -> None:
    """As a recurrent network gives them; the runtime's own outputs are taken as they are."""
    model = recurrent()
    right = outputs(model, SEQUENCES)
    given = {n: a.transpose(1, 0, 2) for n, a in right.items()} if how == "samples first" else right
    more: Any = {"batch_size": batch_size}
    if how == "too few":
        with pytest.raises(
            SampleError, match=r"has shape \[5, 9, 8\], and 10 samples are compared"
        ):
            compared(model, SEQUENCES, without(right, lambda a: a[:, :9]), **more)
        return
    found = compared(model, SEQUENCES, given, **more).framework
    assert found is not None and found.agrees


@pytest.mark.parametrize(("name", "limit_db"), [("float16", 66.2), ("bfloat16", 48.2)])
def test_outputs_that_were_stored_in_a_half_type(name: str, limit_db: float) -> None:
    """They are off by the rounding of what was stored, which says nothing of the export; whether
    they still are of that type or not."""
    model = pictures()
    half = {n: a.astype(np.dtype(name)) for n, a in outputs(model, PICTURES).items()}
    for given in (half, {n: a.astype(np.float32) for n, a in half.items()}):
        found = checked(model, PICTURES, given)
        assert found.agrees and found.limit_db == pytest.approx(limit_db, abs=0.1)
        assert limit_db < found.worst.sqnr_db < limit_db + 10


def test_the_first_tensor_that_differs() -> None:
    right, wrong = vectors(), vectors()
    weight = next(t for t in wrong.graph.initializer if list(t.dims) == [16, 8])
    values = RANDOM.normal(size=(16, 8)).astype(np.float32)
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    found = checked(wrong, VECTORS, outputs(right, VECTORS, every=True))
    assert (found.last_agreeing, found.first_differing) == ("t3", "t4")
    found = checked(wrong, VECTORS, outputs(right, VECTORS))
    assert found.agrees is False and found.first_differing == ""


def test_the_headline_begins_with_the_export() -> None:
    """What INT8 costs follows: it is measured against the ONNX model's own FP32."""
    right, wrong, x = FAULTS["interpolation"]
    given = outputs(right, x, every=True)
    result = qdebug.compare(wrong, inputs={"x": x}, framework=given, cache=False)
    said = result.VIEWS.summary(result)
    assert said.startswith("The ONNX model differs from the framework") and "INT8" in said
    assert "The first difference is at t3, " in result.headline()
    assert result.stages[0].told.endswith(", first at t3")
    assert CompareResult.from_dict(result.to_dict()).framework == result.framework


def test_the_score_of_the_framework() -> None:
    model, labels = vectors(), np.arange(10) % 8
    right = outputs(model, VECTORS)
    name = next(iter(right))
    data = {"x": VECTORS, "labels": labels}
    result = qdebug.compare(
        model,
        inputs=data,
        framework={name: np.eye(8)[labels]},
        metric="top1",
        effect="none",
        cache=False,
    )
    assert result.framework is not None and result.framework.score == 1.0


def channels_last(arrays: dict[str, Any]) -> dict[str, Any]:
    return {n: a.transpose(0, 2, 3, 1) for n, a in arrays.items()}


@pytest.mark.parametrize("how", ["order", "one", "last", "npz", "h5", "folder", "feeds"])
def test_the_arrays_may_come_in_many_ways(how: str, tmp_path: Path) -> None:
    import h5py

    model = pictures()
    right = outputs(model, PICTURES)
    name, array = next(iter(right.items()))
    given: Any = {
        "order": {"output_0": array},
        "one": array,
        "last": channels_last(right),
        "npz": str(tmp_path / "o.npz"),
        "h5": str(tmp_path / "o.h5"),
        "folder": str(tmp_path / "folder"),
        "feeds": [{name: row} for row in array],
    }[how]
    np.savez(tmp_path / "o.npz", **right)
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / f"{name}.npy", array)
    with h5py.File(tmp_path / "o.h5", "w") as file:
        file[name] = array
    assert checked(model, PICTURES, given).agrees


SCRIPT = """
import onnxruntime
session = onnxruntime.InferenceSession({path!r}, providers=["CPUExecutionProvider"])

def run(feeds):
    return session.run(None, feeds)

def broken(feeds):
    return feeds["y"]
"""


def test_a_function_that_runs_the_framework(tmp_path: Path) -> None:
    onnx.save(vectors(), tmp_path / "right.onnx")
    (tmp_path / "torch_run.py").write_text(SCRIPT.format(path=str(tmp_path / "right.onnx")))
    assert checked(vectors(), VECTORS, f"{tmp_path}/torch_run.py:run").agrees
    with pytest.raises(SampleError, match="KeyError") as caught:
        checked(vectors(), VECTORS, f"{tmp_path}/torch_run.py:broken")
    assert caught.value.code == "QD-SAMPLES-FRAMEWORK"


def without(arrays: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: change(array.copy()) for name, array in arrays.items()}


def with_nan(array: Any) -> Any:
    array[4, 0] = np.nan
    return array


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a[:9], "10 samples are compared"),
        (lambda a: np.concatenate([a, a]), "10 samples are compared"),
        (with_nan, "sample 4"),
        (lambda a: np.full_like(a, np.nan), "sample 0"),
        (lambda a: a[:, :5], "and the model gives ["),
    ],
)
def test_arrays_that_are_refused(change: Any, words: str) -> None:
    with pytest.raises(SampleError) as caught:
        checked(vectors(), VECTORS, without(outputs(vectors(), VECTORS), change))
    assert caught.value.code == "QD-SAMPLES-FRAMEWORK" and words in caught.value.message


def test_names_that_match_nothing() -> None:
    given = outputs(vectors(), VECTORS)
    name = next(iter(given))
    found = checked(vectors(), VECTORS, {**given, "no.such.layer": given[name]})
    assert [u.tensor for u in found.unmatched] == ["no.such.layer"]
    with pytest.raises(SampleError, match="none of its arrays"):
        checked(vectors(), VECTORS, {"a": given[name], "b": given[name]})


def test_an_array_with_other_rows_is_left_out() -> None:
    """It says which one; an output is never left out."""
    given = outputs(vectors(), VECTORS)
    name, array = next(iter(given.items()))
    windows = np.concatenate([array, array])
    found = checked(vectors(), VECTORS, {"windows": windows, **given})
    assert found.agrees
    assert [(u.tensor, u.reason) for u in found.unmatched] == [
        ("windows", "it has 20 rows for 10 samples")
    ]
    for other in (name, "output_1"):
        with pytest.raises(SampleError, match=f"'{other}': it has 20 rows for 10 samples"):
            checked(vectors(), VECTORS, {"t4": array, "t3": array, other: windows})


def test_bisect_searches_a_right_export_only() -> None:
    right, wrong, x = FAULTS["interpolation"]
    asked: Any = {"inputs": {"x": x}, "framework": outputs(right, x), "target": "output.cosine>=0"}
    result = qdebug.bisect(right, **asked, cache=False)
    assert result.passed and result.framework is not None and result.framework.agrees
    with pytest.raises(ModelError, match="differs from the framework") as caught:
        qdebug.bisect(wrong, **asked, cache=False)
    assert caught.value.code == "QD-MODEL-EXPORT"
    assert "Export the network again" in str(caught.value.hint)


def test_check_tells_of_the_export_too() -> None:
    right, wrong, x = FAULTS["interpolation"]
    for model, passed in ((right, True), (wrong, False)):
        result = qdebug.check(model, inputs={"x": x}, framework=outputs(right, x), samples=6)
        assert result.framework is not None and result.framework.samples == 6
        (found,) = [f for f in result.findings if f.kind == "export"]
        assert result.passed == passed == (found.severity == "note")
