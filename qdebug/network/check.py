"""What every stage relies on in a model, checked once: a damaged file shows here, by its name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, TensorProto, checker, defs, helper
from onnx.external_data_helper import uses_external_data

from qdebug.errors import ModelError
from qdebug.network.subgraphs import bodies, own_names

_TYPES = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
_ATTRIBUTE_TYPES = frozenset(AttributeProto.AttributeType.values()) - {AttributeProto.UNDEFINED}
_MOST = 2**31
_SHOWN = 40
"""Bytes of a damaged text that a message shows."""
_MOST_AXES = 64
"""Of a tensor: numpy takes no more."""
_COMPLEX = frozenset({TensorProto.COMPLEX64, TensorProto.COMPLEX128})
_PACKED_BITS = {
    getattr(TensorProto, name): bits
    for name, bits in (("UINT4", 4), ("INT4", 4), ("FLOAT4E2M1", 4), ("UINT2", 2), ("INT2", 2))
    if hasattr(TensorProto, name)
}
"""Types of which several elements share a byte."""
PACKED_TYPES = frozenset(_PACKED_BITS)
_REMARKS = ("doc_string", "metadata_props")
"""Fields whose text may be anything."""
_PER_AXIS_OPSET = 13
"""The first in which QuantizeLinear and DequantizeLinear have an axis."""


class _DamagedError(Exception):
    """What is wrong, without the file, and what to do about it."""

    hint = (
        "Check it with onnx.checker.check_model; compare its size with the original, or export it "
        "again."
    )


class _OldOpsetError(_DamagedError):
    """Scales along an axis, which older operators do not have."""

    hint = (
        "A scale for each channel needs opset 13. Convert the FP32 model with "
        "onnx.version_converter.convert_version(model, 13) and quantize it again, or export it "
        "with opset_version=13 or later."
    )


def check_structure(path: Path, proto: onnx.ModelProto) -> None:
    """Make sure that names are text, that nodes fit their operators and read what there is, and
    that tensors hold as many values as their shapes say. ONNX Runtime refuses all else too.

    Raises:
        ModelError: it is otherwise.
    """
    try:
        _check_model(proto)
    except _DamagedError as error:
        raise ModelError(
            f"{path}: not a valid ONNX model: {error}", error.hint, code="QD-MODEL-INVALID"
        ) from error


def _check_model(proto: onnx.ModelProto) -> None:
    for what, text in _texts(proto):
        if isinstance(text, bytes):
            raise _DamagedError(f"{what} is not UTF-8 text: {text[:_SHOWN]!r}")
        if "\0" in text:
            raise _DamagedError(f"{what} holds a zero byte: '{text}'")
    versions = [proto.ir_version, *(o.version for o in proto.opset_import)]
    if not all(0 <= version < _MOST for version in versions):
        raise _DamagedError(f"its versions are {versions}")
    if not proto.graph.output:
        raise _DamagedError("it has no outputs")
    context = checker.C.CheckerContext()
    context.ir_version = proto.ir_version
    context.opset_imports = {o.domain: o.version for o in proto.opset_import}
    _check_graph(proto.graph, frozenset(), context, {f.name for f in proto.functions})


def _texts(message: Message) -> Iterator[tuple[str, str | bytes]]:
    """The texts in a message, each with what it is; bytes are what the protobuf library makes of
    one that is no text."""
    if isinstance(message, TensorProto):  # its data would be copied
        yield "the name of a tensor", message.name
        return
    for field, value in message.ListFields():
        if field.name not in _REMARKS and field.type in (field.TYPE_STRING, field.TYPE_MESSAGE):
            for item in [value] if isinstance(value, str | bytes | Message) else value:
                if isinstance(item, Message):
                    yield from _texts(item)
                else:
                    yield field.full_name, item


def _check_graph(
    graph: onnx.GraphProto,
    outer: frozenset[str],
    context: checker.C.CheckerContext,
    functions: set[str],
) -> None:
    """Check a graph, in which the tensors called `outer` may be read."""
    for tensor in graph.initializer:
        _check_tensor(tensor)
    written = Counter(t for node in graph.node for t in node.output if t)
    twice = next((name for name, count in written.items() if count > 1), None)
    if twice:
        raise _DamagedError(f"'{twice}' is written twice")
    visible = outer | own_names(graph) | {t.values.name for t in graph.sparse_initializer}
    for node in graph.node:
        _check_node(node, visible, context, functions)
        for body in bodies(node):
            _check_graph(body, visible, context, functions)
    missing = next((v.name for v in graph.output if v.name not in visible), None)
    if missing is not None:
        raise _DamagedError(f"nothing writes its output '{missing}'")


def _check_node(
    node: onnx.NodeProto,
    visible: frozenset[str],
    context: checker.C.CheckerContext,
    functions: set[str],
) -> None:
    called = f"node '{node.name}' ({node.op_type})"
    for attribute in node.attribute:
        if attribute.ref_attr_name:  # nodes of functions may
            what = f"'{attribute.name}' refers to an attribute of a function"
            raise _DamagedError(f"{called}: {what}")
        if attribute.type not in _ATTRIBUTE_TYPES:
            raise _DamagedError(f"{called}: '{attribute.name}' is of no known type")
        for tensor in (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors):
            _check_tensor(tensor)
    missing = next((t for t in node.input if t and t not in visible), None)
    if missing is not None:
        raise _DamagedError(f"{called} reads '{missing}', which nothing writes")
    version = context.opset_imports.get(node.domain, 0)
    standard = node.domain in ("", "ai.onnx") and defs.has(node.op_type, version, "")
    # The checker would look for outer tensors in a body.
    if node.op_type in functions or not standard or bodies(node):
        return
    try:
        checker.C.check_node(node.SerializeToString(), context, checker.LEXICAL_SCOPE_CONTEXT)
    except checker.ValidationError as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        per_axis = any(a.name == "axis" for a in node.attribute) and (
            node.op_type in ("QuantizeLinear", "DequantizeLinear")
        )
        kind = _OldOpsetError if per_axis and version < _PER_AXIS_OPSET else _DamagedError
        raise kind(f"{called}: {reason}") from error


def _check_tensor(tensor: onnx.TensorProto) -> None:
    kind, dims = tensor.data_type, tuple(tensor.dims)
    if kind not in _TYPES:
        raise _DamagedError(f"'{tensor.name}' is of the unknown type {kind}")
    if any(size < 0 for size in dims):
        raise _DamagedError(f"'{tensor.name}' has the shape {list(dims)}")
    if len(dims) > _MOST_AXES:
        raise _DamagedError(f"'{tensor.name}' has {len(dims)} axes, more than {_MOST_AXES}")
    if uses_external_data(tensor):
        return
    count, bits = math.prod(dims), _PACKED_BITS.get(kind, 0)
    if tensor.HasField("raw_data"):
        bits = bits or 8 * helper.tensor_dtype_to_np_dtype(kind).itemsize
        fits = kind != TensorProto.STRING and len(tensor.raw_data) == -(-count * bits // 8)
    elif bits:
        fits = len(tensor.int32_data) >= -(-count * bits // 8)
    else:
        held = len(getattr(tensor, helper.tensor_dtype_to_field(kind)))
        fits = held == count * (2 if kind in _COMPLEX else 1)
    if not fits:
        raise _DamagedError(f"the values of '{tensor.name}' do not fit its shape {list(dims)}")
