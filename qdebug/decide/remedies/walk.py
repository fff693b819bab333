"""Walk through a network, layer by layer, with its activations in FP32 and as quantized so far.

Node after node is executed, by a session of its own, on all samples, several executions at once;
what no later node reads is freed. So each layer can be changed to make up for the errors that
arrive at it from the layers before, as changed, and for its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

from qdebug.backends.stream import Threads
from qdebug.decide.remedies.activation import Activation
from qdebug.decide.remedies.product import channel_axis
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Study
from qdebug.decide.remedies.streams import AtOnce, Batches, Operator, Streams, in_turn, readings
from qdebug.formats.base import FloatArray, Format
from qdebug.formats.registry import SCALED
from qdebug.metrics.sums import error_energy, signal_energy
from qdebug.network.layers import Layer
from qdebug.plan.plan import Correction, TensorRange
from qdebug.plan.rewrite.qdq import QuantizedLayer, along_channels, quantized_operands
from qdebug.types import Array, Progress

TriedT = TypeVar("TriedT")

_MOST_TRIALS = 8
_TRIAL_COPIES = 8
"""Trials of which the weights are there at once, at most, and how many times its own size a weight
takes while it is made."""


@dataclass(frozen=True)
class Trial:
    """Other operands of a layer: its input, changed, and another weight."""

    change: Callable[[FloatArray], FloatArray]
    weight: FloatArray


@dataclass
class Site:
    """A layer with a weight, in INT8, where a walk has arrived. It may be changed, by `correct` and
    `set_range`, before the walk goes on.

    Attributes:
        layer: the layer.
        source: the activation that its anchor multiplies by the weight.
        weight: its own, float32.
        axis: that of the output channels in the weight; None where there are none.
        reference: `source` in FP32.
        inputs: `source` as quantized so far, before this layer's own Q/DQ.
        targets: the anchor's output in FP32, with the bias that is an operand of its own.
        network: as changed so far.
        memory_bytes: what weights of trials may hold.
        activation: what the anchor's output goes through before anything else reads it; None where
            it is read as it is.
        at_once: does work on the executions. Where they are fewer than the cores it takes them in
            turn, each on all cores; trials, which are many, run side by side all the same.
    """

    layer: Layer
    source: str
    weight: FloatArray
    axis: int | None
    reference: Batches
    inputs: Batches
    targets: Batches
    network: Quantized
    memory_bytes: int
    activation: Activation | None
    at_once: AtOnce = field(repr=False)
    _anchor: Operator = field(repr=False)
    _tried: Operator = field(repr=False)
    _try_at_once: AtOnce = field(repr=False)
    _product: tuple[bytes, Batches] | None = field(default=None, repr=False)

    @property
    def quantized(self) -> QuantizedLayer:
        """The layer's scales and correction, as they are now."""
        return self.network.quantized(self.layer.name)

    @property
    def scale(self) -> FloatArray:
        """That of `source`."""
        return self.quantized.activations[self.source]

    @property
    def format(self) -> Format:
        """What its operands are rounded to."""
        return self.network.bound.format_of(self.layer)

    @property
    def correction(self) -> Correction:
        """As it is now."""
        return self.network.bound.corrections.get(self.layer.name, Correction())

    def rounded(self) -> Batches:
        """`inputs` after Q/DQ."""
        scale, form = self.scale, self.format
        return self.at_once(lambda x: form.quantize(x, scale), self.inputs)

    def rounded_weight(self) -> FloatArray:
        """The weight that the layer computes with now: corrected, and after its Q/DQ."""
        how = self.quantized.weight
        assert how is not None
        values = self.weight if how.values is None else how.values
        return how.format.quantize(values, how.scale, how.axis)

    def product(self, x: FloatArray, weight: FloatArray) -> FloatArray:
        """The anchor's output in one execution of `by_execution`, without the correction of the
        bias."""
        found: FloatArray = self._tried.run({self.source: x, self._weight: weight})
        return found

    def by_execution(
        self, error: Callable[[TriedT, int], float], tried: Sequence[TriedT]
    ) -> list[float]:
        """The sum of `error` over the executions, given by number, for all that is tried."""
        count = len(self.inputs)
        pairs = [(one, i) for one in tried for i in range(count)]
        found = self._try_at_once(lambda pair: error(*pair), pairs)
        return [sum(found[i : i + count]) for i in range(0, len(found), count)]

    def noise(self, trials: Sequence[Callable[[], Trial]]) -> list[float]:
        """Σerr²/Σref² of what the anchor gives for `reference` in each trial; NaN where that is not
        finite."""
        exact, energy = self._exact

        def error(trial: Trial, i: int) -> float:
            found = self.product(trial.change(self.reference[i]), trial.weight)
            return error_energy(exact[i], found)

        room = self.memory_bytes // max(1, _TRIAL_COPIES * self.weight.nbytes)
        most = max(1, min(_MOST_TRIALS, room))
        found: list[float] = []
        for start in range(0, len(trials), most):
            some = self._try_at_once(lambda make: make(), trials[start : start + most])
            found += [total / energy if energy else 0.0 for total in self.by_execution(error, some)]
        return found

    @cached_property
    def _exact(self) -> tuple[Batches, float]:
        """What the anchor gives for `reference`, and Σref² of it."""
        exact = self._run(self.reference, self.weight)
        return exact, sum(self.at_once(signal_energy, exact))

    def _run(
        self,
        inputs: Batches,
        weight: FloatArray,
        change: Callable[[FloatArray], FloatArray] = lambda x: x,
    ) -> Batches:
        """The anchor's output for inputs that are changed."""
        return self.at_once(
            lambda x: self._anchor.run({self.source: change(x), self._weight: weight}), inputs
        )

    def outputs(self) -> Batches:
        """The anchor's output as quantized now, correction included."""
        weight = self.rounded_weight()
        key = self.scale.tobytes() + hashlib.sha256(weight.data).digest()
        if self._product is None or self._product[0] != key:
            self._product = None  # before there is another one
            scale, form = self.scale, self.format
            found = self._run(self.inputs, weight, lambda x: form.quantize(x, scale))
            self._product = key, found
        plain = self._product[1]
        bias = self.correction.bias
        if bias is None:
            return plain
        shift = along_channels(self.network.graph, self.layer, bias)
        return self.at_once(lambda one: one + shift, plain)

    def error(self) -> float:
        """The squared error that the layer leaves behind its activation, as quantized now."""
        through = self.activation or (lambda x: x)
        pairs = list(zip(self.targets, self.outputs(), strict=True))
        return sum(error_energy(through(target), through(output)) for target, output in pairs)

    def correct(self, correction: Correction) -> None:
        """Give the layer a correction in place of the one it has."""
        self.network = self.network.with_corrections({self.layer.name: correction})

    def set_range(self, tensor: str, entry: TensorRange) -> None:
        """Give a tensor another range; every layer that reads it from here on gets it."""
        self.network = self.network.with_ranges({tensor: entry})

    @property
    def _weight(self) -> str:
        assert self.layer.weight is not None
        return self.layer.weight


@dataclass
class Walk:
    """A walk through `network` on some of the calibration samples, as many as fit the memory.

    Iterating gives the sites of `wanted` layers (None: all that may be corrected) in execution
    order; `network` is then the network with all that was changed at them.

    Attributes:
        exact: nothing is quantized on the way: `inputs` of every site are its `reference`.
    """

    study: Study
    network: Quantized
    wanted: frozenset[str] | None = None
    stage: str = "repair"
    most_samples: int = 64
    exact: bool = False

    @cached_property
    def feeds(self) -> list[Mapping[str, Array]]:
        """The inputs of each execution."""
        samples, batches = self.study.samples.samples, self.study.samples.batches
        most = max(1, min(self._room, self.most_samples // batches[0].count, len(batches)))
        chosen = [batches[i * len(batches) // most] for i in range(most)]
        return [samples.feeds(batch.start, batch.count) for batch in chosen]

    @cached_property
    def _room(self) -> int:
        """How many executions the memory holds, at least 1."""
        return max(1, self.study.memory_bytes // max(1, self._live_bytes()))

    def __iter__(self) -> Iterator[Site]:
        graph = self.network.graph
        names = {layer.name for layer in self.network.weighted()}
        wanted = names if self.wanted is None else names & self.wanted
        done = 0
        with ExitStack() as stack:
            few = len(self.feeds) < self.study.workers
            backend = (few and self.study.alone) or self.study.backend
            at_once = self._threads(stack)
            streams = Streams(self.feeds, readings(graph), in_turn if few else at_once)
            for node in graph.nodes:
                if node.outputs[0] in graph.initializers:
                    continue
                with (
                    closing(Operator(backend, graph, node)) as operator,
                    closing(Operator(self.study.backend, graph, node)) as tried,
                ):
                    layer = self.network.layers.of_node.get(node.name)
                    streams.reference(operator)
                    site = None
                    if layer is not None and layer.name in wanted and node.name == layer.name:
                        done += 1
                        self.study.progress(Progress(self.stage, done, len(wanted)))
                        with closing(self._activation(layer)) as behind:
                            site = self._site(streams, layer, operator, tried, behind, at_once)
                            yield site
                        self.network = site.network
                    if self.exact:
                        streams.same(node)
                    elif site is not None:
                        streams.rounded[node.outputs[0]] = site.outputs()
                    else:
                        self._quantized(streams, operator, layer)
                streams.release(node)

    def _threads(self, stack: ExitStack) -> AtOnce:
        """Does work on as many executions at once as the memory allows."""
        workers = min(self.study.workers, self._room)
        if workers < 2:
            return in_turn
        threads = Threads(workers)
        stack.callback(threads.shutdown, wait=True, cancel_futures=True)
        return lambda work, items: list(threads.map(work, items))

    def _site(
        self,
        streams: Streams,
        layer: Layer,
        operator: Operator,
        tried: Operator,
        behind: Activation,
        at_once: AtOnce,
    ) -> Site:
        graph = self.network.graph
        node = operator.node
        source = next(t for t in node.inputs[:2] if t != layer.weight)
        weight = graph.constant(layer.weight or "")
        assert weight is not None
        return Site(
            layer=layer,
            source=source,
            weight=weight.astype(np.float32),
            axis=self.network.axis(layer),
            reference=streams.exact[source],
            inputs=streams.rounded[source],
            targets=streams.exact[node.outputs[0]],
            network=self.network,
            memory_bytes=self.study.memory_bytes,
            activation=behind if behind.is_there else None,
            at_once=streams.at_once,
            _anchor=operator,
            _tried=tried,
            _try_at_once=at_once,
        )

    def _activation(self, layer: Layer) -> Activation:
        graph = self.network.graph
        axis, output = channel_axis(graph, layer) or 0, graph.by_name[layer.name].outputs[0]
        convolution = axis > 0
        if convolution:
            axis -= len(graph.initializers[layer.weight or ""].dims)
        return Activation(self.study.backend, graph, output, axis, whole=convolution)

    def _quantized(self, streams: Streams, operator: Operator, layer: Layer | None) -> None:
        """Execute a node on what is quantized so far."""
        node, graph = operator.node, self.network.graph
        item = None
        if layer is not None and self.network.bound.precisions[layer.name] in SCALED:
            item = self.network.quantized(layer.name)
        operands = quantized_operands(node, layer) if layer is not None and item else ()
        if item is None or not operands:
            streams.same_or_run(operator)
            return
        given: dict[str, Batches] = {}
        fixed: dict[str, FloatArray] = {}
        for tensor in operands:
            if tensor == item.layer.weight and item.weight is not None:
                how = item.weight
                own = graph.constant(tensor) if how.values is None else how.values
                assert own is not None
                fixed[tensor] = how.format.quantize(
                    own.astype(np.float32), *how.scale_for(own.shape)
                )
            elif tensor in item.activations:
                scale = item.activations[tensor]
                given[tensor] = streams.quantized(tensor, scale, item.format)
        shift = None
        if item.bias is not None and node.name == item.layer.name:
            shift = along_channels(graph, item.layer, item.bias)
        streams.run(operator, given, fixed, shift)

    def _live_bytes(self) -> int:
        """Bytes of activations that one execution holds at once, both streams."""
        samples, batch = self.study.samples.samples, self.study.samples.batches[0]
        graph = self.network.graph
        float_tensors = [t for t in graph.activations() if t in graph.producers]
        with closing(self.study.backend.open(graph.proto, float_tensors)) as session:
            found = session.run(samples.feeds(batch.start, batch.count))
            sizes = {name: array.nbytes for name, array in found.items()}
        left, live, most = readings(graph), 0, 0
        for node in graph.nodes:
            live += sum(sizes.get(t, 0) for t in node.outputs)
            most = max(most, live)
            for tensor in node.reads:
                left[tensor] -= 1
                live -= sizes.get(tensor, 0) if left[tensor] == 0 else 0
        return 3 * most
