"""The network of a page: its nodes with what a result says of them, and the engine's kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qdebug.engine_info.layers import EngineLayer, Role
from qdebug.model.layers import QUANTIZABLE_OPS
from qdebug.page.data import Kernel, Network, Node
from qdebug.page.scopes import scopes_of
from qdebug.plan.description import DescribedNode, Description

Json = Mapping[str, Any]


def network_of(description: Description, result: Json | None) -> Network:
    """The network, with the precisions that a result tells.

    Args:
        description: of the network.
        result: the JSON of a command's result; None without one.
    """
    nodes = description.nodes
    makers = {tensor: k for k, node in enumerate(nodes) for tensor in node.outputs}
    reads = [tuple(dict.fromkeys(makers[t] for t in node.inputs if t in makers)) for node in nodes]
    scopes = scopes_of(
        [node.name for node in nodes],
        [next(iter(node.outputs), "") for node in nodes],
        [_kind(node) for node in nodes],
        reads,
    )
    shapes = {tensor.name: _shape(tensor.shape) for tensor in description.tensors}
    told = _Told(result or {})
    return Network(
        nodes=tuple(
            Node(
                name=node.name,
                op=node.op,
                scope=scopes[k],
                inputs=reads[k],
                tensors=node.outputs,
                shape=shapes.get(node.outputs[0], "") if node.outputs else "",
                weight=_shape(node.weight),
                layer=told.layer(node.name, node.layer),
                group=node.layer,
                planned=told.planned.get(node.layer, ""),
                built=told.built.get(node.layer) or told.built.get(node.name, ""),
            )
            for k, node in enumerate(nodes)
        ),
        inputs=description.inputs,
        outputs=description.outputs,
        readers_of_inputs=tuple(
            tuple(k for k, node in enumerate(nodes) if name in node.inputs)
            for name in description.inputs
        ),
    )


def _kind(node: DescribedNode) -> str:
    """What makes a node like another: of a convolution also the kernel, and whether it is
    depthwise."""
    if node.op != "Conv" or node.weight is None:
        return node.op
    return f"{node.op} {node.weight[2:]} {node.weight[1] == 1}"


def kernels_of(description: Description, result: Json) -> tuple[Kernel, ...]:
    """The layers of the engine that a result tells of; none without an engine."""
    places = {node.name: k for k, node in enumerate(description.nodes)}
    ops = {node.name: node.op for node in description.nodes}
    return tuple(
        Kernel(
            name=layer.name,
            role=_role(layer, ops),
            precision=precision,
            nodes=tuple(dict.fromkeys(places[n] for n in layer.onnx_nodes if n in places)),
            ms=layer.time_ms,
            detail=detail,
        )
        for layer, precision, detail in _engine_layers(result)
    )


def _role(layer: EngineLayer, ops: Mapping[str, str]) -> str:
    """What a layer is there for: by its nodes, where its name and type do not show it."""
    if layer.role is Role.OTHER and any(ops.get(n) in QUANTIZABLE_OPS for n in layer.onnx_nodes):
        return Role.MATRIX
    return layer.role


_Found = tuple[EngineLayer, str, str]
"""A layer, its precision, and what there is to say of it."""


def _engine_layers(result: Json) -> Iterator[_Found]:
    if str(result.get("schema", "")).startswith("qdebug.inspect/"):
        yield from map(_inspected, result["layers"])
        return
    engine = result.get("engine") or {}
    execution = engine.get("execution") or {}
    if execution.get("kernels"):
        for row in execution["kernels"]:
            nodes = tuple(row["onnx_nodes"])
            layer = EngineLayer(row["name"], onnx_nodes=nodes, time_ms=row["ms"])
            yield layer, row.get("precision") or "", ""
    elif engine.get("audit"):
        yield from _audited(engine["audit"])


def _inspected(row: Json) -> _Found:
    layer = EngineLayer(
        row["name"], row.get("type") or "", onnx_nodes=tuple(row["onnx_nodes"]),
        time_ms=row.get("time_ms"),
    )  # fmt: skip
    sides = [
        f"{word} {_operands(row.get(key) or ())}"
        for word, key in (("reads", "inputs"), ("writes", "outputs"))
        if row.get(key)
    ]
    tactic = [f"tactic {row['tactic']}"] if row.get("tactic") else []
    return layer, row.get("precision") or "", "; ".join([*sides, *tactic])


def _operands(rows: Sequence[Json]) -> str:
    texts = []
    for row in rows:
        words = (row.get("dtype"), _shape(row.get("dims")), row.get("format"))
        texts.append(" ".join([row["name"], *(word for word in words if word)]))
    return ", ".join(texts)


def _audited(audit: Json) -> Iterator[_Found]:
    """The layers that an audit places nodes in: not those that only the engine has."""
    nodes: dict[str, list[str]] = {}
    precisions: dict[str, str] = {}
    for row in audit["layers"]:
        if row.get("engine_layer"):
            precisions[row["engine_layer"]] = row.get("built") or ""
        for node in row["nodes"]:
            for layer in node["engine_layers"]:
                nodes.setdefault(layer, []).append(node["name"])
    for name, members in nodes.items():
        yield EngineLayer(name, onnx_nodes=tuple(members)), precisions.get(name, ""), ""


def _shape(shape: Sequence[int] | None) -> str:
    return "×".join("?" if size < 0 else str(size) for size in shape or ())


class _Told:
    """What a result says of layers, by their names."""

    def __init__(self, result: Json) -> None:
        schema = str(result.get("schema", ""))
        layers = [] if schema.startswith("qdebug.inspect/") else result.get("layers") or []
        audit = result.get("audit") or (result.get("engine") or {}).get("audit") or {}
        audited = audit.get("layers") or []
        self._places = {row["name"]: k for k, row in enumerate(layers)}
        self._of_node = {n: k for k, row in enumerate(layers) for n in row.get("nodes") or ()}
        self.planned = {row["name"]: row["requested"] for row in audited}
        for row in layers:  # those of a search are pinned `to` a precision
            if precision := row.get("precision") or row.get("to"):
                self.planned[row["name"]] = precision
        self.built = {row["name"]: row.get("built") or "" for row in audited}
        if schema.startswith("qdebug.inspect/"):
            self._places = {}
            self._of_node = {
                n: k for k, row in enumerate(result["layers"]) for n in row["onnx_nodes"]
            }

    def layer(self, node: str, group: str) -> int | None:
        """The position of the layer of a node in the result."""
        place = self._of_node.get(node)
        return self._places.get(group) if place is None else place
