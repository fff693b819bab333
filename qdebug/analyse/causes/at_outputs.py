"""What a layer's variants do to the outputs, with everything behind it in FP32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from qdebug.metrics.accumulate import ExecutedBatch
from qdebug.metrics.effect import noise_by_sample, output_energies
from qdebug.network.outputparts import OutputParts
from qdebug.plan.rewrite.tail import Tail
from qdebug.types import Array, Feeds, Tensors


@dataclass(frozen=True)
class FedBehind:
    """Feeds a tail with the reference's activations, but for its tensor, which is an output of the
    isolated layers in a variant."""

    tail: Tail
    variant: str
    output: str

    def __call__(self, executed: ExecutedBatch) -> Feeds:
        """See Variant.feeds."""
        truth, tensor = {**executed.feeds, **executed.reference}, self.tail.tensor
        values = executed.of(self.variant)[self.output]
        if values.shape != truth[tensor].shape:
            values = truth[tensor]
        feeds = {name: truth[name] for name in self.tail.reads}
        return {**feeds, tensor: values.astype(truth[tensor].dtype, copy=False)}  # FP16 in some


@dataclass
class AtOutputs:
    """The noise that each variant of an isolated layer makes of the outputs, over the batches that
    were added. A part that the layer's own output shows as noise may be nothing there, and one that
    is hardly seen in it, of narrow channels say, may be all that matters.

    Attributes:
        tail: of the reference, behind the layer.
        parts: of the outputs that consist of parts.
    """

    tail: Tail
    parts: Mapping[str, OutputParts]
    _energies: dict[str, Array] = field(default_factory=dict)

    def add(self, truth: Tensors, variant: str, found: Tensors) -> None:
        """Add what the tail gave for a variant; `truth` are the reference's tensors."""
        sums = output_energies(truth, found, self._outputs(truth), 1, self.parts)
        known = self._energies.get(variant)
        self._energies[variant] = sums if known is None else known + sums

    def energies(self) -> dict[str, float]:
        """Σerr²/Σref² of each variant, the mean over the outputs and their parts; +inf where they
        hold NaN or Inf."""
        return {k: float(noise_by_sample(sums)[0]) for k, sums in self._energies.items()}

    def _outputs(self, truth: Tensors) -> Sequence[str]:
        return [t for t in self.tail.outputs if np.issubdtype(truth[t].dtype, np.floating)]
