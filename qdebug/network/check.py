"""What every stage relies on in a model, checked once: a damaged file shows here, by its name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import AttributeProto, TensorProto, checker, defs, helper
from onnx.external_data_helper import uses_external_data

from qdebug.errors import ModelError

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


_PER_AXIS_OPSET = 13
"""The first in which QuantizeLinear and DequantizeLinear have an axis."""


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
            f"{path}: not a valid ONNX model: {error}",
            error.hint,
            code="QD-MODEL-INVALID",
        ) from error


def _check_model(proto: onnx.ModelProto) -> None:
    versions = [proto.ir_version, *(o.version for o in proto.opset_import)]
    if not all(0 <= version < _MOST for version in versions):
        raise _DamagedError(f"its versions are {versions}")
    for field, value in (*proto.ListFields(), *proto.graph.ListFields()):
        if isinstance(value, bytes):  # a text, in messages that hold no other bytes
            raise _DamagedError(f"its {field.name} is not UTF-8 text: {value[:_SHOWN]!r}")
    for imported in proto.opset_import:
        _check_name(imported.domain, "a domain")
    context = checker.C.CheckerContext()
    context.ir_version = proto.ir_version
    context.opset_imports = {o.domain: o.version for o in proto.opset_import}
    if not proto.graph.output:
        raise _DamagedError("it has no outputs")
    _check_graph(proto.graph, frozenset(), context, {f.name for f in proto.functions})


def _check_graph(
    graph: onnx.GraphProto,
    outer: frozenset[str],
    context: checker.C.CheckerContext,
    functions: set[str],
) -> None:
    """Check a graph, in which the tensors called `outer` may be read."""
    for tensor in graph.initializer:
        _check_name(tensor.name, "an initializer")
        _check_tensor(tensor)
    known = {t.name for t in graph.initializer} | {v.name for v in graph.input}
    known |= {t.values.name for t in graph.sparse_initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        _check_name(value.name, "a tensor")
    written = [t for node in graph.node for t in node.output if t]
    if twice := next(_repeated(written), None):
        raise _DamagedError(f"'{twice}' is written twice")
    visible = outer | known | set(written)
    for node in graph.node:
        _check_node(node, visible, context, functions)
    missing = next((v.name for v in graph.output if v.name not in visible), None)
    if missing is not None:
        raise _DamagedError(f"nothing writes its output '{missing}'")


def _repeated(names: list[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)


def _check_node(
    node: onnx.NodeProto,
    visible: frozenset[str],
    context: checker.C.CheckerContext,
    functions: set[str],
) -> None:
    called = f"node '{node.name}' ({node.op_type})"
    _check_name(node.name, "a node")
    _check_name(node.op_type, "an operator")
    _check_name(node.domain, "a domain")
    for attribute in node.attribute:
        _check_attribute(attribute, called)
    for name in (*node.input, *node.output):
        _check_name(name, "a tensor")
    missing = next((t for t in node.input if t and t not in visible), None)
    if missing is not None:
        raise _DamagedError(f"{called} reads '{missing}', which nothing writes")
    has_graphs = False
    for attribute in node.attribute:
        for tensor in (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors):
            _check_tensor(tensor)
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            has_graphs = True
            _check_graph(body, visible, context, functions)
    if node.op_type in functions or not _is_standard(node, context):
        return
    if has_graphs:  # the checker would look for outer tensors in the body
        _check_arity(node, context, called)
        return
    try:
        checker.C.check_node(node.SerializeToString(), context, checker.LEXICAL_SCOPE_CONTEXT)
    except checker.ValidationError as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        per_axis = any(a.name == "axis" for a in node.attribute) and (
            node.op_type in ("QuantizeLinear", "DequantizeLinear")
        )
        old = context.opset_imports.get(node.domain, _PER_AXIS_OPSET) < _PER_AXIS_OPSET
        kind = _OldOpsetError if per_axis and old else _DamagedError
        raise kind(f"{called}: {reason}") from error


def _check_attribute(attribute: onnx.AttributeProto, called: str) -> None:
    _check_name(attribute.name, "an attribute")
    if attribute.ref_attr_name:  # nodes of functions may
        raise _DamagedError(f"{called}: '{attribute.name}' refers to an attribute of a function")
    if attribute.type not in _ATTRIBUTE_TYPES:
        raise _DamagedError(f"{called}: '{attribute.name}' is of no known type")


def _is_standard(node: onnx.NodeProto, context: checker.C.CheckerContext) -> bool:
    version = context.opset_imports.get(node.domain or "", 0)
    return node.domain in ("", "ai.onnx") and defs.has(node.op_type, version, "")


def _check_arity(node: onnx.NodeProto, context: checker.C.CheckerContext, called: str) -> None:
    version = context.opset_imports.get("", 0)
    schema = defs.get_schema(node.op_type, version, "")
    if not schema.min_input <= len(node.input) <= schema.max_input:
        raise _DamagedError(f"{called} has {len(node.input)} inputs")
    if not schema.min_output <= len(node.output) <= schema.max_output:
        raise _DamagedError(f"{called} has {len(node.output)} outputs")
    given = {attribute.name for attribute in node.attribute}
    lacking = [n for n, a in schema.attributes.items() if a.required and n not in given]
    if lacking:
        raise _DamagedError(f"{called} has no attribute '{lacking[0]}'")


def _check_name(name: str | bytes, what: str) -> None:
    if isinstance(name, bytes):  # what the protobuf library makes of it
        raise _DamagedError(f"the name of {what} is not UTF-8 text: {name!r}")
    if "\0" in name:
        raise _DamagedError(f"the name of {what} holds a zero byte: '{name}'")


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
    count = math.prod(dims)
    if tensor.HasField("raw_data"):
        bits = _PACKED_BITS.get(kind) or 8 * helper.tensor_dtype_to_np_dtype(kind).itemsize
        held, needed = len(tensor.raw_data), -(-count * bits // 8)
        fits = kind != TensorProto.STRING and held == needed
    elif kind in _PACKED_BITS:
        per_byte = 8 // _PACKED_BITS[kind]
        fits = len(tensor.int32_data) >= -(-count // per_byte)
    else:
        held = len(getattr(tensor, helper.tensor_dtype_to_field(kind)))
        fits = held == count * (2 if kind in _COMPLEX else 1)
    if not fits:
        raise _DamagedError(f"the values of '{tensor.name}' do not fit its shape {list(dims)}")
