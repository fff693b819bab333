"""The audit of a whole plan: layers as qdebug names them, with all their ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qdebug.engine_info.audit import Audit, NodePlacement, audit
from qdebug.engine_info.layers import EngineInfo
from qdebug.network.layers import Layer, Layers
from qdebug.network.prepare import Model
from qdebug.types import Precision


def audit_plan(
    model: Model, layers: Layers, precisions: Mapping[str, Precision], info: EngineInfo
) -> Audit:
    """Compare what a plan asks for with the engine that was built from it.

    The engine may come from the lowered model, whose nodes have qdebug's names, or from the user's
    own file.

    Args:
        precisions: by layer name, what the lowered model really asks for (`ModelPair.precisions`:
            an operator without an FP16 form is FP32 there).

    Raises:
        UsageError: the engine's source tells no precision, or is of another model.
    """
    asked = {name: _built_name(name, model, info) for name in precisions}
    result = audit({asked[name]: precision for name, precision in precisions.items()}, info)
    found = {row.name: row for row in result.layers}
    return Audit(
        tuple(
            replace(
                found[asked[name]],
                name=name,
                op_type=layers.by_name[name].op_type,
                nodes=_nodes(layers.by_name[name], model, info),
            )
            for name in precisions
        )
    )


def _nodes(layer: Layer, model: Model, info: EngineInfo) -> tuple[NodePlacement, ...]:
    return tuple(
        NodePlacement(
            node, tuple(x.name for x in info.of_node.get(_built_name(node, model, info), ()))
        )
        for node in layer.nodes
    )


def _built_name(node: str, model: Model, info: EngineInfo) -> str:
    """The name that the engine knows a prepared node by: its own, or the user's."""
    names = (node, *model.origins.get(node, ()))
    return next((n for n in names if n in info.of_node or n in info.op_types), node)
