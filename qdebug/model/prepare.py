"""Turn a model file into the graph that every stage works on, and remember whose node is whose."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import shape_inference, version_converter

from qdebug.errors import ModelError
from qdebug.model.graph import Graph, opset_of
from qdebug.model.load import ModelFile

log = logging.getLogger(__name__)

QDQ_OPSET = 13
"""The first opset with per-channel DequantizeLinear."""

_QUANTIZE_OPS = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True)
class Model:
    """A model ready to be observed and rewritten.

    Attributes:
        file: the file as the user gave it.
        graph: the prepared graph: unique node names, constants and BatchNorm folded.
        origins: prepared node name -> the user's node names that it stands for.
        quantized: the user's model carries Q/DQ nodes already.
    """

    file: ModelFile
    graph: Graph
    origins: Mapping[str, tuple[str, ...]]
    quantized: bool


def prepare_model(file: ModelFile, opset: int = QDQ_OPSET) -> Model:
    """Prepare `file`, converted to at least `opset`.

    A model that carries Q/DQ is left as it is, but for names and unfed inputs: folding could
    remove the very nodes that the user wants to look at.

    Raises:
        ModelError: the graph cannot be converted or its types cannot be inferred.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(file.proto)
    user_names = _name_nodes(proto)
    _drop_initializer_inputs(proto)
    quantized = any(n.op_type in _QUANTIZE_OPS for n in proto.graph.node)
    proto = _convert(file, proto, opset)
    before = _writers(proto)
    if not quantized:
        proto = _fold(proto)
    swallowed = _restore_names(proto, before)
    _name_nodes(proto)
    graph = Graph(_infer(file, proto))
    origins = {
        node.name: tuple(user_names.get(n, n) for n in swallowed.get(node.name, (node.name,)))
        for node in graph.nodes
    }
    return Model(file, graph, origins, quantized)


def _name_nodes(proto: onnx.ModelProto) -> dict[str, str]:
    """Give every node a unique name in place; return unique name -> the user's name."""
    taken: set[str] = set()
    renamed: dict[str, str] = {}
    proper = {n.name for n in proto.graph.node if n.name}
    for node in proto.graph.node:
        base = node.name or f"{node.op_type}_{next((o for o in node.output if o), '')}"
        name, number = base, 1
        # A made-up name must not take the one of a later node that the user did name.
        while name in taken or (name != node.name and name in proper):
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        renamed[name] = node.name or name
        node.name = name
    return renamed


def _drop_initializer_inputs(proto: onnx.ModelProto) -> None:
    """Old exports list weights among the inputs; ONNX Runtime then warns about each of them."""
    weights = {t.name for t in proto.graph.initializer}
    kept = [v for v in proto.graph.input if v.name not in weights]
    if len(kept) != len(proto.graph.input):
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
    proto.ir_version = max(proto.ir_version, 8)  # from 4 on, weights need not be inputs


def _convert(file: ModelFile, proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    if opset_of(proto) >= opset:
        return proto
    try:
        converted = version_converter.convert_version(proto, opset)
    except Exception as error:  # the converter raises RuntimeError and its own kinds
        raise ModelError(
            f"{file.path}: cannot be converted from opset {opset_of(proto)} to {opset}, "
            f"which Q/DQ nodes need: {_last_line(error)}",
            f"Export the model again at opset {opset} or later.",
        ) from error
    converted.ir_version = max(proto.ir_version, 9 if opset >= 19 else 8)
    _name_nodes(converted)
    return converted


def _fold(proto: onnx.ModelProto) -> onnx.ModelProto:
    import onnxslim
    from onnxslim.core.pattern.registry import DEFAULT_FUSION_PATTERNS

    logging.getLogger("onnxslim").setLevel(logging.ERROR)
    keep = {"FusionConvBN"}
    inputs, outputs = list(proto.graph.input), list(proto.graph.output)
    try:
        folded: onnx.ModelProto = onnxslim.slim(
            proto,
            skip_fusion_patterns=[p for p in DEFAULT_FUSION_PATTERNS if p not in keep],
            skip_optimizations=["subexpression_elimination", "weight_tying"],
        )
    except Exception as error:  # folding is a convenience: without it everything still works
        log.warning("constants and BatchNorm were not folded: %s", _last_line(error))
        return proto
    # The folder may rewrite or drop graph inputs and outputs; the interface is the user's.
    del folded.graph.input[:], folded.graph.output[:]
    folded.graph.input.extend(inputs)
    folded.graph.output.extend(outputs)
    return folded


def _infer(file: ModelFile, proto: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return shape_inference.infer_shapes(proto, data_prop=True)
    except Exception as error:  # InferenceError, ValueError and RuntimeError are all seen here
        raise ModelError(
            f"{file.path}: shape inference fails: {_last_line(error)}",
            "Check the model with onnx.checker.check_model(model, full_check=True).",
        ) from error


@dataclass(frozen=True)
class _Written:
    """Who wrote a tensor before folding."""

    name: str
    op_type: str
    inputs: tuple[str, ...]


def _writers(proto: onnx.ModelProto) -> dict[str, _Written]:
    return {
        output: _Written(node.name, node.op_type, tuple(node.input))
        for node in proto.graph.node
        for output in node.output
        if output
    }


def _restore_names(
    proto: onnx.ModelProto, before: Mapping[str, _Written]
) -> dict[str, tuple[str, ...]]:
    """Give folded nodes their first name back, in place; return node -> the nodes it stands for.

    A node that now writes what another wrote before has swallowed that one: Conv the
    BatchNormalization after it. Its own first name is that of the producer further up.
    """
    names = {w.name for w in before.values()}
    swallowed: dict[str, tuple[str, ...]] = {}
    for node in proto.graph.node:
        chain = _chain(before, next((o for o in node.output if o), ""), node.op_type)
        if chain and (node.name not in names or chain[0] != node.name):
            node.name = chain[0]
        swallowed[node.name] = tuple(chain) or (node.name,)
    return swallowed


def _chain(before: Mapping[str, _Written], tensor: str, op_type: str) -> list[str]:
    """Names from the writer of kind `op_type` down to the writer of `tensor`."""
    chain: list[str] = []
    while tensor in before and len(chain) < 4:
        writer = before[tensor]
        chain.insert(0, writer.name)
        if writer.op_type == op_type:
            return chain
        tensor = writer.inputs[0] if writer.inputs else ""
    return []


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
