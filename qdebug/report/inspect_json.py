"""The machine contract of `inspect`, schema qdebug.inspect/1."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from qdebug.engine_info.diff import Change, Side
from qdebug.engine_info.layers import EngineLayer, EngineTensor
from qdebug.measure.inspection import Inspection
from qdebug.report.audit import audit_to_json
from qdebug.report.numbers import finite

INSPECT_SCHEMA = "qdebug.inspect/1"


def inspection_to_json(result: Inspection) -> dict[str, Any]:
    """`result` as JSON types; null for what the file does not tell."""
    info, summary = result.info, result.summary
    return {
        "schema": INSPECT_SCHEMA,
        "file": result.path,
        "source": str(info.source),
        "library": info.library or None,
        "detailed": info.detailed,
        "verdict": {
            "passed": result.passed if result.judged else None,
            "conditions": [
                finite({"expression": c.expression, "value": c.value, "passed": c.passed})
                for c in result.conditions
            ],
        },
        "values": dict(result.values),
        "products": [asdict(share) for share in summary.shares],
        "others": dict(summary.others),
        "layers": [_layer(layer) for layer in info.layers],
        "io": [_tensor(t) for t in info.io],
        "unmapped_nodes": [
            {"name": n.name, "op_type": n.op_type} for n in info.nodes if n.name not in info.of_node
        ],
        "left_high": [layer.name for layer in summary.left_high],
        "precision_changes": [
            {
                "from": edge.writer.name,
                "from_precision": edge.writer.precision,
                "to": edge.reader.name,
                "to_precision": edge.reader.precision,
            }
            for edge in summary.changes
        ],
        "unread_qdq": [
            {"node": node, "layer": layer.name} for node, layer in summary.unread.items()
        ],
        "events": [{"kind": str(e.kind), "text": e.text} for e in info.events],
        "audit": result.audit and {"plan": result.plan, **audit_to_json(result.audit)},
        "diff": _diff(result),
        "notes": list(info.notes),
    }


def _layer(layer: EngineLayer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "type": layer.layer_type,
        "role": str(layer.role),
        "precision": layer.precision or None,
        "onnx_nodes": list(layer.onnx_nodes),
        "inputs": [_tensor(t) for t in layer.inputs],
        "constants": [_tensor(t) for t in layer.constants],
        "outputs": [_tensor(t) for t in layer.outputs],
        "tactic": layer.tactic or None,
        "sparse": layer.sparse,
        "origin": layer.origin or None,
        "time_ms": layer.time_ms,
    }


def _tensor(tensor: EngineTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype or None,
        "format": tensor.format or None,
        "dims": None if tensor.dims is None else list(tensor.dims),
    }


def _diff(result: Inspection) -> dict[str, Any] | None:
    other = result.other
    if other is None:
        return None
    return {
        "other": other.path,
        "values": dict(other.values),
        "compared_nodes": other.diff.compared,
        "changes": [_change(change) for change in other.diff.changes],
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "node": change.node,
        "changed": list(change.kinds),
        "before": _side(change.before),
        "after": _side(change.after),
    }


def _side(side: Side | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        "layer": side.layer.name,
        "precision": side.layer.precision or None,
        "with": list(side.companions),
        "tactic": side.layer.tactic or None,
        "time_ms": side.layer.time_ms,
    }
