"""How an engine computes in FP16, and that the simulation rounds alike."""

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

from qdebug.backends.engine import CaptureWay
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.tensorrt.build.settings import BuildSettings
from qdebug.backends.tensorrt.execute.cuda import Cuda
from qdebug.backends.tensorrt.execute.session import TensorRTSession
from qdebug.backends.tensorrt.factory import EngineFactory
from qdebug.backends.tensorrt.library import Library
from qdebug.execute.engine.attribute import attribute_engine
from qdebug.metrics.tensor import sqnr_db
from qdebug.network.graph import Graph
from qdebug.results.attribution import RELEVANT_DB, TOLERANCE_DB, simulation_agreement
from qdebug.types import Fp16Kernels

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
    library: Library, cuda: Cuda, figures: dict[str, Any], op_type: str, constant: bool
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
        maker = EngineFactory(library, BuildSettings(), cuda=cuda)
        with TensorRTSession(maker.make(proto)[0]) as session:
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


def of_one(op_type: str, shape: list[int], *weights: list[int], **attributes: Any) -> Any:
    """A model of one FP16 operator, opset 19, and an input for it."""
    rng = np.random.default_rng(0)
    half, value = TensorProto.FLOAT16, helper.make_tensor_value_info
    constants = {
        f"w{i}": (rng.normal(size=s) / math.sqrt(math.prod(s[1:]))).astype(np.float16)
        for i, s in enumerate(weights)
    }
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", *constants], ["y"], **attributes)],
        "one",
        [value("x", half, shape)],
        [value("y", half, None)],
        [numpy_helper.from_array(a, name) for name, a in constants.items()],
    )
    opset = [helper.make_opsetid("", 19)]
    proto = helper.make_model(graph, opset_imports=opset, ir_version=9)
    x = rng.normal(size=shape).astype(np.float16)
    return onnx.shape_inference.infer_shapes(proto), {"x": x}


def conv(
    channels: int, outputs: int, kernel: int, *, size: int = 16, group: int = 1, stride: int = 1
) -> Any:
    """A model of one convolution with a bias, and an input for it."""
    return of_one(
        "Conv",
        [2, channels, size, size],
        [outputs, channels // group, kernel, kernel],
        [outputs],
        group=group,
        strides=[stride] * 2,
        pads=[kernel // 2] * 4,
    )


# Not here: longer sums, as of 1536 products for 256 columns, which TensorRT may split (19 % equal).
KERNELS = {
    "MatMul of 4": lambda: of_one("MatMul", [2, 32, 4], [4, 64]),
    "MatMul of 100": lambda: of_one("MatMul", [16, 100], [100, 37]),
    "MatMul of 384": lambda: of_one("MatMul", [2, 64, 384], [384, 384]),
    "MatMul of one row": lambda: of_one("MatMul", [1, 384], [384, 256]),
    "MatMul of one column": lambda: of_one("MatMul", [64, 384], [384, 1]),
    "Gemm": lambda: of_one("Gemm", [32, 512], [100, 512], [100], transB=1),
    "Gemm of one row": lambda: of_one("Gemm", [1, 512], [1000, 512], [1000], transB=1),
    "Conv of 3 channels": lambda: conv(3, 16, 3, stride=2),
    "Conv of 3 channels to 64": lambda: conv(3, 64, 7, size=64, stride=2),
    "Conv of 20 channels": lambda: conv(20, 24, 3),
    "Conv of 24 channels": lambda: conv(24, 32, 3),
    "Conv of 24 channels to 48": lambda: conv(24, 48, 1),
    "Conv of 32 channels": lambda: conv(32, 32, 1),
    "Conv of 32 channels to 64": lambda: conv(32, 64, 3, stride=2),
    "Conv of 40 channels": lambda: conv(40, 24, 5),
    "Conv of 256 channels": lambda: conv(256, 128, 3),
    "depthwise Conv": lambda: conv(32, 32, 3, group=32),
    "Conv of 4 channels a group": lambda: conv(16, 16, 3, group=4),
    "Conv of 16 channels a group": lambda: conv(64, 64, 3, group=4),
    "ConvTranspose": lambda: of_one(
        "ConvTranspose", [2, 32, 8, 8], [32, 16, 4, 4], strides=[2, 2], pads=[1] * 4
    ),
    "Softmax": lambda: of_one("Softmax", [2, 4, 64, 64], axis=-1),
    "LogSoftmax": lambda: of_one("LogSoftmax", [64, 96], axis=-1),
    "LayerNormalization": lambda: of_one("LayerNormalization", [64, 384], [384], [384]),
    "InstanceNormalization": lambda: of_one("InstanceNormalization", [2, 16, 12, 12], [16], [16]),
    "HardSigmoid": lambda: of_one("HardSigmoid", [64, 96]),
    "HardSwish": lambda: of_one("HardSwish", [64, 96]),
    "Elu": lambda: of_one("Elu", [64, 96]),
    "Selu": lambda: of_one("Selu", [64, 96]),
    "LeakyRelu": lambda: of_one("LeakyRelu", [64, 96], alpha=0.3),
    "Softplus": lambda: of_one("Softplus", [64, 96]),
    "Mish": lambda: of_one("Mish", [64, 96]),
    "Softsign": lambda: of_one("Softsign", [64, 96]),
    "ReduceSumSquare": lambda: of_one("ReduceSumSquare", [64, 96], keepdims=0),
    "Erf": lambda: of_one("Erf", [64, 96]),
    "Sigmoid": lambda: of_one("Sigmoid", [64, 96]),
    "ReduceMean": lambda: of_one("ReduceMean", [64, 384], keepdims=1),
    "GlobalAveragePool": lambda: of_one("GlobalAveragePool", [2, 64, 8, 8]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_simulated_bit_for_bit(
    library: Library, cuda: Cuda, figures: dict[str, Any], name: str
) -> None:
    proto, feeds = KERNELS[name]()
    simulation = SimulationBackend(fp16_kernels=Fp16Kernels.TENSORRT).open(proto, [])
    maker = EngineFactory(library, BuildSettings(), cuda=cuda)
    with TensorRTSession(maker.make(proto)[0]) as session:
        engine = session.run(feeds)["y"]
    simulated, exact = (
        simulation.run(feeds)["y"],
        SimulationBackend().open(proto, []).run(feeds)["y"],
    )
    equal = {"simulated": engine == simulated, "with exact sums": engine == exact}
    figures[f"bits of {name}"] = {kind: round(float(e.mean()), 4) for kind, e in equal.items()}
    print(f"{name}: {figures[f'bits of {name}']}")
    # Sums of 16 products in FP32 differ by their order: now and then enough to round otherwise.
    assert equal["simulated"].mean() >= 0.98


@pytest.mark.parametrize("net", ["digits_cnn", "face detector", "digits_encoder", "minilm"])
def test_the_simulation_predicts_fp16_that_is_summed_in_fp32(
    case: Callable[..., Any],
    figures: dict[str, Any],
    net: str,
) -> None:
    """Products between Casts are FP32 in the model, and summed so by both. TensorRT for RTX 1.6.1
    gets the last Gemm of the digits networks wrong there (below 0 dB): outputs are left out."""
    one = case(net, "fp16")
    graph = Graph(summed_in_fp32(one.lowered.graph.proto))
    job = replace(one.job, runtime=replace(one.job.runtime, ways=(CaptureWay.OUTPUTS,)))
    found = attribute_engine(job, one.reference, graph, one.lowered.tensors)
    inner = [a for a in found.attributions if a.tensor not in one.reference.outputs]
    outputs = {x.output for x in one.layers}
    layers = simulation_agreement([a for a in inner if a.tensor in outputs])
    below = [a for a in inner if not (math.isnan(a.total_db) or a.total_db >= RELEVANT_DB)]
    apart = sorted(below, key=lambda a: -abs(a.quantization_db - a.total_db))
    figures[f"fp16 summed in fp32 {net}"] = {
        "agreement": simulation_agreement(inner),
        "layers": layers,
        "latency_ms": found.latency_ms,
        "furthest apart": [
            (a.tensor, round(a.quantization_db, 2), round(a.total_db, 2)) for a in apart[:8]
        ],
        "clean": found.clean,
    }
    print(f"{net}: {simulation_agreement(inner)}, layers {layers}")
    near = [a for a in below if abs(a.quantization_db - a.total_db) <= TOLERANCE_DB]
    assert below and len(near) >= 0.95 * len(below)
    assert layers.spearman is not None and layers.spearman >= 0.98
