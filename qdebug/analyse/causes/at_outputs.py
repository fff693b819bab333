"""What a layer's variants do to the outputs, with everything behind it in FP32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from qdebug.backends.base import Session
from qdebug.metrics.effect import noise_by_sample, output_energies
from qdebug.network.outputparts import OutputParts
from qdebug.plan.rewrite.tail import Tail
from qdebug.types import Array, Tensors


@dataclass
class AtOutputs:
    """The noise that each variant of an isolated layer makes of the outputs, over the batches that
    were added. A part that the layer's own output shows as noise may be nothing there, and one that
    is hardly seen in it, of narrow channels say, may be all that matters.

    Attributes:
        tail: of the reference, behind the layer.
        session: of the tail.
        parts: of the outputs that consist of parts.
    """

    tail: Tail
    session: Session
    parts: Mapping[str, OutputParts]
    _energies: dict[str, Array] = field(default_factory=dict)

    def add(self, truth: Tensors, variant: str, values: Array) -> None:
        """Add what follows from `values` of the tail's tensor; `truth` are the reference's."""
        values = values.astype(truth[self.tail.tensor].dtype, copy=False)  # FP16 in some plans
        feeds = {name: truth[name] for name in self.tail.reads}
        found = {**self.session.run({**feeds, self.tail.tensor: values}), self.tail.tensor: values}
        sums = output_energies(truth, found, self._outputs(truth), 1, self.parts)
        known = self._energies.get(variant)
        self._energies[variant] = sums if known is None else known + sums

    def energies(self) -> dict[str, float]:
        """Σerr²/Σref² of each variant, the mean over the outputs and their parts; +inf where they
        hold NaN or Inf."""
        return {k: float(noise_by_sample(sums)[0]) for k, sums in self._energies.items()}

    def _outputs(self, truth: Tensors) -> Sequence[str]:
        return [t for t in self.tail.outputs if np.issubdtype(truth[t].dtype, np.floating)]
