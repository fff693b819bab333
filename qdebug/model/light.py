"""A model without the data of its weights, for what only asks about names, types and shapes."""

from __future__ import annotations

import onnx
from google.protobuf.message import Message
from onnx import TensorProto

from qdebug.model.graph import FLOAT_TYPES

_KEPT_BYTES = 1024
"""Shape inference reads the factors of a Resize; no weight that it reads is larger."""


def without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `proto` in which larger floating-point initializers have name, type and shape, but
    no data."""
    light = onnx.ModelProto()
    _copy_fields(proto, light, "graph")
    _copy_fields(proto.graph, light.graph, "initializer")
    for tensor in proto.graph.initializer:
        if tensor.data_type in FLOAT_TYPES and tensor.ByteSize() > _KEPT_BYTES:
            stub = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            light.graph.initializer.append(stub)
        else:
            light.graph.initializer.append(tensor)
    return light


def _copy_fields(source: Message, target: Message, left_out: str) -> None:
    for field, value in source.ListFields():
        if field.name == left_out:
            continue
        if isinstance(value, Message):
            getattr(target, field.name).CopyFrom(value)
        elif isinstance(value, str | bytes | int | float):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).extend(value)
