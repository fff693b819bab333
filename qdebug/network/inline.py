"""Replace an If by the branch that it takes.

What is inside of the branch is then a part of the model like everything else. Names are kept where
they are free, and what the If writes keeps its name. A Loop or a Scan stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import onnx
from onnx import helper

from qdebug.network.graph import reads_of
from qdebug.network.subgraphs import all_names, bodies, free_name, rename_tensors

THEN, ELSE = "then_branch", "else_branch"
CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})

Taken = Mapping[str, str]
"""By the name of an If: the branch that it takes, THEN or ELSE."""


def is_control_flow(node: onnx.NodeProto) -> bool:
    """Whether it is one of ONNX's own operators with a body."""
    return node.op_type in CONTROL_FLOW and node.domain in ("", "ai.onnx") and bool(bodies(node))


def is_taken(node: onnx.NodeProto, taken: Taken) -> bool:
    """Whether `taken` says which branch stands in the place of a node."""
    branch = taken.get(node.name)
    return branch in (THEN, ELSE) and is_control_flow(node) and fits(node)


def fits(node: onnx.NodeProto) -> bool:
    """Whether it is an If whose branches give as many tensors as it does."""
    branches = [branch_of(node, name) for name in (THEN, ELSE)]
    return (
        node.op_type == "If"
        and len(node.input) == 1
        and all(
            b is not None and len(b.output) == len(node.output) and not b.input for b in branches
        )
    )


def branch_of(node: onnx.NodeProto, name: str) -> onnx.GraphProto | None:
    """A branch of an If."""
    return next((a.g for a in node.attribute if a.name == name and a.HasField("g")), None)


def replace_taken(proto: onnx.ModelProto, taken: Taken, gone: set[str]) -> dict[str, str]:
    """Put what is taken in the place of the nodes that `taken` names, in place, and drop what then
    computes nothing. Nodes have unique names, and so have those that are put in.

    Args:
        gone: names of nodes that were replaced before, which no other may get: `taken` names a node
            inside of another by the name that it gets here. Those replaced now are added.

    Returns:
        node that was put in, by its name, -> its name in the body.
    """
    graph = proto.graph
    given = list(graph.node)
    held = {n.name: n for n in given if is_taken(n, taken)}
    del graph.node[:]
    graph.node.extend(n for n in given if n.name not in held)
    tensors, nodes = all_names(graph)
    outer = chain.from_iterable([*reads_of(n), *n.output, n.name] for n in held.values())
    tensors.update(outer)
    gone.update(held)
    nodes |= gone
    site = _Site(proto, tensors, nodes)
    for node in given:
        if node.name in held:
            site.replace(node, taken[node.name])
        else:
            site.emitted.append(node)
    kept = _needed(graph, site.emitted)
    del graph.node[:]
    graph.node.extend(kept)
    _drop_unread(graph, {t for n in held.values() for t in n.output})
    return site.names


def _needed(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Those that the outputs depend on: nothing reads the condition of an If that went."""
    wanted = {v.name for v in graph.output}
    kept = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            wanted.update(reads_of(node))
            kept.append(node)
    return kept[::-1]


def _drop_unread(graph: onnx.GraphProto, retyped: set[str]) -> None:
    """Drop constants that nothing reads, and types of tensors that are there no more, or that are
    to be inferred anew."""
    read = {t for n in graph.node for t in reads_of(n)} | {v.name for v in graph.output}
    weights = [t for t in graph.initializer if t.name in read]
    if len(weights) != len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(weights)
    written = {t for n in graph.node for t in n.output}
    typed = [v for v in graph.value_info if v.name in written and v.name not in retyped]
    del graph.value_info[:]
    graph.value_info.extend(typed)


@dataclass
class _Site:
    """The model while bodies are put into it.

    Attributes:
        tensors, nodes: names that are taken.
        emitted: the nodes in execution order.
        names: see `replace_taken`.
    """

    proto: onnx.ModelProto
    tensors: set[str]
    nodes: set[str]
    emitted: list[onnx.NodeProto] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def replace(self, node: onnx.NodeProto, branch: str) -> None:
        """Emit the branch that stands in the place of `node`."""
        body = branch_of(node, branch)
        assert body is not None  # is_taken looks
        self._put(body, self._constants(body), _results(body.output, node.output))

    def _constants(self, body: onnx.GraphProto) -> dict[str, str]:
        """Emit the constants of a body; their names, by those in it."""
        names = {t.name: free_name(t.name, self.tensors) for t in body.initializer}
        for tensor in body.initializer:
            self.proto.graph.initializer.append(tensor)
            self.proto.graph.initializer[-1].name = names[tensor.name]
        for node in body.node:
            if node.op_type == "Constant" and not _is_output(body, node):
                names[node.output[0]] = free_name(node.output[0], self.tensors)
                self._emit(node, {**names})
        return names

    def _put(self, body: onnx.GraphProto, bound: dict[str, str], results: dict[str, str]) -> None:
        """Emit the nodes of a body.

        Args:
            bound: tensors of the body that exist under these names.
            results: outer tensor -> the tensor of the body that it is.
        """
        names = dict(bound)
        wanted = {inner: outer for outer, inner in reversed(results.items())}
        written = [t for t in _written(body) if t not in bound]
        names |= {t: wanted.get(t) or free_name(t, self.tensors) for t in written}
        for node in body.node:
            if not (node.op_type == "Constant" and node.output[0] in bound):
                self._emit(node, names)
        for outer, inner in results.items():
            found = names.get(inner, inner)
            if found != outer:
                self._add("Identity", [found], outer)

    def _emit(self, node: onnx.NodeProto, names: Mapping[str, str]) -> None:
        copied = onnx.NodeProto()
        copied.CopyFrom(node)
        copied.input[:] = [names.get(t, t) for t in node.input]
        copied.output[:] = [names.get(t, t) for t in node.output]
        for body in bodies(copied):
            rename_tensors(body, names)
        made_up = f"{node.op_type}_{next(filter(None, copied.output), '')}"
        copied.name = free_name(node.name or made_up, self.nodes)
        self.names[copied.name] = node.name or copied.name
        self.emitted.append(copied)

    def _add(self, op_type: str, inputs: Sequence[str], output: str) -> None:
        name = free_name(f"{op_type}_{output}", self.nodes)
        self.emitted.append(helper.make_node(op_type, inputs, [output], name))


def _results(inner: Sequence[onnx.ValueInfoProto], outer: Sequence[str]) -> dict[str, str]:
    """Tensors outside of a body -> those of its outputs that they are."""
    return {name: v.name for name, v in zip(outer, inner, strict=False) if name}


def _is_output(body: onnx.GraphProto, node: onnx.NodeProto) -> bool:
    """Whether a body hands out what `node` writes."""
    return not {v.name for v in body.output}.isdisjoint(node.output)


def _written(body: onnx.GraphProto) -> list[str]:
    """The tensors that a body and those in it define, their inputs left out for `body` itself."""
    found = [t for n in body.node for t in n.output if t]
    for node in body.node:
        for inner in bodies(node):
            found += [t.name for t in inner.initializer] + [v.name for v in inner.input]
            found += _written(inner)
    return list(dict.fromkeys(found))
