"""calibrator: all activations get their ranges by one calibrator, the one with which the network is
best.

It costs one pass over the calibration samples, and one over the judging ones for each calibrator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qdebug.calibrators.registry import parse_method
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study
from qdebug.plan.plan import TensorRange

_FEWEST = 4
METHODS = (
    "minmax", "percentile:99.99", "percentile:99.9", "percentile:99", "entropy", "mse", "mean-max",
)  # fmt: skip


def _layers(network: Quantized) -> tuple[str, ...]:
    return tuple(layer.name for layer in network.bound.quantized_layers())


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    by_name = start.layers.by_name
    tensors = tuple(dict.fromkeys(t for name in layers for t in by_name[name].quantized_inputs))
    histograms = study.gather(start, tensors)
    known = start.bound.plan.tensors
    for method in METHODS:
        calibrator = parse_method(method)
        ranges = {t: TensorRange(calibrator.amax(histograms[t]), method) for t in tensors}
        if any(ranges[t].amax != known[t].amax for t in tensors):
            yield Proposal(start.with_ranges(ranges), tuple(layers), method)


REMEDY = Remedy(
    name="calibrator",
    fewest_samples=_FEWEST,
    layers=_layers,
    propose=_propose,
)
