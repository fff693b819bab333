"""LSTM, GRU and RNN in FP16, step by step, as TensorRT's kernels round them.

TensorRT's parser writes each out as a loop over the steps: a product of the input and one of the
state, sums, activations, and products of gates. Each of those is rounded to FP16, except that a sum
of two products of gates rounds only the second (it is one fused multiplication and addition).
Observed on an H200 with TensorRT for RTX 1.6.1 with more than one sample: 98 % of the elements of
the first step are equal; what differs is carried on, and the errors stay within 0.5 dB.

One sample makes the products those of a vector. Then the kernels differ: the product with the input
rounds its terms and not its sum, or, in two directions, only its sum. In one direction over several
steps (12 to 40 were tried) the input of all steps is multiplied at once, as a matrix.

A sum over few steps may be rounded otherwise where a loop is unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from qdebug.backends.fp16_emulation.products import block_sum, rounded_terms
from qdebug.backends.fp16_emulation.sketch import Shape, Sketch
from qdebug.plan.rewrite.edit import attributes_of, make_node

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_ACTIVATIONS = {
    "RNN": [b"Tanh"],
    "GRU": [b"Sigmoid", b"Tanh"],
    "LSTM": [b"Sigmoid", b"Tanh", b"Tanh"],
}
_UNUSUAL = ("clip", "input_forget", "layout", "activation_alpha", "activation_beta")
_LENGTHS, _FIRST_STATE, _PEEPHOLES = 4, 5, 7
"""Positions of inputs: the lengths of sequences, the first of the initial states, peepholes."""


def is_usual(node: onnx.NodeProto) -> bool:
    """Whether a node of RECURRENT is of the kind that is emulated: default activations, no
    peepholes, sequences of one length, batches in the second axis."""
    given = attributes_of(node)
    if any(given.get(name) for name in _UNUSUAL):
        return False
    if any(i < len(node.input) and node.input[i] for i in (_LENGTHS, _PEEPHOLES)):
        return False
    named, usual = given.get("activations"), _ACTIVATIONS[node.op_type]
    return not named or list(named) in (usual, usual * 2)


def recurrent(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> bool:
    """Adds the nodes that compute the outputs of an LSTM, GRU or RNN; False where it `is_usual`
    not."""
    if not is_usual(node):
        return False
    given = attributes_of(node)
    directions = {b"forward": (False,), b"reverse": (True,), b"bidirectional": (False, True)}[
        given.get("direction", b"forward")
    ]
    steps, batch = shapes[0][:2] if shapes[0] is not None and len(shapes[0]) == 3 else (None, None)
    paired = len(directions) > 1
    at_once = not paired and steps != 1
    found = [
        _Direction(sketch, node, k, backwards, batch == 1, paired, at_once).run()
        for k, backwards in enumerate(directions)
    ]
    for output, parts in zip(node.output, zip(*found, strict=True), strict=False):
        if output:
            axis = 1 if output == node.output[0] else 0
            sketch.add("Concat", *parts, output=output, axis=axis)
    return True


@dataclass
class _Direction:
    """One direction of a node.

    Attributes:
        number: its place on the axis of directions.
        single: there is one sample, so its products are of a vector.
        paired: there is another direction, whose products are in the same kernels.
        at_once: the input of all steps is multiplied before the first step.
    """

    sketch: Sketch
    node: onnx.NodeProto
    number: int
    backwards: bool
    single: bool
    paired: bool
    at_once: bool

    def run(self) -> tuple[str, ...]:
        """The outputs in FP16, with an axis for the directions: Y, Y_h and, of an LSTM, Y_c."""
        sketch = self.sketch
        # [gates · hidden, terms] -> [terms, gates · hidden]
        weights, state_weights = (
            sketch.wide(sketch.add("Transpose", self._of(i), perm=[1, 0])) for i in (1, 2)
        )
        biases = self._biases()
        pixels = sketch.wide(self.node.input[0])
        size = sketch.add("Shape", self._of(2))  # [gates · hidden, hidden]
        hidden = sketch.add("Gather", size, sketch.ints([1]))
        states = [self._first(i, hidden) for i in range(1 + (self.node.op_type == "LSTM"))]
        step = _Step(hidden, biases, weights, state_weights, self.single, self.paired, self.at_once)
        body = sketch.inner()
        names = [body.name() for _ in (*states, pixels)]
        late = attributes_of(self.node).get("linear_before_reset", 0)
        cell = _CELLS["late GRU" if late else self.node.op_type]
        after = cell(body, step, names[-1], *(body.wide(n) for n in names[:-1]))
        halves = [body.half(t) for t in after]
        results = [*halves, body.add("Identity", halves[0])]
        value, half = helper.make_tensor_value_info, TensorProto.FLOAT16
        matrix = (None, None)  # Scan wants to know the rank
        inputs = [value(n, half, matrix) for n in names[:-1]]
        graph = helper.make_graph(
            body.nodes,
            "step",
            [*inputs, value(names[-1], TensorProto.FLOAT, matrix)],
            [value(name, half, matrix) for name in results],
        )
        outputs = [sketch.name() for _ in results]
        way = int(self.backwards)
        scan = make_node(
            "Scan",
            [*states, pixels],
            outputs[0],
            body=graph,
            num_scan_inputs=1,
            scan_input_directions=[way],
            scan_output_directions=[way],
        )
        scan.output.extend(outputs[1:])
        sketch.nodes.append(scan)
        *last, all_steps = outputs
        first, second = sketch.ints([0]), sketch.ints([1])
        return (
            sketch.add("Unsqueeze", all_steps, second),
            *(sketch.add("Unsqueeze", state, first) for state in last),
        )

    def _of(self, position: int) -> str:
        """This direction's part of an input, without the axis of directions."""
        return self.sketch.add(
            "Gather", self.node.input[position], self.sketch.ints(self.number), axis=0
        )

    def _biases(self) -> tuple[str, str] | None:
        """Of the input's product and of the state's, in FP32; None without any."""
        if len(self.node.input) <= 3 or not self.node.input[3]:
            return None
        both = self.sketch.wide(self._of(3))
        halves = self.sketch.add("Reshape", both, self.sketch.ints([2, -1]))
        first, second = (self.sketch.add("Gather", halves, self.sketch.ints(i)) for i in (0, 1))
        return first, second

    def _first(self, number: int, hidden: str) -> str:
        """An initial state [batch, hidden] in FP16."""
        position = _FIRST_STATE + number
        if position < len(self.node.input) and self.node.input[position]:
            return self._of(position)
        size = self.sketch.add("Shape", self.node.input[0])
        batch = self.sketch.add("Gather", size, self.sketch.ints([1]))
        shape = self.sketch.add("Concat", batch, hidden, axis=0)
        zero = helper.make_tensor("zero", TensorProto.FLOAT16, [1], np.zeros(1, np.float16))
        return self.sketch.add("ConstantOfShape", shape, value=zero)


@dataclass(frozen=True)
class _Step:
    """What the steps of one direction share, as names of FP32 tensors; see _Direction."""

    hidden: str
    biases: tuple[str, str] | None
    weights: str
    state_weights: str
    single: bool
    paired: bool
    at_once: bool

    def of_input(self, body: Sketch, x: str, weights: str) -> str:
        """The product with the input."""
        if not self.single or self.at_once:
            return block_sum(body, x, weights)
        if self.paired:
            return body.rounded(body.add("MatMul", x, weights))
        return rounded_terms(body, x, weights)

    def of_state(self, body: Sketch, state: str, weights: str) -> str:
        """The product with the state."""
        if not self.single:
            return block_sum(body, state, weights)
        return body.rounded(rounded_terms(body, state, weights))

    def part(self, body: Sketch, tensor: str, first: int, last: int) -> str:
        """Gates `first` up to, but without, `last` of a tensor that holds all in its last axis."""
        start, end = (body.add("Mul", self.hidden, body.ints([n])) for n in (first, last))
        return body.add("Slice", tensor, start, end, body.ints([-1]))


def _sum(body: Sketch, *terms: str) -> str:
    """Added one after the other, each sum rounded."""
    total, *rest = terms
    for term in rest:
        total = body.rounded(body.add("Add", total, term))
    return total


def _product(body: Sketch, a: str, b: str) -> str:
    return body.rounded(body.add("Mul", a, b))


def _blend(body: Sketch, a: str, b: str, c: str, d: str) -> str:
    """a · b + c · d, of which the second product is rounded."""
    return body.rounded(body.add("Add", body.add("Mul", a, b), _product(body, c, d)))


def _activated(body: Sketch, op_type: str, tensor: str) -> str:
    return body.rounded(body.add(op_type, tensor))


def _rnn(body: Sketch, step: _Step, x: str, state: str) -> list[str]:
    return [_activated(body, "Tanh", _all_gates(body, step, x, state))]


def _lstm(body: Sketch, step: _Step, x: str, state: str, memory: str) -> list[str]:
    total = _all_gates(body, step, x, state)
    gates = [step.part(body, total, i, i + 1) for i in range(4)]
    enter, leave, keep = (_activated(body, "Sigmoid", gate) for gate in gates[:3])
    memory = _blend(body, keep, memory, enter, _activated(body, "Tanh", gates[3]))
    return [_product(body, leave, _activated(body, "Tanh", memory)), memory]


def _all_gates(body: Sketch, step: _Step, x: str, state: str) -> str:
    """Both products and the sum of both biases."""
    terms = [step.of_input(body, x, step.weights), step.of_state(body, state, step.state_weights)]
    if step.biases:
        terms.append(body.rounded(body.add("Add", *step.biases)))
    return _sum(body, *terms)


def _update_and_reset(body: Sketch, step: _Step, x: str, state: str) -> tuple[str, str]:
    """The first two gates of a GRU."""
    own, other = (step.part(body, w, 0, 2) for w in (step.weights, step.state_weights))
    terms = [step.of_input(body, x, own), step.of_state(body, state, other)]
    if step.biases:
        terms += [step.part(body, bias, 0, 2) for bias in step.biases]
    both = _activated(body, "Sigmoid", _sum(body, *terms))
    return step.part(body, both, 0, 1), step.part(body, both, 1, 2)


def _gru(body: Sketch, step: _Step, x: str, state: str) -> list[str]:
    update, reset = _update_and_reset(body, step, x, state)
    own, other = (step.part(body, w, 2, 3) for w in (step.weights, step.state_weights))
    terms = [
        step.of_input(body, x, own),
        step.of_state(body, _product(body, reset, state), other),
    ]
    if step.biases:
        biases = [step.part(body, bias, 2, 3) for bias in step.biases]
        terms.append(body.rounded(body.add("Add", *biases)))
    return _gru_state(body, update, _activated(body, "Tanh", _sum(body, *terms)), state)


def _gru_of_a_late_reset(body: Sketch, step: _Step, x: str, state: str) -> list[str]:
    """A GRU with linear_before_reset, as PyTorch exports it."""
    update, reset = _update_and_reset(body, step, x, state)
    own, other = (step.part(body, w, 2, 3) for w in (step.weights, step.state_weights))
    inner = step.of_state(body, state, other)
    if step.biases:
        inner = _sum(body, inner, step.part(body, step.biases[1], 2, 3))
    inner = _product(body, reset, inner)
    if step.biases:
        inner = _sum(body, inner, step.part(body, step.biases[0], 2, 3))
    total = _sum(body, step.of_input(body, x, own), inner)
    return _gru_state(body, update, _activated(body, "Tanh", total), state)


def _gru_state(body: Sketch, update: str, fresh: str, state: str) -> list[str]:
    one = body.constant(np.float32(1))
    rest = body.rounded(body.add("Sub", one, update))
    return [_blend(body, rest, fresh, update, state)]


_CELLS: Mapping[str, Callable[..., list[str]]] = {
    "GRU": _gru,
    "late GRU": _gru_of_a_late_reset,
    "LSTM": _lstm,
    "RNN": _rnn,
}
