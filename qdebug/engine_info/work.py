"""The work of an engine's layer, from what a detailed file says of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from qdebug.engine_info.layers import EngineLayer, Role
from qdebug.engine_info.tensors import size_of

WEIGHTS = "Weights"
"""The name of the constant that stands for a layer's weights where the file only counts them."""


def with_macs(layer: EngineLayer) -> EngineLayer:
    """`layer` with its multiply-accumulates of one execution, where its operands tell them."""
    found = _macs(layer) if layer.role is Role.MATRIX else None
    return layer if found is None else replace(layer, macs=found)


def _macs(layer: EngineLayer) -> float | None:
    out = size_of(layer.outputs[0].dims) if layer.outputs else None
    first = size_of(layer.inputs[0].dims) if layer.inputs else None
    if out is None or first is None:
        return None
    kind = layer.layer_type.lower()
    if "conv" in kind or "correlation" in kind:
        return _of_convolution(layer, "deconv" in kind)
    others = [t.dims for t in (*layer.constants, *layer.inputs[1:])]
    return _of_gemm(layer.inputs[0].dims or (), others, layer.outputs[0].dims or ())


def _of_convolution(layer: EngineLayer, transposed: bool) -> float | None:
    """Each weight is used once at each place of the output, or of the input of a transposed one."""
    weights = next((t for t in layer.constants if t.name == WEIGHTS), None)
    count = size_of(weights.dims) if weights else None
    dims = (layer.inputs if transposed else layer.outputs)[0].dims or ()
    if count is None or len(dims) < 3:
        return None
    return count * dims[0] * math.prod(dims[2:])


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
