"""The work of an engine's layer, from what a detailed file says of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from qdebug.engine_info.layers import EngineLayer, Role
from qdebug.engine_info.tensors import size_of

WEIGHTS = "Weights"
"""The name of the constant that stands for a layer's weights where the file only counts them."""


def with_macs(layer: EngineLayer, convolved: Sequence[int] | None = None) -> EngineLayer:
    """`layer` with its multiply-accumulates of one execution, where its operands tell them.

    Args:
        convolved: the size of what a convolution computes, where the layer pools it.
    """
    found = _macs(layer, convolved) if layer.role is Role.MATRIX else None
    return layer if found is None else replace(layer, macs=found)


def _macs(layer: EngineLayer, convolved: Sequence[int] | None) -> float | None:
    data, out = (tensors[0].dims if tensors else None for tensors in (layer.inputs, layer.outputs))
    if data is None or out is None or any(d < 0 for d in (*data, *out)):
        return None
    kind = layer.layer_type.lower()
    if "conv" not in kind and "correlation" not in kind:
        return _of_gemm(data, [t.dims for t in (*layer.constants, *layer.inputs[1:])], out)
    # Each weight is used once at each place of the output, or of the input of a transposed one.
    count = next((size_of(t.dims) for t in layer.constants if t.name == WEIGHTS), None)
    dims = data if "deconv" in kind else out
    if count is None or len(dims) < 3:
        return None
    return count * dims[0] * math.prod(convolved or dims[2:])


def _of_gemm(
    data: Sequence[int], others: Sequence[tuple[int, ...] | None], out: Sequence[int]
) -> float | None:
    """Of [batch, M, K] × [batch, K, N], either of which may be transposed or without a batch: with
    A, B and Y the numbers of elements, √(A·B·Y) is M·K·N of all batches, or that times √batch
    where both have one. Weights that are not listed are taken to be K × N."""
    result = math.prod(out)
    if not data or not result:
        return None
    batch = math.prod(out[:-2])
    for other in others:
        if other is None or len(other) < 2 or -1 in other:
            continue
        both = batch if math.prod(data[:-2]) == batch == math.prod(other[:-2]) else 1
        found = math.sqrt(math.prod(data) * math.prod(other) * result / both)
        if found / result in data[-2:]:
            return found
    counted = next((x[0] for x in others if x is not None and len(x) == 1), None)
    if counted is not None and counted / out[-1] in data[-2:]:
        return float(result * counted / out[-1])
    alone = not any(x is None or len(x) > 1 for x in others)
    return float(result * data[-1]) if alone and data[:-1] == out[:-1] else None
