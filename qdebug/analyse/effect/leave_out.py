"""Candidates that differ from the planned model, or the user's, in which layers compute high."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx

from qdebug.backends.base import Session
from qdebug.backends.int8_kernels import Int8Kernels, has_kernels
from qdebug.execute.context import Context
from qdebug.formats.registry import SCALED
from qdebug.network.graph import reads_of
from qdebug.plan.lower import lower
from qdebug.plan.pair import ModelPair
from qdebug.plan.plan import BoundPlan, bind_plan
from qdebug.plan.quantize import ROUNDING_INSIDE
from qdebug.plan.rewrite.unround import Unrounded, unrounded
from qdebug.types import Precision
from qdebug.wording import counted

High = frozenset[str]
"""The layers of one candidate that compute in FP32."""
REST = ""
"""Stands for all nodes that belong to no layer."""


@dataclass(frozen=True)
class Candidates:
    """Opens candidates; from several threads if need be.

    Attributes:
        context: what executes them.
        names: the layers that may be in FP32 or not, in execution order.
        everything: the candidate without any rounding.
        model: makes the one with these layers in FP32.
        notes: what the reader of a result must know.
        on_kernels: whether layers that may compute on INT8 kernels: else as they are written down.
    """

    context: Context
    names: tuple[str, ...]
    everything: High
    model: Callable[[High], onnx.ModelProto]
    notes: tuple[str, ...] = ()
    on_kernels: bool = False

    def open(self, high: High) -> Session:
        """The candidate with the layers `high` in FP32.

        Raises:
            ModelError, BackendError: the runtime does not take it.
        """
        return self.context.simulation.open(self.model(high), ())


def candidates_of(
    context: Context, pair: ModelPair, *, on_kernels: bool = False
) -> Candidates | None:
    """The candidates of a pair; None where no layer can be left out.

    Args:
        on_kernels: on ONNX Runtime's INT8 kernels; then None too where there are none, as in models
            that another tool has quantized. They are two to three times as fast as the model as it
            is written down, and round sums elsewhere.

    Raises:
        PlanError: a rewritten model is not valid.
    """
    if pair.plan is None:
        return None if on_kernels else _of_quantized(context, pair)
    bound = bind_plan(pair.plan, pair.model, pair.layers)
    names = [x.name for x in pair.layers if pair.precisions[x.name] is not Precision.FP32]
    if not names or (on_kernels and not has_kernels(bound)):
        return None
    model = partial(_planned, bound, Int8Kernels() if on_kernels else None)
    return Candidates(context, tuple(names), frozenset(names), model, on_kernels=on_kernels)


def _planned(bound: BoundPlan, kernels: Int8Kernels | None, high: High) -> onnx.ModelProto:
    """The planned model with these layers in FP32."""
    pins = dict.fromkeys(high, Precision.FP32)
    plan = replace(bound.plan, layers={**bound.plan.layers, **pins})
    pinned = replace(bound, plan=plan, precisions={**bound.precisions, **pins})
    graph = lower(pinned).graph
    return kernels.rewrite(graph) if kernels else graph.proto


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
    everything = frozenset({*plain.layers, REST})
    notes = _changed_note(plain.changed)
    return Candidates(context, plain.layers, everything, partial(_without_rounding, plain), notes)


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
