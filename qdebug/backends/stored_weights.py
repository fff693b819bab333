"""Large weights of sessions: mapped once for all of them, and dequantized once where that is cheap.

A session of ONNX Runtime maps the external data of its own model, so that several sessions of one
model count the same memory several times, and dequantizes INT8 weights in every execution.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import onnx
from onnx import TensorProto

from qdebug.backends.stream import available_cores
from qdebug.formats.registry import INT8
from qdebug.network.weights import Place, place_of, renamed, tensor_of, values_of

DEQUANTIZED_BYTES = 512 << 20
"""Weights that take more than this in FP32 are dequantized in every execution: they would take four
times the memory, and be read from the disk where that is not there."""

_LOCK = threading.Lock()
_MAPPED: WeakValueDictionary[tuple[Place, int, tuple[int, ...]], Any] = WeakValueDictionary()
_DEQUANTIZED: dict[str, TensorProto] = {}


def mapped_values(tensors: Iterable[TensorProto]) -> dict[str, Any]:
    """OrtValues of those constants that are external data, by name: the same one for the same data
    as long as anybody holds it. Who hands them to a session keeps them for as long as it lives."""
    import onnxruntime as ort

    found: dict[str, Any] = {}
    with _LOCK:
        for tensor in tensors:
            place = place_of(tensor)
            if place is None or place.offset % _item_bytes(tensor):
                continue
            key = (place, tensor.data_type, tuple(tensor.dims))
            value = _MAPPED.get(key)
            if value is None:
                value = ort.OrtValue.ortvalue_from_numpy(values_of(tensor))
                _MAPPED[key] = value
            found[tensor.name] = value
    return found


def dequantized(proto: onnx.ModelProto, kept: Collection[str]) -> onnx.ModelProto:
    """`proto` with the FP32 values of its INT8 weights in place of DequantizeLinear nodes, to the
    bit; itself where there are none or they take too much. The tensors `kept` stay computed.

    Raises:
        StoreError: the temporary file cannot be written.
    """
    stored = {t.name: t for t in proto.graph.initializer}
    kept = {*kept, *(v.name for v in proto.graph.output)}
    found = [n for n in proto.graph.node if _is_of_weight(n, stored) and n.output[0] not in kept]
    size = sum(4 * int(np.prod(stored[n.input[0]].dims)) for n in found)
    if not 0 < size <= DEQUANTIZED_BYTES:
        return proto
    plain = onnx.ModelProto()
    plain.CopyFrom(proto)
    outputs = {n.output[0] for n in found}
    rest = [n for n in plain.graph.node if not (n.output and n.output[0] in outputs)]
    del plain.graph.node[:]
    plain.graph.node.extend(rest)
    with _LOCK, ThreadPoolExecutor(available_cores()) as pool:  # for all sessions that wait, too
        values = list(pool.map(lambda n: _values(n, stored), found))
    plain.graph.initializer.extend(map(renamed, values, (n.output[0] for n in found)))
    return plain


def _item_bytes(tensor: TensorProto) -> int:
    return int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _is_of_weight(node: onnx.NodeProto, stored: Mapping[str, TensorProto]) -> bool:
    """Whether a node dequantizes external data by constant scales alone, per tensor or channel, to
    FP32."""
    if node.op_type != "DequantizeLinear" or node.domain not in ("", "ai.onnx"):
        return False
    inputs = [stored.get(name) for name in node.input if name]
    if any(t is None for t in inputs) or any(a.name != "axis" for a in node.attribute):
        return False
    codes, scale, *zero = (t for t in inputs if t is not None)
    flat = scale.data_type == TensorProto.FLOAT and len(scale.dims) <= 1
    symmetric = not any(values_of(t).any() for t in zero)
    is_large = codes.data_type == TensorProto.INT8 and place_of(codes) is not None
    return flat and symmetric and is_large


def _values(node: onnx.NodeProto, stored: Mapping[str, TensorProto]) -> TensorProto:
    """What a node gives, made once for its inputs."""
    codes, *others = (stored[name] for name in node.input if name)
    place = place_of(codes)
    assert place is not None
    scale = values_of(others[0])
    given = next((int(a.i) for a in node.attribute), 1)
    axis = given if scale.size > 1 else None
    key = hashlib.sha256(repr((place.digest, *codes.dims, axis, scale.tobytes())).encode())
    digest = key.hexdigest()
    if digest not in _DEQUANTIZED:
        values = INT8.decode(values_of(codes), scale, axis)
        _DEQUANTIZED[digest] = tensor_of(values, "values", digest)
    return _DEQUANTIZED[digest]
