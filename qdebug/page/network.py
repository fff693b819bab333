"""The network of a page: its nodes with what a result says of them, and the engine's kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qdebug.engine_info.layers import EngineLayer, Role
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.page.data import Kernel, Network, Node
from qdebug.page.scopes import scopes_of
from qdebug.plan.description import DescribedNode, Description

Json = Mapping[str, Any]

_WORK = (Role.MATRIX, Role.OTHER, Role.OPAQUE, Role.REFORMAT, Role.CONTROL)
"""Of several layers that name a node the first of these does its work."""


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
                built=told.built.get(node.name) or told.built.get(node.layer, ""),
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

    def kernel(found: _Layer) -> Kernel:
        name, nodes, precision, ms, detail, role = found
        known = nodes if places.keys() & nodes else (name, *_served(name))
        return Kernel(
            name=name,
            role=role or _role(name, nodes, ops),
            precision=precision,
            nodes=tuple(dict.fromkeys(places[n] for n in known if n in places)),
            ms=ms,
            detail=detail,
        )

    return tuple(map(kernel, _engine_layers(result)))


def _served(name: str) -> tuple[str, ...]:
    """The nodes that TensorRT moves or converts data for, by the name it gives that."""
    found = re.match(
        r"Reformatting CopyNode for (?:In|Out)put Tensor \d+ (?:to|from|of) (.+)", name
    )
    return tuple(found[1].split(" + ")) if found else ()


_Layer = tuple[str, tuple[str, ...], str, float | None, str, str]
"""A layer of an engine, as a result tells of it: its name, its nodes, the precision, ms, details
and the role; "" for what it does not tell."""


def _role(name: str, nodes: Sequence[str], ops: Mapping[str, str]) -> str:
    """What a layer is there for: by its name, or else by its nodes. A name that TensorRT's compiler
    made lists all that the layer computes."""
    role = EngineLayer(name).role
    if role is Role.OTHER and not name.startswith("_"):
        multiplies = any(ops.get(node) in QUANTIZABLE_OPS for node in nodes)
        return Role.MATRIX if multiplies else role
    return role


def _engine_layers(result: Json) -> Iterator[_Layer]:
    if str(result.get("schema", "")).startswith("qdebug.inspect/"):
        return map(_inspected, result["layers"])
    engine = result.get("engine") or {}
    kernels = (engine.get("execution") or {}).get("kernels") or ()
    measured = (
        (row["name"], tuple(row["onnx_nodes"]), row.get("precision") or "", row["ms"], "", "")
        for row in kernels
    )
    return measured if kernels else _audited(engine.get("audit") or {"layers": ()})


def _inspected(row: Json) -> _Layer:
    sides = (("reads", row.get("inputs")), ("writes", row.get("outputs")))
    details = [f"{word} {_operands(rows)}" for word, rows in sides if rows]
    details += [f"tactic {row['tactic']}"] if row.get("tactic") else []
    precision, nodes = row.get("precision") or "", tuple(row["onnx_nodes"])
    return row["name"], nodes, precision, row.get("time_ms"), "; ".join(details), row["role"]


def _operands(rows: Sequence[Json]) -> str:
    words = (
        (row["name"], row.get("dtype"), _shape(row.get("dims")), row.get("format")) for row in rows
    )
    return ", ".join(" ".join(filter(None, each)) for each in words)


def _audited(audit: Json) -> Iterator[_Layer]:
    """The layers that an audit places nodes in: not those that only the engine has."""
    nodes: dict[str, list[str]] = {}
    precisions = {row.get("engine_layer"): row.get("built") or "" for row in audit["layers"]}
    for row in audit["layers"]:
        for node in row["nodes"]:
            for layer in node["engine_layers"]:
                nodes.setdefault(layer, []).append(node["name"])
    for name, members in nodes.items():
        yield name, tuple(members), precisions.get(name, ""), None, "", ""


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
            self._tell_engine(result["layers"])

    def _tell_engine(self, layers: Sequence[Json]) -> None:
        """The layers of an engine, of which a node belongs to the one that does its work."""
        self._places = {row["name"]: k for k, row in enumerate(layers)}
        for k in sorted(range(len(layers)), key=lambda k: _WORK.index(layers[k]["role"])):
            for name in (*layers[k]["onnx_nodes"], layers[k]["name"]):
                self._of_node.setdefault(name, k)
                self.built.setdefault(name, layers[k].get("precision") or "")

    def layer(self, node: str, group: str) -> int | None:
        """The position of the layer of a node in the result."""
        place = self._of_node.get(node)
        return self._places.get(group) if place is None else place
