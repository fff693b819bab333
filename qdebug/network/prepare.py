"""Turn a model file into the graph that every stage works on, and remember whose node is whose."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace

import onnx
from onnx import helper
from onnx.shape_inference import InferenceError

from qdebug.errors import ModelError
from qdebug.network.convert import convert_opset, inline_functions, reason_in
from qdebug.network.fold import fold_constants
from qdebug.network.fp16_ends import widen_ends
from qdebug.network.fuse import fuse
from qdebug.network.graph import Graph, undeclared
from qdebug.network.growth import check_computed, check_inlined
from qdebug.network.inline import ELSE, THEN, Taken, replace_taken
from qdebug.network.inputshapes import InputShapes, fix_shapes
from qdebug.network.load import ModelFile
from qdebug.network.subgraphs import free_name, made_up_name, refill, sort_nodes
from qdebug.network.weights import LARGE_BYTES, lightened, renamed

QDQ_OPSET = 13
"""The first opset with per-channel DequantizeLinear."""

_ELEMENT_TYPES = frozenset(helper.get_all_tensor_dtypes())
_BLOCKWISE, _BLOCKWISE_OPSET = "MatMulNBits", 21
"""Its Q/DQ equivalent has scales by block, which came with that opset."""
_QUANTIZE_OPS = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
        *("MatMulIntegerToFloat", "DynamicQuantizeMatMul"),
        *("ConvInteger", "MatMulInteger", "QGemm", _BLOCKWISE),
    }
)


@dataclass(frozen=True)
class Model:
    """A model ready to be observed and rewritten.

    Attributes:
        file: the file as the user gave it.
        graph: the prepared graph: unique node names, constants and BatchNorm folded.
        origins: prepared node name -> the user's node names that it stands for.
        quantized: the user's model carries Q/DQ nodes, or operators that compute on integers.
        taken: the branch that stands in the place of an If of the file, by its name.
        notes: what to note about these.
        shapes: that the user gave to its inputs.
    """

    file: ModelFile
    graph: Graph
    origins: Mapping[str, tuple[str, ...]]
    quantized: bool
    taken: Taken = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    shapes: InputShapes = ()


def prepare_model(
    file: ModelFile,
    opset: int = QDQ_OPSET,
    shapes: InputShapes = (),
    *,
    fed: bool = True,
    folded: bool = True,
) -> Model:
    """Prepare `file`, converted to at least `opset`, with `shapes` for its inputs.

    A model that carries Q/DQ is left as it is, but for names, functions, unfed inputs and FP16 at
    its ends: folding could remove the very nodes that the user wants to look at.

    Args:
        fed: it is to be executed: inputs and outputs in FP16 are in FP32 then, behind a Cast.
        folded: constants and BatchNormalization are folded.

    Raises:
        ModelError: an input is not a tensor, the graph cannot be converted, or
            its types cannot be inferred.
        UsageError: `shapes` do not fit.
    """
    proto = deepcopy(file.proto)
    graph = proto.graph
    graph.name = graph.name or "graph"  # the checker wants one
    _check_inputs(file, proto)
    fix_shapes(file.path, graph, shapes)
    check_inlined(file.path, proto)
    proto = inline_functions(file.path, proto)
    graph = proto.graph
    check_computed(file.path, proto)
    sort_nodes(graph)
    user_names = _name_nodes(graph)
    user_writers = {t: n.name for n in graph.node for t in n.output if t}
    # Old exports list weights among the inputs: ONNX Runtime then warns about each of them.
    weights = {t.name for t in graph.initializer}
    refill(graph.input, [v for v in graph.input if v.name not in weights])
    # onnxconverter-common leaves types of FP16 for outputs that stay FP32, and onnx's version
    # converter believes them.
    declared = {v.name for v in (*graph.input, *graph.output)}
    refill(graph.value_info, [v for v in graph.value_info if v.name not in declared])
    if any(node.op_type == _BLOCKWISE for node in graph.node):
        opset = max(opset, _BLOCKWISE_OPSET)
    proto = convert_opset(file.path, proto, opset)
    notes = (_WIDENED,) if fed and widen_ends(proto.graph) else ()
    _name_nodes(proto.graph)
    user_names |= _added_nodes(proto, user_names, user_writers)
    origins = {name: (user,) for name, user in user_names.items()}
    return replace(_finished(file, proto, origins, folded), shapes=shapes, notes=notes)


_WIDENED = (
    "The model takes or gives FP16: it is fed, and compared, in FP32, with a Cast at these inputs "
    "and outputs."
)


def with_taken(model: Model, taken: Taken) -> Model:
    """`model`, in which the branch that is taken stands in the place of each If that `taken` names;
    those inside of others are replaced after these. Names that are not there are ignored.

    Raises:
        ModelError: the types of what comes out cannot be inferred.
    """
    proto = deepcopy(model.graph.proto)
    gone, inner = replace_taken(proto.graph, taken)
    if not gone:
        return model
    origins = {name: (user,) for name, user in inner.items()}
    done = _finished(model.file, proto, {**origins, **model.origins}, folded=True)
    taken = {**model.taken, **{name: what for name, what in taken.items() if name in gone}}
    return replace(done, taken=taken, notes=model.notes, shapes=model.shapes)


def _finished(
    file: ModelFile, proto: onnx.ModelProto, before: Mapping[str, tuple[str, ...]], folded: bool
) -> Model:
    """The model of a graph whose nodes have unique names: folded, and with its types.

    Args:
        before: node -> the user's nodes that it stands for.

    Raises:
        ModelError: the types cannot be inferred.
    """
    _lift_constants(proto.graph)
    proto = lightened(proto)
    origins = dict(before)
    quantized = any(is_quantized(n.op_type) for n in proto.graph.node)
    try:
        while folded and not quantized:
            proto, stands_for = _folded(proto)
            for name, nodes in stands_for.items():
                origins[name] = tuple(user for n in nodes for user in origins.get(n, (n,)))
            decided, inner = replace_taken(proto.graph, _decided(Graph(proto)))
            origins |= {name: (user,) for name, user in inner.items()}
            folded = bool(decided)
        graph = Graph.inferred(proto)
    except (InferenceError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"{file.path}: shape inference fails: {reason_in(error)}",
            "Check the model with onnx.checker.check_model(model, full_check=True).",
            code="QD-MODEL-SHAPES",
        ) from error
    users = {node.name: origins.get(node.name, (node.name,)) for node in graph.nodes}
    return Model(file, graph, users, quantized)


def _decided(graph: Graph) -> Taken:
    """The branch of each If whose condition is constant."""
    ifs = [node for node in graph.nodes if node.op_type == "If" and node.inputs]
    conditions = {node.name: graph.constant(node.inputs[0]) for node in ifs}
    return {n: THEN if c.any() else ELSE for n, c in conditions.items() if c is not None}


def _folded(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, Mapping[str, tuple[str, ...]]]:
    """A model with its constants and BatchNormalization folded, and which nodes each node stands
    for that took in others.

    Shapes follow from the inputs alone: exporters declare some that are not so, as [1, n] for
    (n, 1, m). Of what else is declared, types are kept that cannot be inferred.
    """
    graph = Graph.inferred(fold_constants(Graph.inferred(undeclared(proto))))
    folded, stands_for = fuse(graph)
    refill(folded.graph.output, proto.graph.output)
    untyped = {t for node in folded.graph.node for t in node.output} - graph.types.keys()
    declared = [value for value in proto.graph.value_info if value.name in untyped]
    for value in declared:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    refill(folded.graph.value_info, declared)
    return folded, stands_for


def _lift_constants(graph: onnx.GraphProto) -> None:
    """Let the large constants that are nodes be initializers, in place: only those can lie in a
    file."""
    large = [
        node
        for node in graph.node
        if node.op_type == "Constant"
        and node.ByteSize() >= LARGE_BYTES
        and node.attribute[0].HasField("t")
    ]
    graph.initializer.extend(renamed(node.attribute[0].t, node.output[0]) for node in large)
    gone = {node.name for node in large}
    refill(graph.node, [node for node in graph.node if node.name not in gone])


def is_quantized(operator: str) -> bool:
    """Whether it makes codes, reads them or computes on them."""
    return operator in _QUANTIZE_OPS or operator.startswith("QLinear")


def _check_inputs(file: ModelFile, proto: onnx.ModelProto) -> None:
    for value in proto.graph.input:
        kind = value.type.WhichOneof("value")
        # Checked in the enumeration itself: type 0 is "undefined", and a damaged file may say 57.
        if kind != "tensor_type" or value.type.tensor_type.elem_type not in _ELEMENT_TYPES:
            found = (kind or "untyped").removesuffix("_type").replace("tensor", "of no known type")
            raise ModelError(
                f"{file.path}: input '{value.name}' is {found}, not an array",
                "qdebug feeds arrays: give a model whose inputs are tensors.",
                code="QD-MODEL-INPUT",
            )


def _name_nodes(graph: onnx.GraphProto) -> dict[str, str]:
    """Give every node a unique name in place; return unique name -> the user's name."""
    # A made-up name must not take the one of a later node that the user did name.
    taken = {n.name for n in graph.node if n.name}
    users: dict[str, str] = {}
    for node in graph.node:
        user = node.name
        if not user or user in users:
            node.name = free_name(user or made_up_name(node), taken)
        users[node.name] = user or node.name
    return users


def unnamed_notes(model: Model, layers: Collection[str]) -> tuple[str, ...]:
    """A note where `layers` have no name in the model's file: other tools do not know theirs."""
    unnamed = {made_up_name(n): n for n in model.file.proto.graph.node if not n.name}
    names = [name for name in layers if name in unnamed]
    if not names:
        return ()
    written = next(o for o in unnamed[names[0]].output if o)
    few = "The only layer has" if len(layers) == 1 else f"{len(names)} of {len(layers)} layers have"
    return (
        f"{few} no name in the file and go by operator and output, such as '{names[0]}' for what "
        f"writes '{written}': other tools (nodes_to_exclude of ONNX Runtime's quantizer) do not "
        "know these names.",
    )


def _added_nodes(
    proto: onnx.ModelProto, user_names: Mapping[str, str], user_writers: Mapping[str, str]
) -> dict[str, str]:
    """Nodes that the opset converter added (Flatten and Reshape around an old Softmax) -> the
    user's name of the node that they were added for: the one that wrote their output, or else the
    one that reads it."""
    added: dict[str, str] = {}
    readers: dict[str, str] = {}
    for node in reversed(proto.graph.node):
        name = node.name
        if name not in user_names:
            wrote = next((user_writers[t] for t in node.output if t in user_writers), None)
            name = wrote or next((readers[t] for t in node.output if t in readers), name)
            added[node.name] = user_names.get(name, name)
        readers |= dict.fromkeys(node.input, name)
    return added
