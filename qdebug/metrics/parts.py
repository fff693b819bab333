"""What a layer's output error consists of.

Let x be what a layer reads in the reference and x̂ what it reads in the candidate, y what it gives
there and ŷ here. Three forms of the layer are run by themselves: W computes in FP32, with the
weights of the candidate; C also clips what its Q/DQ pairs clip; Q is the layer as planned. Then

    ŷ − y = [W(x) − y] + [W(x̂) − W(x)] + [C(x̂) − W(x̂)] + [Q(x̂) − C(x̂)] + [ŷ − Q(x̂)]
             weights       inherited         clipping         rounding       unexplained

holds for every value. The energies of the five are the parts of the error's energy; what their
products add or take away is the interaction.

Rounding is measured on x̂, which the candidate rounds. Q(x̂) − Q(x) would not be what is inherited:
an error in x̂ redraws the rounding errors, which would be counted in it twice more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ErrorParts:
    """What a layer's output error in the simulation consists of, as noise power: energies over
    that of the reference's output on the same samples, so that 10·log10 of `total` is −SQNR.

    `total` is the sum of the others, within rounding. Of a layer in FP32 all of it is inherited,
    and the others, which were not measured, are null.

    Attributes:
        samples: how many were measured.
        total: of the output.
        inherited: what the layer makes, in FP32, of the error of what it reads.
        weights: what the rounding of its weights adds.
        clipping: what its Q/DQ pairs add by clipping its activations; null where it has no pair
            with a fixed range.
        rounding: what they add by rounding; of a layer in FP16, what the rounding of the values
            that it reads, sums and gives adds.
        interaction: what the products of the other parts add; negative where they cancel.
        unexplained: between what the candidate gave, and what the isolated layer makes of the same
            inputs: 0 where isolating it changed nothing.
    """

    samples: int
    total: float
    inherited: float | None
    weights: float | None = None
    clipping: float | None = None
    rounding: float | None = None
    interaction: float | None = None
    unexplained: float | None = None

    def share(self, part: str) -> float | None:
        """A part, by its name, in that of `total`; None where it was not measured, and without any
        error."""
        value: float | None = getattr(self, part)
        return None if value is None or not self.total else value / self.total


@dataclass(frozen=True)
class PartEnergies:
    """Energies over some samples of a layer's output; NaN where values are not finite.

    Attributes:
        samples: how many.
        signal: Σref².
        total: Σerr².
        parts: those of ErrorParts that were measured, by name; none of a layer in FP32.
    """

    samples: int
    signal: float
    total: float
    parts: Mapping[str, float] = field(default_factory=dict)

    def merge(self, other: PartEnergies) -> PartEnergies:
        """The energies over both."""
        return PartEnergies(
            self.samples + other.samples,
            self.signal + other.signal,
            self.total + other.total,
            {name: self.parts[name] + other.parts[name] for name in self.parts},
        )

    def noise(self) -> ErrorParts | None:
        """The noise powers; None where values are not finite, and without a signal."""
        finite = all(map(math.isfinite, (self.total, *self.parts.values())))
        if not finite or not self.signal > 0:
            return None
        total = self.total / self.signal
        if not self.parts:  # FP32
            return ErrorParts(self.samples, total, total)
        interaction = (self.total - sum(self.parts.values())) / self.signal
        noise = {name: energy / self.signal for name, energy in self.parts.items()}
        return ErrorParts(self.samples, total, interaction=interaction, **noise)
