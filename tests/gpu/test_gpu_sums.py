"""In which precision an engine sums the products of FP16 data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sums import summed_in_fp32

from qdebug.measure.attribution import RELEVANT_DB, agreement
from qdebug.measure.metrics import sqnr_db
from qdebug.model.graph import Graph
from qdebug.pipeline.engine_run import attribute_engine
from qdebug.run.tensorrt.cuda import PyCuda
from qdebug.run.tensorrt.library import Library
from qdebug.run.tensorrt.maker import EngineMaker
from qdebug.run.tensorrt.observe.ways import CaptureWay
from qdebug.run.tensorrt.session import EngineSession
from qdebug.run.tensorrt.settings import BuildSettings

TERMS = 1536


def product(op_type: str, weights: Any, shape: list[int], *, constant: bool) -> onnx.ModelProto:
    """x in FP16 → Relu → product → y; w is a constant, or an input too."""
    half, value = TensorProto.FLOAT16, helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["r"], "relu"),
            helper.make_node(op_type, ["r", "w"], ["y"], "product"),
        ],
        "product",
        [value("x", half, shape), *([] if constant else [value("w", half, weights.shape)])],
        [value("y", half, None)],
        [numpy_helper.from_array(weights, "w")] if constant else [],
    )
    opset = [helper.make_opsetid("", 19)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opset, ir_version=9)
    )


@pytest.mark.parametrize(
    ("op_type", "constant"), [("MatMul", True), ("MatMul", False), ("Conv", True)]
)
def test_products_between_casts_are_summed_in_fp32(
    library: Library, cuda: PyCuda, figures: dict[str, Any], op_type: str, constant: bool
) -> None:
    """TensorRT folds the Casts around a MatMul: FP16 data, FP32 sums. Without them it sums in FP16:
    57 dB of 1536 terms, where rounding the result alone leaves 74."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, TERMS)).astype(np.float16)
    w = rng.normal(size=(TERMS, 256)).astype(np.float16)
    exact = np.maximum(x, 0).astype(np.float64) @ w.astype(np.float64)
    if op_type == "Conv":  # 1 × 1: the same product
        x, w = x.T[None, :, :, None], np.ascontiguousarray(w.T)[:, :, None, None]
        exact = exact.T[None, :, :, None]
    plain = product(op_type, w, list(x.shape), constant=constant)
    feeds = {"x": np.ascontiguousarray(x), **({} if constant else {"w": w})}

    def decibel(found: Any) -> float:
        apart = found.astype(np.float64) - exact
        return round(sqnr_db(float((exact**2).sum()), float((apart**2).sum())), 2)

    def engine(proto: onnx.ModelProto) -> tuple[float, float]:
        maker = EngineMaker(library, BuildSettings(), cuda=cuda)
        with EngineSession(maker.make(proto).engine) as session:
            return decibel(session.run(feeds)["y"]), session.latency_ms(feeds)

    rounded = decibel(exact.astype(np.float16))
    (alone, alone_ms), (between, between_ms) = engine(plain), engine(summed_in_fp32(plain))
    figures[f"sums of {TERMS} products, {op_type}{'' if constant else ' of two inputs'}"] = {
        "rounded to FP16 once_db": rounded,
        "FP16 product_db": alone,
        "FP16 product_ms": alone_ms,
        "between Casts_db": between,
        "between Casts_ms": between_ms,
    }
    print(f"{op_type}: {alone} dB, between Casts {between} dB, rounding alone {rounded} dB")
    assert between >= rounded - 1 and between >= alone - 0.1


@pytest.mark.parametrize(
    ("net", "tolerance_db", "spearman"),
    [
        ("digits_cnn", 1.0, 0.98),
        ("face detector", 1.0, 0.98),
        ("digits_encoder", 1.5, 0.97),
        ("minilm", 1.5, 0.98),
    ],
)
def test_the_simulation_foretells_fp16_that_is_summed_in_fp32(
    case: Callable[..., Any],
    figures: dict[str, Any],
    net: str,
    tolerance_db: float,
    spearman: float,
) -> None:
    """What the simulation computes is FP16 with sums in FP32: engines that do so agree with it, but
    for kernels of whole attentions (1.35 dB). TensorRT for RTX 1.6.1 gets the last Gemm of the
    digits networks wrong between Casts (below 0 dB), so outputs are left out."""
    one = case(net, "fp16")
    graph = Graph(summed_in_fp32(one.lowered.graph.proto))
    job = replace(one.job, ways=(CaptureWay.OUTPUTS,))
    found = attribute_engine(job, one.reference, graph, one.lowered.tensors)
    inner = [a for a in found.attributions if a.tensor not in one.reference.outputs]
    outputs = {x.output for x in one.layers}
    layers = agreement([a for a in inner if a.tensor in outputs])
    below = [a for a in inner if not (math.isnan(a.total_db) or a.total_db >= RELEVANT_DB)]
    apart = sorted(below, key=lambda a: -abs(a.quantization_db - a.total_db))
    figures[f"fp16 summed in fp32 {net}"] = {
        "agreement": agreement(inner),
        "layers": layers,
        "latency_ms": found.latency_ms,
        "furthest apart": [
            (a.tensor, round(a.quantization_db, 2), round(a.total_db, 2)) for a in apart[:8]
        ],
        "clean": found.clean,
    }
    print(f"{net}: {agreement(inner)}, layers {layers}")
    near = [a for a in below if abs(a.quantization_db - a.total_db) <= tolerance_db]
    assert below and len(near) >= 0.95 * len(below)
    assert layers.spearman is not None and layers.spearman >= spearman
