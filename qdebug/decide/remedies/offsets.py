"""offsets: activations that lie to one side of 0 are shifted about it, so that all codes are used.

What a Relu, a SiLU or a GELU gives is hardly ever negative, and a symmetric format has half of its
codes for what is: one step is twice as large as it would have to be. A constant is subtracted
before Q, and what that takes off the layer's output is added to its bias: see
plan/rewrite/offset.py. It stands for the zero point that TensorRT does not take. 0 keeps a code, so
that no error is made where nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qdebug.decide.remedies import bias_correction
from qdebug.decide.remedies.channels import ChannelRange, channel_ranges
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study, heads_of
from qdebug.formats.base import Kind
from qdebug.network.graph import Node
from qdebug.plan.plan import Correction, TensorRange
from qdebug.plan.rewrite.offset import Offsets, inside, offset_inputs, pads, takes_offset
from qdebug.plan.rewrite.weights import channel_axis
from qdebug.wording import counted

_WORTH = 0.8
"""Of the range that an activation has: what is left must be less, 2 dB of its rounding."""


def _layers(network: Quantized) -> tuple[str, ...]:
    graph, bound = network.graph, network.bound
    return tuple(
        layer.name
        for layer in network.weighted()
        if bound.format_of(layer).kind is Kind.INTEGER
        and takes_offset(graph, graph.by_name[layer.name])
    )


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    graph = start.graph
    readers: dict[str, list[Node]] = {}
    for name in layers:
        node = graph.by_name[name]
        readers.setdefault(node.inputs[0], []).append(node)
    axes = {tensor: channel_axis(graph, nodes[0]) for tensor, nodes in readers.items()}
    ranges = channel_ranges(study, graph, axes)
    chosen = {}
    for tensor, nodes in readers.items():
        largest = start.bound.format_of(start.layers.by_name[nodes[0].name]).largest
        found = _offsets(ranges[tensor], start.bound.plan.tensors[tensor], largest)
        if found is not None:
            chosen[tensor] = found
    padding = {t for t in chosen if any(pads(graph, node) for node in readers[t])}
    for tensors in dict.fromkeys((frozenset(chosen), frozenset(chosen) - padding)):
        some = {t: chosen[t] for t in chosen if t in tensors}
        if some:
            proposal = _with_offsets(start, some, readers, layers)
            yield proposal
            yield from _with_biases(study, proposal, layers)


def _offsets(
    reach: ChannelRange, known: TensorRange, largest: float
) -> tuple[Offsets, TensorRange] | None:
    """The offsets of a tensor and the range that is left, where these are worth it."""
    assert not isinstance(known.amax, tuple)
    low, high = np.maximum(reach.low, -known.amax), np.minimum(reach.high, known.amax)
    # Half a code more than half of the way, as offsets are rounded to codes: 0 keeps one.
    amax = float((high - low).max() / 2) * (1 + 0.5 / largest)
    if not 0 < amax < _WORTH * known.amax:
        return None
    step = amax / largest
    return np.rint((high + low) / 2 / step) * step, TensorRange(amax, known.method)


def _with_offsets(
    start: Quantized,
    chosen: Mapping[str, tuple[Offsets, TensorRange]],
    readers: Mapping[str, Sequence[Node]],
    layers: Sequence[str],
) -> Proposal:
    by_node = {node.name: chosen[tensor][0] for tensor in chosen for node in readers[tensor]}
    made = offset_inputs(start.graph, by_node)
    ranges = {made.shifted[tensor]: entry for tensor, (_, entry) in chosen.items()}
    network = start.rewritten(made.proto).with_ranges(ranges)
    network = network.with_corrections(
        {name: _for_rounded_weight(network, name, offsets) for name, offsets in by_node.items()}
    )
    what = counted(len(chosen), "activation")
    if made.maps:
        what += f", {counted(made.maps, 'constant')} of the size of an output"
    return Proposal(network, tuple(name for name in layers if name in by_node), what)


def _with_biases(study: Study, proposal: Proposal, layers: Sequence[str]) -> Iterator[Proposal]:
    """With what is left of the errors' means taken off, but for heads: a step that is half as large
    has other ones. On a YOLOv8n neither gains the 2 dB that both do."""
    network, heads = proposal.result, heads_of(proposal.result)
    body = [name for name in layers if name not in heads]
    for corrected in bias_correction.REMEDY.propose(study, network, body) if body else ():
        changed = {*proposal.layers, *corrected.layers}
        names = tuple(name for name in layers if name in changed)
        yield Proposal(corrected.result, names, f"{proposal.what}, biases corrected")


def _for_rounded_weight(network: Quantized, name: str, offsets: Offsets) -> Correction:
    """A layer's correction with a bias that gives back what the weight takes off once it is
    rounded: what is subtracted is large next to most values, and so is the error of its product."""
    graph, known = network.graph, network.bound.corrections.get(name, Correction())
    node, how = graph.by_name[name], network.quantized(name).weight
    exact = graph.constant(node.inputs[1])
    assert how is not None and exact is not None
    values = exact if how.values is None else how.values
    off = how.format.quantize(values.astype(np.float32), how.scale, how.axis) - exact
    bias = inside(graph, node, off, offsets)
    return replace(
        known, bias=(bias if known.bias is None else known.bias + bias).astype(np.float32)
    )


REMEDY = Remedy(
    name="offsets",
    fewest_samples=bias_correction.REMEDY.fewest_samples,
    layers=_layers,
    propose=_propose,
    rewrites=True,
)
