"""Where time and memory go, and what costs time: on small engines whose figures are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdebug.engine_info.files.layer_info import WEIGHTS, with_macs
from qdebug.engine_info.files.onnx_file import info_of_graph
from qdebug.engine_info.flow import unread_dequantizers
from qdebug.engine_info.layers import (
    BuildEvent,
    EngineInfo,
    EngineLayer,
    EventKind,
    InfoSource,
    UnequalScales,
)
from qdebug.engine_info.lints import LINTS, Lint, lint
from qdebug.engine_info.measurements import Device
from qdebug.engine_info.summary import (
    bounds,
    by_precision,
    by_tactic,
    by_type,
    gate_values,
    summarize,
)
from qdebug.engine_info.tensors import EngineTensor
from qdebug.network.graph import Graph

SHAPE = (1, 32, 8, 8)


def tensor(name: str, dtype: str, dims: tuple[int, ...] = SHAPE) -> EngineTensor:
    return EngineTensor(name, dtype, dtype, dims)


def layer(name: str, kind: str, reads: str, writes: str, **fields: Any) -> EngineLayer:
    """`reads` and `writes` are such as "x:int8 s:fp16"."""
    ends = [tuple(tensor(*word.split(":")) for word in text.split()) for text in (reads, writes)]
    nodes = tuple(name.split(" + ")) if kind != "Reformat" else ()
    return EngineLayer(name, kind, *ends, onnx_nodes=nodes, **fields)


def conv(name: str, reads: str, writes: str, dtype: str = "int8", **fields: Any) -> EngineLayer:
    weights = EngineTensor(WEIGHTS, dtype, dims=(32 * 32 * 9,))
    return with_macs(layer(name, "CaskConvolution", reads, writes, constants=(weights,), **fields))


def engine(*layers: EngineLayer, **fields: Any) -> EngineInfo:
    return EngineInfo(layers, InfoSource.LAYER_INFO, **fields)


def only(info: EngineInfo, code: str) -> Lint:
    (found,) = (x for x in lint(info) if x.code == code)
    assert code in LINTS
    return found


def test_products_without_tensor_cores_are_known_by_their_kernels() -> None:
    slow = conv("a", "x:int8", "y:int8", tactic="ampere_int8x4_icudnn_int8x4_v1", time_ms=0.25)
    fast = conv("b", "y:int8", "z:int8", tactic="sm80_i8i8_i8i32_f32_tensor16x8x32")
    unnamed = conv("c", "z:int8", "w:int8", tactic="0x1234")
    found = only(engine(slow, fast, unnamed), "no-tensor-cores")
    assert (found.layers, found.ms) == (("a",), 0.25)


def test_int8_that_is_written_as_fp32() -> None:
    info = engine(conv("a", "x:int8", "y:fp32", time_ms=1.0), conv("b", "z:int8", "v:fp16"))
    found = only(info, "wide-output")
    assert found.layers == ("a",) and "0.00819 MB" in found.evidence  # 4 × 32 × 64


def test_channels_that_leave_vectors_empty() -> None:
    def of(channels: int, dtype: str) -> EngineInfo:
        dims = (1, channels, 8, 8)
        made = replace(conv("a", f"x:{dtype}", f"y:{dtype}", dtype), outputs=(
            tensor("y", dtype, dims),
        ))  # fmt: skip
        return engine(made)

    assert "24" in only(of(24, "int8"), "odd-channels").evidence
    for channels, dtype in ((64, "int8"), (24, "fp16"), (1000, "int8"), (3, "int8")):
        assert not [x for x in lint(of(channels, dtype)) if x.code == "odd-channels"]


def test_copies_that_convert_and_quantizers_alone() -> None:
    """The residual of an Add is read in FP16: so its product writes that, and another quantizes."""
    info = engine(
        layer("copy", "Reformat", "in:fp32", "x:fp16", time_ms=0.5),
        conv("a", "x:fp16", "y:fp16", "fp16"),
        layer("q", "Reformat", "y:fp16", "yq:int8", origin="QDQ", time_ms=0.125),
        conv("b + add", "yq:int8 y:fp16", "z:fp16"),
    )
    assert only(info, "converting-copy").layers == ("copy",)
    found = only(info, "quantizer-alone")
    assert (found.layers, found.ms) == (("q",), 0.125)
    assert "'b + add'" in found.evidence and "residual" in found.advice
    assert [x.code for x in lint(info)] == ["converting-copy", "quantizer-alone"]  # most time first


def test_operations_that_only_move_data_where_they_take_time() -> None:
    def made(ms: float) -> EngineInfo:
        pad = layer("pad", "Padding", "x:int8", "y:int8", time_ms=ms)
        return engine(pad, conv("a", "y:int8", "z:int8", time_ms=1.0))

    found = only(made(0.25), "data-movement")
    assert (found.layers, found.ms) == (("pad",), 0.25) and "1 × Padding" in found.evidence
    assert not [x for x in lint(made(0.005)) if x.code == "data-movement"]


FUSED = [conv(f"Conv_{k} + Relu_{k}", f"a{k}:int8", f"b{k}:int8") for k in (1, 2)]


@pytest.mark.parametrize(
    ("between", "why"),
    [
        ([layer("p", "Pooling", "c:int8", "d:int8")], "'p' reads"),
        ([layer("r", "Reformat", "c:int8", "c2:fp16")], "type changes"),
        ([layer("r", "Reformat", "c:int8", "c2:int8")], "format changes"),
        ([layer("r", "Reformat", "c:int8", "c2:int8", origin="QDQ")], "Q/DQ"),
        ([layer("r", "Shuffle", "c:int8", "c2:int8")], "'r' changes the shape"),
        ([], "no kernel has both"),
    ],
)
def test_what_is_fused_elsewhere_is_told_with_a_likely_reason(
    between: list[EngineLayer], why: str
) -> None:
    read = "c2" if between and between[0].name == "r" else "c"
    lone = layer("Relu_3", "PointWise", f"{read}:int8", "e:int8")
    info = engine(*FUSED, conv("Conv_3", "b2:int8", "c:int8"), *between, lone)
    found = only(info, "not-fused")
    assert found.layers == ("Relu_3",) and why in found.evidence and "likely" in found.evidence


def test_an_output_stands_between() -> None:
    lone = layer("Relu_3", "PointWise", "c:int8", "e:int8")
    made = conv("Conv_3", "b2:int8", "c:int8")
    found = only(engine(*FUSED, made, lone, io=(EngineTensor("c"),)), "not-fused")
    assert "output of the engine" in found.evidence


def test_dla_fallbacks_are_the_builder_s_words() -> None:
    text = "Default DLA is enabled but layer Softmax_9 is not supported on DLA, falling back to GPU"
    found = only(engine(events=(BuildEvent(EventKind.WARNING, text),)), "dla-fallback")
    assert found.layers == ("Softmax_9",)


def _concat(scales: tuple[float, float]) -> Graph:
    node = onnx.helper.make_node
    pairs = [
        node(op, [f"{a}{k}", f"s{k}"], [f"{b}{k}"], f"{op}_{k}")
        for k in (0, 1)
        for op, a, b in (("QuantizeLinear", "x", "q"), ("DequantizeLinear", "q", "d"))
    ]
    value = onnx.helper.make_tensor_value_info
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [*pairs, node("Concat", ["d0", "d1"], ["y"], "cat", axis=0)],
        "g",
        [value(f"x{k}", kind, [2]) for k in (0, 1)],
        [value("y", kind, [4])],
        [
            onnx.numpy_helper.from_array(np.array(s, np.float32), f"s{k}")
            for k, s in enumerate(scales)
        ],
    )
    return Graph.inferred(onnx.helper.make_model(graph))


def test_unequal_scales_at_a_concat_and_the_copies_they_cost() -> None:
    assert info_of_graph(_concat((0.5, 0.5))).unequal_scales == ()
    (found,) = info_of_graph(_concat((0.5, 0.25))).unequal_scales
    assert found == UnequalScales("cat", (0.5, 0.25))
    copy = layer(
        "Reformatting CopyNode for Input Tensor 0 to cat", "Reformat", "a:int8", "b:int8",
        time_ms=0.5,
    )  # fmt: skip
    told = only(engine(copy, unequal_scales=(found,)), "unequal-scales")
    assert (told.layers, told.ms) == (("cat",), 0.5) and "0.25" in told.evidence
    # What a model asks for is not yet a kernel, which may cost time.
    assert [x.code for x in lint(info_of_graph(_concat((0.5, 0.25))))] == ["unequal-scales"]
    made = conv("a", "x:int8", "y:fp32")
    assert lint(replace(engine(made), source=InfoSource.ONNX)) == ()


def test_a_residual_s_own_pair_is_not_superfluous() -> None:
    """conv(dq(q(x))) + dq(q(r)): the recommended placement, with which the Add is fused."""
    node = onnx.helper.make_node
    pairs = [
        node(op, [f"{a}{k}", "s"], [f"{b}{k}"], f"{op}_{k}")
        for k in ("x", "r")
        for op, a, b in (("QuantizeLinear", "", "q"), ("DequantizeLinear", "q", "d"))
    ]
    value = onnx.helper.make_tensor_value_info
    kind, shape = onnx.TensorProto.FLOAT, [1, 4, 8, 8]

    def graph(*last: onnx.NodeProto) -> Graph:
        made = onnx.helper.make_graph(
            [*pairs, node("Conv", ["dx", "w"], ["c"], "conv"), *last],
            "g",
            [value(k, kind, shape) for k in ("x", "r")],
            [value("y", kind, shape)],
            [onnx.numpy_helper.from_array(np.array(0.1, np.float32), "s"),
             onnx.numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "w")],
        )  # fmt: skip
        return Graph.inferred(onnx.helper.make_model(made))

    residual = graph(node("Add", ["c", "dr"], ["y"], "add"))
    assert "DequantizeLinear_r" not in unread_dequantizers(info_of_graph(residual))
    alone = graph(node("Relu", ["c"], ["v"], "relu"), node("Mul", ["v", "dr"], ["y"], "mul"))
    assert "DequantizeLinear_r" in unread_dequantizers(info_of_graph(alone))


def test_a_product_is_bound_by_its_work_or_by_its_bytes() -> None:
    """32 · 32 · 9 · 64 multiply-accumulates; 32 · 64 bytes in and out, and 32 · 32 · 9 held."""
    made = conv("a", "x:int8", "y:int8", time_ms=1e-3)
    assert (made.macs, made.bytes_moved) == (589_824, 4096 + 9216)
    device = Device("a GPU", (8, 0), 1, 1.0, 1000.0)  # 2048 · 10⁹ a second; 10¹² bytes a second
    (bound,) = bounds(engine(made, device=device))
    assert bound.intensity == pytest.approx(2 * 589_824 / 13_312)
    assert (bound.limit, bound.bound_ms) == ("compute", pytest.approx(589_824 / 2048e9 * 1e3))
    assert bound.reached == pytest.approx(0.288)
    (bound,) = bounds(engine(made, device=replace(device, bandwidth_gb_s=1.0)))
    assert (bound.limit, bound.bound_ms) == ("memory", pytest.approx(13_312 / 1e9 * 1e3))
    (bound,) = bounds(engine(made))
    assert (bound.limit, bound.bound_ms, bound.reached) == (None, None, None)


TYPES = st.sampled_from(["int8", "fp16", "fp32", ""])
LAYERS = st.lists(
    st.builds(
        lambda kind, dtype, ms, tactic: layer(
            f"{kind}_{tactic}", kind, f"x:{dtype}", f"y:{dtype}", time_ms=ms, tactic=tactic
        ),
        st.sampled_from(["CaskConvolution", "Reformat", "Myelin", "PointWise", "NoOp"]),
        TYPES,
        st.none() | st.floats(0, 10),
        st.sampled_from(["", "0x1", "k1", "k2"]),
    ),
    max_size=8,
)


@given(LAYERS)
def test_tables_sum_up(layers: list[EngineLayer]) -> None:
    info = engine(*layers)
    summary, values = summarize(info), gate_values(summarize(info))
    times = [x.time_ms for x in layers if x.time_ms is not None]
    for groups in (by_precision(info), by_type(info)):
        assert sum(g.layers for g in groups) == len(layers) == values["layer_count"]
        assert sum(g.ms or 0 for g in groups) == pytest.approx(sum(times))
        shares = [g.share for g in groups if g.share is not None]
        assert sum(shares) == pytest.approx(1 if sum(times) > 0 else 0)
    assert sum(g.layers for g in by_tactic(info)) == sum(x.tactic[:1] == "k" for x in layers)
    products = sum(x.layer_type == "CaskConvolution" for x in layers)
    assert sum(s.products for s in summary.shares) == products
    known = [values[f"{p}_share"] for p in ("int8", "fp16", "fp32")]
    opaque = any(x.layer_type == "Myelin" for x in layers)
    if opaque or any(s.precision == "" for s in summary.shares) or not products:
        assert known == [None] * 3
    else:
        assert sum(v or 0 for v in known) == pytest.approx(1)
