"""weight-scales: weights that a quantizer gave one scale get one for each output channel.

A channel whose weights are a tenth of the largest has a tenth of the codes where all share a scale.
It costs no speed: TensorRT and ONNX Runtime take a scale for each output channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study
from qdebug.network.layers import Layer
from qdebug.plan.plan import GIVEN, Granularity


def _layers(network: Quantized) -> tuple[str, ...]:
    return tuple(layer.name for layer in network.weighted() if _has_one_scale(network, layer))


def _has_one_scale(network: Quantized, layer: Layer) -> bool:
    """Whether a model that was given has one scale for all output channels of the layer, which the
    plan does not ask for."""
    plan, axis = network.bound.plan, network.axis(layer)
    if axis is None or layer.weight is None or plan.weights is not Granularity.PER_CHANNEL:
        return False
    known = plan.tensors.get(layer.weight)
    is_given = known is not None and known.method == GIVEN and not isinstance(known.amax, tuple)
    return is_given and network.graph.initializers[layer.weight].dims[axis] > 1


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    yield Proposal(start.with_own_weights(layers), tuple(layers), "one for each output channel")


REMEDY = Remedy(
    name="weight-scales",
    fewest_samples=1,
    layers=_layers,
    propose=_propose,
)
