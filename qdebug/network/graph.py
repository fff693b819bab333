"""A read-only view of an ONNX graph: named nodes, who produces and who reads each tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from qdebug.network.subgraphs import outer_reads
from qdebug.network.weights import values_of
from qdebug.types import Array, TensorSpec

FLOAT_TYPES = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
)


def opset_of(proto: onnx.ModelProto) -> int:
    """The version of the default operator set; 0 when the model imports none."""
    versions = [int(o.version) for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    return max(versions, default=0)


def undeclared(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model that declares no types of tensors inside, and no shapes of outputs: these
    may name axes that have a length now, and exporters declare some that are not so."""
    bare = deepcopy(proto)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return bare


@dataclass(frozen=True)
class Node:
    """One operation. `implicit_inputs` are outer tensors that its subgraphs read."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    implicit_inputs: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Every tensor the node depends on, optional inputs that are absent left out."""
        return tuple(t for t in self.inputs if t) + self.implicit_inputs


@dataclass(frozen=True)
class Graph:
    """A model whose nodes all have unique names. Treat `proto` as frozen: edit a copy."""

    proto: onnx.ModelProto

    @classmethod
    def inferred(cls, proto: onnx.ModelProto, *, data_prop: bool = True) -> Graph:
        """The graph of `proto` with the types and shapes that follow from its own."""
        return cls(onnx.shape_inference.infer_shapes(proto, data_prop=data_prop))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in execution order."""
        return tuple(_node(n) for n in self.proto.graph.node)

    @cached_property
    def initializers(self) -> Mapping[str, TensorProto]:
        """Constants by name: initializers, outputs of Constant nodes, and copies of both."""
        constants = {t.name: t for t in self.proto.graph.initializer}
        for node in self.proto.graph.node:
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                value = _constant_value(node)
                if value is not None:
                    constants[node.output[0]] = value
            elif node.op_type == "Identity" and node.input[0] in constants:
                constants[node.output[0]] = constants[node.input[0]]
        return constants

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs a caller must feed."""
        names = {t.name for t in self.proto.graph.initializer}
        return tuple(_spec(v) for v in self.proto.graph.input if v.name not in names)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(v.name for v in self.proto.graph.output)

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Nodes by their unique name."""
        return {n.name: n for n in self.nodes}

    @cached_property
    def protos(self) -> Mapping[str, onnx.NodeProto]:
        """Nodes by their unique name, as the model holds them."""
        return {n.name: n for n in self.proto.graph.node}

    def attributes(self, node: Node) -> dict[str, Any]:
        """The attributes that a node has, by name; strings are bytes."""
        attributes = self.protos[node.name].attribute
        return {a.name: onnx.helper.get_attribute_value(a) for a in attributes}

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that writes each tensor."""
        return {t: n for n in self.nodes for t in n.outputs if t}

    @cached_property
    def tensors(self) -> frozenset[str]:
        """Names of the tensors that a node may read: inputs, constants and what nodes write."""
        return frozenset((*self.producers, *self.initializers, *(s.name for s in self.inputs)))

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each tensor, in execution order."""
        readers: dict[str, dict[str, Node]] = {}
        for node in self.nodes:
            for tensor in node.reads:
                readers.setdefault(tensor, {})[node.name] = node
        return {t: tuple(nodes.values()) for t, nodes in readers.items()}

    @property
    def _values(self) -> list[onnx.ValueInfoProto]:
        """What is declared or inferred of tensors."""
        graph = self.proto.graph
        return [*graph.value_info, *graph.input, *graph.output]

    @cached_property
    def types(self) -> Mapping[str, int]:
        """ONNX element type of each tensor, where shape inference finds one."""
        types = {v.name: v.type.tensor_type.elem_type for v in self._values}
        types |= {name: t.data_type for name, t in self.initializers.items()}
        return {name: kind for name, kind in types.items() if kind}

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int | str | None, ...]]:
        """Inferred shape of each tensor, where there is one."""
        described = (v for v in self._values if v.type.tensor_type.HasField("shape"))
        known = {v.name: _shape(v) for v in described}
        return known | {name: tuple(t.dims) for name, t in self.initializers.items()}

    @cached_property
    def opset(self) -> int:
        """The version of the default operator set."""
        return opset_of(self.proto)

    def constant(self, tensor: str) -> Array | None:
        """The value of a constant tensor, or None when it is computed."""
        proto = self.initializers.get(tensor)
        return None if proto is None else values_of(proto)

    def is_float(self, tensor: str) -> bool:
        """Whether the tensor may hold floating point; an unknown type counts as float."""
        return self.is_array(tensor) and self.types.get(tensor, TensorProto.FLOAT) in FLOAT_TYPES

    def is_array(self, tensor: str) -> bool:
        """Whether it may be an array: what is known to be a sequence or a map is none."""
        return tensor not in self._no_arrays

    @cached_property
    def _no_arrays(self) -> frozenset[str]:
        kinds = {v.name: v.type.WhichOneof("value") for v in self._values}
        return frozenset(t for t, kind in kinds.items() if kind not in (None, "tensor_type"))

    @cached_property
    def unsure_ranks(self) -> frozenset[str]:
        """Tensors whose number of axes depends on the samples, whatever `shapes` says: what follows
        a Squeeze without axes, which drops those that happen to be of size 1."""
        unsure: set[str] = set()
        for node in self.nodes:
            drops = node.op_type == "Squeeze" and len([t for t in node.inputs if t]) == 1
            shape = self.shapes.get(node.inputs[0]) if node.inputs else None
            known = shape is not None and all(isinstance(d, int) for d in shape)
            if (drops and not known) or not unsure.isdisjoint(node.reads):
                unsure.update(t for t in node.outputs if t)
        return frozenset(unsure)

    def activations(self) -> Iterator[str]:
        """Floating-point tensors that nodes compute from the inputs, in execution order."""
        for node in self.nodes:
            if node.op_type != "Constant":
                yield from (t for t in node.outputs if t and self.is_float(t))


def _node(proto: onnx.NodeProto) -> Node:
    return Node(
        proto.name,
        proto.op_type,
        "" if proto.domain == "ai.onnx" else proto.domain,
        tuple(proto.input),
        tuple(proto.output),
        tuple(outer_reads(proto)),
    )


def _constant_value(node: onnx.NodeProto) -> TensorProto | None:
    """The value of a Constant node, in whichever attribute; None for strings and sparse ones."""
    for attribute in node.attribute:
        name = node.output[0]
        if attribute.name == "value":
            return attribute.t
        if attribute.name in ("value_float", "value_floats"):
            values = attribute.floats if attribute.name == "value_floats" else attribute.f
            return numpy_helper.from_array(np.asarray(values, np.float32), name)
        if attribute.name in ("value_int", "value_ints"):
            whole = attribute.ints if attribute.name == "value_ints" else attribute.i
            return numpy_helper.from_array(np.asarray(whole, np.int64), name)
    return None


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    return TensorSpec(value.name, _shape(value), dtype)


def _shape(value: onnx.ValueInfoProto) -> tuple[int | str | None, ...]:
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else (d.dim_param or None)
        for d in value.type.tensor_type.shape.dim
    )
