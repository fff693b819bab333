"""How noisy the output of each layer is, sample by sample, kept along the way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from qdebug.execute.lockstep import CUMULATIVE
from qdebug.metrics.accumulate import ErrorTotals, ExecutedBatch
from qdebug.plan.pair import ModelPair

Float32 = npt.NDArray[np.float32]
KeptProfiles = Mapping[str, Mapping[int, Float32]]
"""Σerr²/Σref² of the samples of a batch, by tensor and the number of the batch's first sample."""

_MOST_BYTES = 2**26
"""Of what is kept: 56,000 samples of a network of 300 layers."""


class ProfileSink:
    """A sink that keeps the noise of each layer's output by sample. See evaluator.Sink."""

    def __init__(self, pair: ModelPair, samples: int) -> None:
        """`samples`: how many there are in all; of too many, none is kept."""
        outputs = dict.fromkeys(layer.output for layer in pair.layers)
        fits = len(outputs) * samples * 4 <= _MOST_BYTES
        self._tensors = [t for t in outputs if t in pair.tensors] if fits else []
        self.kept: dict[str, dict[int, Float32]] = {}

    def __call__(self, executed: ExecutedBatch, errors: Mapping[str, ErrorTotals]) -> None:
        """Take a batch; tensors that are not split by samples say nothing."""
        batch, sums = executed.batch, errors[CUMULATIVE].tensors
        for tensor in self._tensors:
            if tensor in sums and len(sums[tensor].by_sample) == batch.count:
                kept = self.kept.setdefault(tensor, {})
                kept[batch.start] = np.array(sums[tensor].by_sample, np.float32)

    def merge(self, other: KeptProfiles) -> None:
        """Add what another sink kept over other batches, or of other tensors."""
        for tensor, by_batch in other.items():
            self.kept.setdefault(tensor, {}).update(by_batch)

    def noise(self, samples: int) -> dict[str, Float32]:
        """Float32 [samples] by tensor, of those that say something of every sample."""
        found = {}
        for tensor, by_batch in self.kept.items():
            joined = np.concatenate([by_batch[start] for start in sorted(by_batch)])
            if len(joined) == samples:
                found[tensor] = joined
        return found
