"""Networks whose activations have outlier channels, as trained transformers often have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import numpy_helper


def with_outlier_channels(
    model: onnx.ModelProto, channels: Sequence[int], factor: float
) -> onnx.ModelProto:
    """`model` with the same function, in which some channels behind each LayerNormalization that
    only MatMuls by constants read are `factor` times as large, and the weights take that back."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    values = {t.name: t for t in graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for tensor in node.input:
            readers.setdefault(tensor, []).append(node)
    for norm in graph.node:
        reading = readers.get(norm.output[0], []) if norm.op_type == "LayerNormalization" else []
        if not reading or any(n.op_type != "MatMul" or n.input[1] not in values for n in reading):
            continue
        factors = np.ones(tuple(values[norm.input[1]].dims), np.float32)
        factors[list(channels)] = factor
        for name in norm.input[1:]:
            _scale(values[name], factors)
        for name in {node.input[1] for node in reading}:
            _scale(values[name], 1 / factors[:, None])
    return changed


def _scale(tensor: onnx.TensorProto, factors: np.ndarray) -> None:
    array = (numpy_helper.to_array(tensor) * factors).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
