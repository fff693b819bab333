"""Turn a model file into the graph that every stage works on, and remember whose node is whose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import onnx
from onnx import helper, shape_inference

from qdebug.errors import ModelError
from qdebug.network.convert import convert_opset, inline_functions, reason_in
from qdebug.network.fold import fold
from qdebug.network.fp16_ends import widen_ends
from qdebug.network.graph import Graph
from qdebug.network.growth import check_computed, check_inlined
from qdebug.network.inline import Taken, is_taken, replace_taken
from qdebug.network.inputshapes import InputShapes, fix_shapes
from qdebug.network.load import ModelFile
from qdebug.network.order import sort_nodes
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
    file: ModelFile, opset: int = QDQ_OPSET, shapes: InputShapes = (), *, fed: bool = True
) -> Model:
    """Prepare `file`, converted to at least `opset`, with `shapes` for its inputs.

    A model that carries Q/DQ is left as it is, but for names, functions, unfed inputs and FP16 at
    its ends: folding could remove the very nodes that the user wants to look at.

    Args:
        fed: it is to be executed: inputs and outputs in FP16 are in FP32 then, behind a Cast.

    Raises:
        ModelError: an input is not a tensor, the graph cannot be converted, or
            its types cannot be inferred.
        UsageError: `shapes` do not fit.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(file.proto)
    proto.graph.name = proto.graph.name or "graph"  # the checker wants one
    _check_inputs(file, proto)
    fix_shapes(file.path, proto.graph, shapes)
    check_inlined(file.path, proto)
    proto = inline_functions(file.path, proto)
    check_computed(file.path, proto)
    sort_nodes(proto.graph)
    user_names = _name_nodes(proto)
    user_writers = {t: n.name for n in proto.graph.node for t in n.output if t}
    _drop_initializer_inputs(proto)
    _drop_repeated_types(proto)
    if any(node.op_type == _BLOCKWISE for node in proto.graph.node):
        opset = max(opset, _BLOCKWISE_OPSET)
    proto = convert_opset(file.path, proto, opset)
    notes = (_WIDENED,) if fed and widen_ends(proto.graph) else ()
    _name_nodes(proto)
    user_names |= _added_nodes(proto, user_names, user_writers)
    origins = {name: (user,) for name, user in user_names.items()}
    return replace(_finished(file, proto, origins), shapes=shapes, notes=notes)


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
    if not taken:
        return model
    proto, inner, gone = replaced(model, taken)
    once = Counter(inner.values())
    origins = {name: (user,) for name, user in inner.items() if once[user] == 1}
    done = _finished(model.file, proto, {**origins, **model.origins})
    found = {name: what for name, what in taken.items() if name in gone}
    taken = {**model.taken, **found}
    return replace(done, taken=taken, notes=model.notes, shapes=model.shapes)


def replaced(model: Model, taken: Taken) -> tuple[onnx.ModelProto, dict[str, str], set[str]]:
    """As `with_taken`, not yet folded and without the types of what was put in; the names of its
    nodes in their bodies, by their names now; and the nodes that were replaced."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.graph.proto)
    inner: dict[str, str] = {}
    gone: set[str] = set()
    while any(is_taken(n, taken) for n in proto.graph.node):
        found = replace_taken(proto, taken, gone)
        inner |= {name: inner.get(user, user) for name, user in found.items()}
    return proto, inner, gone


def _finished(
    file: ModelFile, proto: onnx.ModelProto, before: Mapping[str, tuple[str, ...]]
) -> Model:
    """The model of a graph whose nodes have unique names: folded, and with its types.

    Args:
        before: node -> the user's nodes that it stands for.
    """
    _lift_constants(proto.graph)
    proto = lightened(proto)
    stands_for: Mapping[str, tuple[str, ...]] = {}
    quantized = any(is_quantized(n.op_type) for n in proto.graph.node)
    if not quantized:
        proto, stands_for = fold(proto)
    _name_nodes(proto)
    graph = Graph(_infer(file, proto))
    origins = {
        node.name: tuple(
            user for n in stands_for.get(node.name, (node.name,)) for user in before.get(n, (n,))
        )
        for node in graph.nodes
    }
    return Model(file, graph, origins, quantized)


def _lift_constants(graph: onnx.GraphProto) -> None:
    """Let the large constants that are nodes be initializers, in place: only those can lie in a
    file."""
    nodes = list(graph.node)
    large = [
        node
        for node in nodes
        if node.op_type == "Constant"
        and node.ByteSize() >= LARGE_BYTES
        and node.attribute[0].HasField("t")
    ]
    if not large:
        return
    graph.initializer.extend(renamed(node.attribute[0].t, node.output[0]) for node in large)
    gone = {node.name for node in large}
    del graph.node[:]
    graph.node.extend(node for node in nodes if node.name not in gone)


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


def _name_nodes(proto: onnx.ModelProto) -> dict[str, str]:
    """Give every node a unique name in place; return unique name -> the user's name."""
    taken: set[str] = set()
    renamed: dict[str, str] = {}
    proper = {n.name for n in proto.graph.node if n.name}
    for node in proto.graph.node:
        base = node.name or _made_up(node)
        name, number = base, 1
        # A made-up name must not take the one of a later node that the user did name.
        while name in taken or (name != node.name and name in proper):
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        renamed[name] = node.name or name
        node.name = name
    return renamed


def _made_up(node: onnx.NodeProto) -> str:
    return f"{node.op_type}_{next((o for o in node.output if o), '')}"


def unnamed_notes(model: Model, layers: Collection[str]) -> tuple[str, ...]:
    """A note where `layers` have no name in the model's file: other tools do not know theirs."""
    unnamed = {_made_up(n): n for n in model.file.proto.graph.node if not n.name}
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


def _drop_initializer_inputs(proto: onnx.ModelProto) -> None:
    """Old exports list weights among the inputs; ONNX Runtime then warns about each of them."""
    weights = {t.name for t in proto.graph.initializer}
    kept = [v for v in proto.graph.input if v.name not in weights]
    if len(kept) != len(proto.graph.input):
        del proto.graph.input[:]
        proto.graph.input.extend(kept)


def _drop_repeated_types(proto: onnx.ModelProto) -> None:
    """Types of inputs and outputs that are given once more. onnxconverter-common leaves those of
    FP16 for outputs that stay FP32, and onnx's version converter believes them."""
    declared = {v.name for v in (*proto.graph.input, *proto.graph.output)}
    kept = [v for v in proto.graph.value_info if v.name not in declared]
    if len(kept) != len(proto.graph.value_info):
        del proto.graph.value_info[:]
        proto.graph.value_info.extend(kept)


def _infer(file: ModelFile, proto: onnx.ModelProto) -> onnx.ModelProto:
    """`proto` with the types and shapes that follow.

    Raises:
        ModelError: they cannot be inferred.
    """
    try:
        return shape_inference.infer_shapes(proto, data_prop=True)
    except Exception as error:  # InferenceError, ValueError and RuntimeError are all seen here
        raise ModelError(
            f"{file.path}: shape inference fails: {reason_in(error)}",
            "Check the model with onnx.checker.check_model(model, full_check=True).",
            code="QD-MODEL-SHAPES",
        ) from error
