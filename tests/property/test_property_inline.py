"""However If, Loop and Scan are nested and names repeat: the branch of an If computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnxruntime as ort
from control_flow import BOOL, INT64, model_of, value
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from qdebug.network.inline import ELSE, THEN
from qdebug.network.load import ModelFile
from qdebug.network.prepare import prepare_model, with_taken

POOL = ("a", "b", "c", "h", "t", "x_1", "a_iter0", "Identity_y")
"""Names of tensors and nodes: few, so that bodies that do not see each other share them."""
COUNTS = {"two": 2, "three": 3, "one": 1}


class Scope:
    """The names of tensors that a graph sees; and those in its bodies, which it must not use later:
    ONNX Runtime would take them for the same."""

    def __init__(self, names: set[str], around: Scope | None = None) -> None:
        self.names, self.below, self.around = set(names), set[str](), around

    def inner(self) -> Scope:
        return Scope(self.names, self)

    def free(self, random: Random) -> str:
        taken = self.names | self.below
        name = random.choice([n for n in POOL if n not in taken] or [f"v{len(taken)}"])
        while name in taken:
            name += "_"
        self.names.add(name)
        scope = self.around
        while scope is not None:
            scope.below.add(name)
            scope = scope.around
        return name


class Draw:
    """A random network: tensors of shape [2], conditions `yes` and `no`, a nesting of bodies."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.names: set[str] = set()

    def name(self) -> str:
        """For a node: unique in its own graph, or none."""
        options = ["", *(name for name in POOL if name not in self.names)]
        name = self.random.choice(options)
        self.names.add(name)
        return name

    def nodes(self, readable: list[str], visible: Scope, depth: int) -> Iterator[onnx.NodeProto]:
        """A few nodes; adds to `readable` what they write."""
        for _ in range(self.random.randint(1, 3)):
            kinds = ["plain", "plain", "If", "Loop", "Scan"] if depth else ["plain"]
            kind = self.random.choice(kinds)
            source = self.random.choice(readable)
            if kind == "plain":
                operator = self.random.choice(["Neg", "Tanh", "Add", "Mul", "Sub"])
                several = operator in ("Add", "Mul", "Sub")
                sources = [source, self.random.choice(readable)] if several else [source]
                output = visible.free(self.random)
                name = self.name()
                yield helper.make_node(operator, sources, [output], name)
            else:
                make = {"If": self.branches, "Loop": self.loop, "Scan": self.scan}[kind]
                yield (node := make(source, readable, visible, depth - 1))
                output = node.output[0]
            readable.append(output)

    def body(
        self,
        inputs: list[onnx.ValueInfoProto],
        readable: list[str],
        visible: Scope,
        depth: int,
        before: tuple[onnx.NodeProto, ...] = (),
    ) -> onnx.GraphProto:
        """A body that hands out its last tensor, and a constant of its own that it reads."""
        own, around = list(readable), self.names
        self.names = set()
        held = visible.free(self.random)
        own.append(held)
        nodes = [*before, *self.nodes(own, visible, depth)]
        result = visible.free(self.random)
        nodes.append(helper.make_node("Add", [own[-1], held], [result], self.name()))
        self.names = around
        weight = np.float32([self.random.random(), -self.random.random()])
        return helper.make_graph(
            nodes, "body", inputs, [value(result, [2])], [numpy_helper.from_array(weight, held)]
        )

    def branches(
        self, source: str, readable: list[str], visible: Scope, depth: int
    ) -> onnx.NodeProto:
        readable = [*readable, source]
        output = visible.free(self.random)
        bodies = {which: self.body([], readable, visible.inner(), depth) for which in (THEN, ELSE)}
        condition = self.random.choice(["yes", "no"])
        return helper.make_node("If", [condition], [output], self.name(), **bodies)

    def loop(self, source: str, readable: list[str], visible: Scope, depth: int) -> onnx.NodeProto:
        output = visible.free(self.random)
        inner = visible.inner()
        number, go, state, on = (inner.free(self.random) for _ in range(4))
        body = self.body(
            [value(number, [], INT64), value(go, [], BOOL), value(state, [2])],
            [*readable, state],
            inner,
            depth,
            before=(helper.make_node("Identity", [go], [on], ""),),
        )
        result = body.output[0].name
        del body.output[:]
        body.output.extend([value(on, [], BOOL), value(result, [2])])
        trips = self.random.choice(list(COUNTS))
        name = self.name()
        return helper.make_node("Loop", [trips, "", source], [output], name, body=body)

    def scan(self, source: str, readable: list[str], visible: Scope, depth: int) -> onnx.NodeProto:
        output = visible.free(self.random)
        inner = visible.inner()
        state, step = inner.free(self.random), inner.free(self.random)
        body = self.body(
            [value(state, [2]), value(step, [2])], [*readable, state, step], inner, depth
        )
        name = self.name()
        return helper.make_node(
            "Scan", [source, "rows"], [output], name, body=body, num_scan_inputs=1
        )

    def model(self) -> onnx.ModelProto:
        given = ["x", "yes", "no", "rows", "y", *COUNTS]
        readable = ["x"]
        nodes = list(self.nodes(readable, Scope(set(given)), 2))
        nodes.append(helper.make_node("Neg", [readable[-1]], ["y"], "out"))
        held = [numpy_helper.from_array(np.array(n), name) for name, n in COUNTS.items()]
        inputs = [value("x", [2]), value("yes", [], BOOL), value("no", [], BOOL)]
        inputs.append(value("rows", [3, 2]))
        return model_of(helper.make_graph(nodes, "g", inputs, [value("y", [2])], held), 16)


def taken_by(node: onnx.NodeProto) -> str:
    return THEN if node.input[0] == "yes" else ELSE


def executed(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(["y"], feeds)[0])


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_what_is_put_in_computes_the_same(seed: int) -> None:
    proto = Draw(seed).model()
    rng = np.random.default_rng(seed)
    feeds = {
        "x": rng.normal(size=2).astype(np.float32),
        "rows": rng.normal(size=(3, 2)).astype(np.float32),
        "yes": np.array(True),
        "no": np.array(False),
    }
    model = prepare_model(ModelFile(Path("net.onnx"), proto, "", ""))
    taken: dict[str, str] = {}
    while ifs := [n for n in with_taken(model, taken).graph.proto.graph.node if n.op_type == "If"]:
        taken |= {node.name: taken_by(node) for node in ifs}
    straight = with_taken(model, taken)
    onnx.checker.check_model(straight.graph.proto, full_check=True)
    names = [node.name for node in straight.graph.nodes]
    assert len(set(names)) == len(names)
    want, got = executed(proto, feeds), executed(straight.graph.proto, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
