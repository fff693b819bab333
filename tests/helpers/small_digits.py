"""A network of three layers that reads digits, fitted while tests wait: for where a trained network
is needed, and its size is not the point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

_CHANNELS = 16
_REGULAR = 3.0
"""Of the least squares: more gives smaller weights."""


def small_digits(holdout: Path, unseen: int) -> onnx.ModelProto:
    """Conv "stem", Conv "depthwise" and Gemm "classifier": filters are random, the last layer is
    fitted by least squares. It finds 98 % of the `unseen` first digits of `holdout`, which are left
    out, and of the others. Input `input` [N, 1, 8, 8], output `logits` [N, 10]."""
    with np.load(holdout) as data:
        images, labels = data["input"][unseen:], data["labels"][unseen:]
    rng = np.random.default_rng(0)
    filters = {
        "stem.weight": rng.normal(0, 0.5, (_CHANNELS, 1, 3, 3)),
        "stem.bias": rng.normal(0, 0.1, _CHANNELS),
        "depthwise.weight": rng.normal(0, 0.4, (_CHANNELS, 1, 3, 3)),
        "depthwise.bias": rng.normal(0, 0.1, _CHANNELS),
    }
    features = _model(filters, "features", 16 * _CHANNELS)
    session = onnxruntime.InferenceSession(
        features.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found = session.run(None, {"input": images})[0].astype(np.float64)
    known = np.c_[found, np.ones(len(found))]
    ridge = known.T @ known + _REGULAR * np.eye(known.shape[1])
    fitted = np.linalg.solve(ridge, known.T @ (10 * np.eye(10)[labels]))
    last = {"classifier.weight": fitted[:-1].T, "classifier.bias": fitted[-1]}
    return _model(filters | last, "logits", 10)


def _model(weights: dict[str, Any], output: str, width: int) -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("Conv", ["input", "stem.weight", "stem.bias"], ["a"], "stem", pads=[1] * 4),
        node("Relu", ["a"], ["b"], "stem/act"),
        node(
            "Conv",
            ["b", "depthwise.weight", "depthwise.bias"],
            ["c"],
            "depthwise",
            pads=[1] * 4,
            group=_CHANNELS,
            strides=[2, 2],
        ),
        node("Relu", ["c"], ["d"], "depthwise/act"),
        node("Flatten", ["d"], ["features"], "flatten"),
    ]
    if output != "features":
        read = ["features", "classifier.weight", "classifier.bias"]
        nodes.append(node("Gemm", read, [output], "classifier", transB=1))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", width])],
        [
            numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name)
            for name, value in weights.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
