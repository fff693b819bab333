"""Fold BatchNorm and constants as TensorRT would, and find out whose nodes the results are."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from qdebug.network.convert import reason_in
from qdebug.network.subgraphs import all_names, free_name, rename_tensors
from qdebug.network.weights import lightened, place_of, with_data, without_external

log = logging.getLogger(__name__)

_KEPT_PATTERNS = frozenset({"FusionConvBN", "FusionConvTransposeBN"})


def fold(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, Mapping[str, tuple[str, ...]]]:
    """`proto`, whose nodes have unique names, folded; and which of them each node left stands for.

    A node that took in others keeps its own name. Where the folder fails, the model comes back as
    it is, and a warning is logged.
    """
    before = _writers(proto)
    # Importing and running the folder takes a second or more: a network that an exporter has
    # folded already does without.
    folded = _slim(proto) if _can_fold(proto.graph) else proto
    return folded, _restore_names(folded, before)


_FOLDED_OPS = frozenset({"BatchNormalization", "Shape", "Size", "Identity", "Dropout"})


def _can_fold(graph: onnx.GraphProto) -> bool:
    """Whether a node could go: one that is folded into others, or that reads only constants."""
    constants = {t.name for t in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    return any(
        node.op_type in _FOLDED_OPS
        or (node.input and constants.issuperset(filter(None, node.input)))
        for node in graph.node
        if node.op_type != "Constant"
    )


def _slim(proto: onnx.ModelProto) -> onnx.ModelProto:
    import onnxruntime as ort
    import onnxslim.utils
    from onnxslim.core.pattern.registry import DEFAULT_FUSION_PATTERNS
    from onnxslim.third_party.onnx_graphsurgeon.logger import G_LOGGER

    # It has ONNX Runtime print what its sessions fail at, and prints itself what it raises as well,
    # with names as they are. What fails is left as it is.
    ort.set_default_logger_severity(4)
    logger = logging.getLogger("onnxslim")
    logger.setLevel(logging.CRITICAL)
    onnxslim.utils.init_logging = lambda *_: logger
    G_LOGGER.log = lambda *_, **__: None
    inputs, outputs = list(proto.graph.input), list(proto.graph.output)
    read = _foldable(proto.graph)
    given = without_external(with_data(proto, read))
    left_out = [t for t in proto.graph.initializer if place_of(t) and t.name not in read]
    for output in given.graph.output:
        # Exporters declare shapes that are not so, as [1, n] for (n, 1, m), and onnxslim would make
        # a Reshape that computes its shape give the declared one.
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    names = _clear_node_names(given.graph)
    aliases = _clear_fold_names(given.graph)
    try:
        with np.errstate(all="ignore"):  # what it computes in numpy is the user's to judge
            folded: onnx.ModelProto = onnxslim.slim(
                _with_inferred_shapes(given),
                skip_fusion_patterns=[
                    p for p in DEFAULT_FUSION_PATTERNS if p not in _KEPT_PATTERNS
                ],
                skip_optimizations=["subexpression_elimination", "weight_tying"],
                # Its own takes n - n / 2 * 2 for unequal to 0, whatever n is, and folds what that
                # decides: crops of TensorFlow's networks became empty.
                no_shape_infer=True,
            )
    except Exception as error:  # folding is a convenience: without it everything still works
        log.warning("constants and BatchNorm were not folded: %s", reason_in(error))
        return proto
    rename_tensors(folded.graph, aliases)
    for node in folded.graph.node:
        node.name = names.get(node.name, node.name)
    # The folder may rewrite or drop graph inputs and outputs; the interface is the user's.
    del folded.graph.input[:], folded.graph.output[:]
    folded.graph.input.extend(inputs)
    folded.graph.output.extend(outputs)
    folded.graph.initializer.extend(left_out)
    return lightened(folded)


def _with_inferred_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """With the shapes that follow from those of the inputs, in place of what the file declares of
    tensors inside; of others their types are left."""
    declared = list(proto.graph.value_info)
    del proto.graph.value_info[:]
    found = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    inferred = {value.name for value in found.graph.value_info}
    for value in declared:
        if value.name not in inferred:
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
            found.graph.value_info.append(value)
    return found


def _foldable(graph: onnx.GraphProto) -> frozenset[str]:
    """The constants whose values folding may need: those of nodes that read nothing else, and of
    convolutions, which take in a BatchNormalization."""
    constants = {t.name for t in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    found: set[str] = set()
    for node in graph.node:
        reads = {t for t in node.input if t}
        if constants.issuperset(reads) or node.op_type in _FOLDED_OPS | {"Conv", "ConvTranspose"}:
            found |= reads & constants
            constants.update(node.output if constants.issuperset(reads) else ())
    return frozenset(found)


def _clear_node_names(graph: onnx.GraphProto) -> dict[str, str]:
    """Rename, in place, nodes that are called as a tensor; return what to rename afterwards.

    onnxslim takes the one for the other: constants silently become other values.
    """
    tensors, nodes = all_names(graph)
    taken = tensors | nodes
    restored: dict[str, str] = {}
    for node in graph.node:
        if node.name in tensors:
            alias = free_name(f"{node.name}_node", taken)
            restored[alias], node.name = node.name, alias
    return restored


def _clear_fold_names(graph: onnx.GraphProto) -> dict[str, str]:
    """Rename, in place, outputs of BatchNormalization whose folded weights would take a name that
    is taken; return what to rename afterwards.

    onnxslim names them <output>_weight and <output>_bias without checking: the user's tensor of
    that name silently becomes the folded weight.
    """
    taken = all_names(graph)[0]
    hidden: dict[str, str] = {}
    restored: dict[str, str] = {}
    for node in graph.node:
        if node.op_type != "BatchNormalization" or not node.output:
            continue
        if taken.isdisjoint(f"{node.output[0]}{suffix}" for suffix in ("_weight", "_bias")):
            continue
        output, alias = node.output[0], _free(f"{node.output[0]}_folded", taken)
        hidden[output] = alias
        restored[alias] = output
        for suffix in ("_weight", "_bias"):
            restored[alias + suffix] = _free(output + suffix, taken)
    rename_tensors(graph, hidden)
    return restored


def _free(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 1
    while not taken.isdisjoint((name, f"{name}_weight", f"{name}_bias")):
        name, number = f"{wanted}_{number}", number + 1
    taken.update((name, f"{name}_weight", f"{name}_bias"))
    return name


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
        chain = _chain(before, node.output, node.op_type)
        if chain and (node.name not in names or chain[0] != node.name):
            node.name = chain[0]
        swallowed[node.name] = tuple(chain) or (node.name,)
    return swallowed


def _chain(before: Mapping[str, _Written], outputs: Iterable[str], op_type: str) -> list[str]:
    """Names from the writer of kind `op_type` down to the writer of the first of `outputs`."""
    chain: list[str] = []
    tensor = next((t for t in outputs if t), "")
    while tensor in before and len(chain) < 4:
        writer = before[tensor]
        chain.insert(0, writer.name)
        if writer.op_type == op_type:
            return chain
        tensor = writer.inputs[0] if writer.inputs else ""
    return []
