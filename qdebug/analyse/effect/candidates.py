"""Candidates that differ from the planned model, or the user's, in which layers compute high."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import onnx

from qdebug.execute.context import Context
from qdebug.execute.variants import PlannedVariants
from qdebug.formats.registry import SCALED
from qdebug.memo import digest_of
from qdebug.network.graph import reads_of
from qdebug.network.weights import model_digest
from qdebug.plan.pair import ModelPair
from qdebug.plan.plan import bind_plan
from qdebug.plan.quantize import ROUNDING_INSIDE
from qdebug.plan.rewrite.unround import Unrounded, unrounded
from qdebug.run.variant import Variant, key_of
from qdebug.types import Precision
from qdebug.wording import counted

High = frozenset[str]
"""The layers of one candidate that compute in FP32."""
REST = ""
"""Stands for all nodes that belong to no layer."""


@dataclass(frozen=True)
class Candidates:
    """Variants of a pair's candidate.

    Attributes:
        names: the layers that may be in FP32 or not, in execution order.
        everything: the candidate without any rounding.
        variant: the one with these layers in FP32.
        notes: what the reader of a result must know.
    """

    names: tuple[str, ...]
    everything: High
    variant: Callable[[High], Variant]
    notes: tuple[str, ...] = ()


def candidates_of(context: Context, pair: ModelPair) -> Candidates | None:
    """The candidates of a pair; None where no layer can be left out.

    Raises:
        PlanError: a rewritten model is not valid.
    """
    if pair.plan is None:
        return _of_quantized(context, pair)
    names = [x.name for x in pair.layers if pair.precisions[x.name] is not Precision.FP32]
    if not names:
        return None
    bound = bind_plan(pair.plan, pair.model, pair.layers)
    variants = PlannedVariants(bound, context.simulation)

    def variant(high: High) -> Variant:
        return variants.with_layers(dict.fromkeys(high, Precision.FP32))

    return Candidates(tuple(names), frozenset(names), variant)


def _of_quantized(context: Context, pair: ModelPair) -> Candidates | None:
    """Of a model that another tool has quantized: a layer in FP32 is one without its rounding."""
    layers = [
        x
        for x in pair.layers
        if pair.precisions[x.name] in SCALED
        and x.output not in pair.refuted
        and x.op_type not in ROUNDING_INSIDE
    ]
    plain = unrounded(pair.reference, pair.candidate, layers)
    if not plain.layers:
        return None
    how = key_of(context.simulation)
    both = how and digest_of(*(model_digest(g.proto) for g in (pair.reference, pair.candidate)))

    def variant(high: High) -> Variant:
        key = both and digest_of("unrounded", both, sorted(high), how)
        return Variant(partial(_without_rounding, plain, high), context.simulation, key)

    everything = frozenset({*plain.layers, REST})
    return Candidates(plain.layers, everything, variant, _changed_note(plain.changed))


def _without_rounding(model: Unrounded, high: High) -> onnx.ModelProto:
    """The model in which these layers compute without rounding."""
    graph = model.graph
    lazy = [graph.protos[n.name] for n in graph.nodes if n.name in model.lazy]
    makers = {t: node for node in (*lazy, *model.copies.values()) for t in node.output if t}
    nodes: list[onnx.NodeProto] = []
    made: set[str] = set()

    def emit(node: onnx.NodeProto) -> None:
        for tensor in reads_of(node):
            if tensor not in made and tensor in makers:
                emit(makers[tensor])
        nodes.append(node)
        made.update(node.output)

    for node in graph.nodes:
        if node.name not in model.lazy:
            own = graph.protos[node.name]
            is_plain = model.owners.get(node.name, REST) in high
            emit(model.plain.get(node.name, own) if is_plain else own)
    for output in graph.outputs:
        if output not in made and output in makers:
            emit(makers[output])
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto)
    del proto.graph.node[:], proto.graph.value_info[:]
    proto.graph.node.extend(nodes)
    return proto


def _changed_note(layers: Sequence[str]) -> tuple[str, ...]:
    if not layers:
        return ()
    return (
        f"{counted(layers, 'layer')}, first '{layers[0]}', have other constants than the FP32 "
        "model, not only rounded ones. They stay when a layer is kept in FP32, so its gain is that "
        "of undoing the rounding alone.",
    )
