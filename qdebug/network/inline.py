"""Replace an If by the branch that it takes.

What is inside of the branch is then a part of the model like everything else. Names are kept where
they are free, and what the If writes keeps its name. A Loop or a Scan stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import onnx
from onnx import helper

from qdebug.network.subgraphs import (
    all_names,
    bodies,
    free_name,
    made_up_name,
    own_names,
    prune,
    reads_of,
    refill,
    rename_tensors,
)

THEN, ELSE = "then_branch", "else_branch"
CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})

Taken = Mapping[str, str]
"""By the name of an If: the branch that it takes, THEN or ELSE."""


def is_control_flow(node: onnx.NodeProto) -> bool:
    """Whether it is one of ONNX's own operators with a body."""
    return node.op_type in CONTROL_FLOW and node.domain in ("", "ai.onnx") and bool(bodies(node))


def fits(node: onnx.NodeProto) -> bool:
    """Whether it is an If whose branches give as many tensors as it does."""
    branches = {a.name: a.g for a in node.attribute if a.HasField("g")}
    return (
        node.op_type == "If"
        and len(node.input) == 1
        and {THEN, ELSE} <= branches.keys()
        and all(len(b.output) == len(node.output) and not b.input for b in branches.values())
    )


def replace_taken(graph: onnx.GraphProto, taken: Taken) -> tuple[set[str], dict[str, str]]:
    """Put the branch that is taken in the place of each If that `taken` names, in place, those
    inside of others after these, and drop what then computes nothing.

    Nodes must have unique names, and so have those that are put in. `taken` names a node inside of
    another by the name that it gets here.

    Returns:
        the nodes that were replaced; node that was put in, by its name, -> its name in the branch.
    """
    gone: set[str] = set()
    inner: dict[str, str] = {}
    while held := {n.name: n for n in graph.node if _is_taken(n, taken)}:
        gone |= held.keys()
        nodes = list(graph.node)
        refill(graph.node, [n for n in nodes if n.name not in held])
        tensors, names = all_names(graph)
        tensors.update(t for n in held.values() for t in (*reads_of(n), *n.output))
        names |= gone
        del graph.node[:], graph.value_info[:]  # their types are inferred anew
        for node in nodes:
            if node.name in held:
                body = _branch(node, taken[node.name], tensors, names, inner)
                graph.node.extend(body.node)
                graph.initializer.extend(body.initializer)
            else:
                graph.node.append(node)
        prune(graph)
    return gone, inner


def _is_taken(node: onnx.NodeProto, taken: Taken) -> bool:
    return taken.get(node.name) in (THEN, ELSE) and is_control_flow(node) and fits(node)


def _branch(
    node: onnx.NodeProto, branch: str, tensors: set[str], nodes: set[str], inner: dict[str, str]
) -> onnx.GraphProto:
    """A branch of an If, as it is outside of it; adds its names to those that are taken, and to
    `inner`."""
    body = deepcopy(next(a.g for a in node.attribute if a.name == branch))
    written = {t for n in body.node for t in n.output if t}
    names: dict[str, str] = {}
    for result, output in zip(body.output, node.output, strict=True):
        if output and result.name in written:
            names.setdefault(result.name, output)
    for tensor in sorted(_defined(body) - names.keys()):
        names[tensor] = free_name(tensor, tensors)
    rename_tensors(body, names)
    for held in body.node:
        own = held.name or made_up_name(held)
        held.name = free_name(own, nodes)
        inner[held.name] = own
    for result, output in zip(body.output, node.output, strict=True):
        if output and result.name != output:
            name = free_name(f"Identity_{output}", nodes)
            body.node.append(helper.make_node("Identity", [result.name], [output], name))
    return body


def _defined(body: onnx.GraphProto) -> set[str]:
    """The tensors that a body and those in it define."""
    inner = (_defined(b) for node in body.node for b in bodies(node))
    return own_names(body).union(*inner)
