"""Replace an If by the branch that it takes, a Loop or a Scan by its iterations.

What is inside of a body is then a part of the model like everything else. Names are kept where they
are free; those of an iteration end in `_iter0`, `_iter1`, …; what an If, Loop or Scan writes keeps
its name. Constants of a body exist once, however many iterations there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import onnx
from onnx import helper

from qdebug.network.graph import reads_of
from qdebug.network.subgraphs import all_names, bodies, free_name, rename_tensors
from qdebug.network.weights import tensor_of
from qdebug.types import Array

THEN, ELSE = "then_branch", "else_branch"
CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})

MOST_ITERATIONS = 32
"""A Loop or Scan of more iterations is not unrolled."""

Taken = Mapping[str, str | int]
"""By the name of the node: the branch of an If (THEN, ELSE), the number of iterations of others."""


def is_control_flow(node: onnx.NodeProto) -> bool:
    """Whether it is one of ONNX's own operators with a body."""
    return node.op_type in CONTROL_FLOW and node.domain in ("", "ai.onnx") and bool(bodies(node))


def is_taken(node: onnx.NodeProto, taken: Taken) -> bool:
    """Whether `taken` says what stands in the place of a node: a branch for an If, a number of
    iterations for the others."""
    what = taken.get(node.name)
    if what is None or not is_control_flow(node) or not fits(node):
        return False
    if node.op_type == "If":
        return what in (THEN, ELSE)
    return isinstance(what, int) and 0 < what <= MOST_ITERATIONS


_SCAN_TYPES = {
    "num_scan_inputs": onnx.AttributeProto.INT,
    "scan_input_axes": onnx.AttributeProto.INTS,
    "scan_input_directions": onnx.AttributeProto.INTS,
    "scan_output_axes": onnx.AttributeProto.INTS,
    "scan_output_directions": onnx.AttributeProto.INTS,
}


def fits(node: onnx.NodeProto) -> bool:
    """Whether the bodies of an If, a Loop or a Scan take and give as many tensors as it does."""
    parts = {a.name: a.g for a in node.attribute if a.HasField("g")}
    inputs, outputs = len(node.input), len(node.output)
    if node.op_type == "If":
        branches = [parts.get(THEN), parts.get(ELSE)]
        return inputs == 1 and all(
            b is not None and len(b.output) == outputs and not b.input for b in branches
        )
    body = parts.get("body")
    if body is None:
        return False
    if node.op_type == "Loop":
        inputs = max(inputs, 2)
        carried, before = inputs - 2, 1
    else:
        how = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        scanned = how.get("num_scan_inputs", 0)
        if any(a.type != _SCAN_TYPES.get(a.name, a.type) for a in node.attribute):
            return False
        carried, before = inputs - scanned, 0
        if not 0 < scanned <= inputs:
            return False
        given = [len(how[n]) for n in ("scan_input_axes", "scan_input_directions") if n in how]
        made = [len(how[n]) for n in ("scan_output_axes", "scan_output_directions") if n in how]
        if {scanned, *given} != {scanned} or any(n != len(body.output) - carried for n in made):
            return False
    return len(body.input) == inputs and len(body.output) >= max(before + carried, outputs)


def body_of(node: onnx.NodeProto, taken: str | int) -> onnx.GraphProto:
    """What stands in the place of a node."""
    wanted = taken if isinstance(taken, str) else "body"
    return next(a.g for a in node.attribute if a.name == wanted)


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

    def replace(self, node: onnx.NodeProto, taken: str | int) -> None:
        """Emit what stands in the place of `node`."""
        body = body_of(node, taken)
        shared = self._constants(body)
        if isinstance(taken, str):
            self._put(body, shared, _results(body.output, node.output), "")
        elif node.op_type == "Loop":
            self._unroll_loop(node, body, shared, taken)
        else:
            self._unroll_scan(node, body, shared, taken)

    def _unroll_loop(
        self, node: onnx.NodeProto, body: onnx.GraphProto, shared: dict[str, str], count: int
    ) -> None:
        number, condition, *carried = (v.name for v in body.input)
        rank = len(
            body.input[0].type.tensor_type.shape.dim
        )  # some exporters write [1] for a scalar
        proceed = node.input[1] if len(node.input) > 1 and node.input[1] else ""
        state = [proceed or self._constant(np.array(True), "true"), *node.input[2:]]
        stacks: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
        for i in range(count):
            bound = dict(zip([condition, *carried], state, strict=True))
            bound[number] = self._constant(np.full((1,) * rank, i, np.int64), f"{number}_iter{i}")
            last = node.output[: len(carried)] if i == count - 1 else ()
            state = self._iteration(body, {**shared, **bound}, i, 1, last, stacks)
        for stack, output in zip(stacks, node.output[len(carried) :], strict=False):
            self._stack(stack, output, 0)

    def _unroll_scan(
        self, node: onnx.NodeProto, body: onnx.GraphProto, shared: dict[str, str], count: int
    ) -> None:
        how = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        scanned = how["num_scan_inputs"]
        carried = len(node.input) - scanned
        stacked = len(body.output) - carried
        axes = how.get("scan_input_axes", [0] * scanned)
        backwards = how.get("scan_input_directions", [0] * scanned)
        state = list(node.input[:carried])
        stacks: list[list[str]] = [[] for _ in range(stacked)]
        for i in range(count):
            slices = [
                self._slice(tensor, count - 1 - i if back else i, axis)
                for tensor, axis, back in zip(node.input[carried:], axes, backwards, strict=True)
            ]
            bound = dict(zip((v.name for v in body.input), [*state, *slices], strict=True))
            last = node.output[:carried] if i == count - 1 else ()
            state = self._iteration(body, {**shared, **bound}, i, 0, last, stacks)
        to_axes = how.get("scan_output_axes", [0] * stacked)
        reverse = how.get("scan_output_directions", [0] * stacked)
        for k, (stack, output) in enumerate(zip(stacks, node.output[carried:], strict=False)):
            self._stack(stack[::-1] if reverse[k] else stack, output, to_axes[k])

    def _iteration(
        self,
        body: onnx.GraphProto,
        bound: dict[str, str],
        number: int,
        before: int,
        last: Sequence[str],
        stacks: list[list[str]],
    ) -> list[str]:
        """Emit one iteration; return what it hands on, and add what is stacked to `stacks`.

        Args:
            before: outputs of the body before those that are carried.
            last: what the carried ones are called after the last iteration.
        """
        results = _results(body.output[before:], last)
        names = self._put(body, bound, results, f"_iter{number}")
        found = [names.get(v.name, v.name) for v in body.output]
        for stack, tensor in zip(reversed(stacks), reversed(found), strict=False):
            stack.append(tensor)
        return found[: len(found) - len(stacks)]

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

    def _put(
        self, body: onnx.GraphProto, bound: dict[str, str], results: dict[str, str], suffix: str
    ) -> dict[str, str]:
        """Emit the nodes of a body.

        Args:
            bound: tensors of the body that exist under these names.
            results: outer tensor -> the tensor of the body that it is.

        Returns:
            the names of the body's tensors in the model.
        """
        names = dict(bound)
        wanted = {inner: outer for outer, inner in reversed(results.items())}
        written = [t for t in _written(body) if t not in bound]
        names |= {t: wanted.get(t) or free_name(t + suffix, self.tensors) for t in written}
        for node in body.node:
            if not (node.op_type == "Constant" and node.output[0] in bound):
                self._emit(node, names, suffix)
        for outer, inner in results.items():
            found = names.get(inner, inner)
            if found != outer:
                self._add("Identity", [found], outer)
        return names

    def _emit(self, node: onnx.NodeProto, names: Mapping[str, str], suffix: str = "") -> None:
        copied = onnx.NodeProto()
        copied.CopyFrom(node)
        copied.input[:] = [names.get(t, t) for t in node.input]
        copied.output[:] = [names.get(t, t) for t in node.output]
        for body in bodies(copied):
            rename_tensors(body, names)
        made_up = f"{node.op_type}_{next(filter(None, copied.output), '')}"
        copied.name = free_name(node.name + suffix if node.name else made_up, self.nodes)
        self.names[copied.name] = node.name or copied.name
        self.emitted.append(copied)

    def _add(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        name = free_name(f"{op_type}_{output}", self.nodes)
        self.emitted.append(helper.make_node(op_type, inputs, [output], name, **attributes))
        return output

    def _slice(self, tensor: str, index: int, axis: int) -> str:
        """One element of `tensor` along an axis, which goes."""
        at = self._constant(np.array(index, np.int64), f"index_{index}")
        output = free_name(f"{tensor}_{index}", self.tensors)
        return self._add("Gather", [tensor, at], output, axis=axis)

    def _stack(self, parts: Sequence[str], output: str, axis: int) -> None:
        if not output:
            return
        axes = self._constant(np.array([axis], np.int64), f"{output}_axis")
        rows = [
            self._add("Unsqueeze", [part, axes], free_name(f"{part}_stacked", self.tensors))
            for part in parts
        ]
        self._add("Concat", rows, output, axis=axis)

    def _constant(self, values: Array, wanted: str) -> str:
        name = free_name(wanted, self.tensors)
        self.proto.graph.initializer.append(tensor_of(values, name))
        return name


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
