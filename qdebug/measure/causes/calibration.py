"""Whether the ranges of a calibration fit the values that are compared."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

WIDE = 2.0
"""A range wider than its values by this factor makes 6 dB of error that a fitting one does not."""
_WIDE_BESIDE_OTHERS = 1.25
"""The same (2 dB) where the calibration is known not to fit."""
_FEW_SAMPLES = 16
"""Fewer samples need not come near the largest values: a range must then be twice as wide."""
_OTHER_SCALE = 4.0
"""An input of the model whose range is off by more was prepared in another way."""
_UNFIT = 1.5
"""Ranges read from a file that were made for these values are off by less, nearly all."""
_CUT_ON_PURPOSE = 1 / 8
"""A calibrator that clips leaves no less than this of a range; no bundled one does on the networks
that it was tried on."""
_FEWEST = 3
_STALE_SHARE = 1 / 4
"""Ranges that are off: so many, and such a share of all, do not come from one mistake."""


@dataclass(frozen=True)
class Fitted:
    """The range of one quantized tensor beside its values.

    Attributes:
        amax: where it clips.
        largest: magnitude of the values on the samples compared.
        calibrated: in this very call, on this network.
        clips: the calibrator, where known, may leave values out.
        is_input: of the model.
    """

    amax: float
    largest: float
    calibrated: bool
    clips: bool
    is_input: bool

    @property
    def ratio(self) -> float:
        """Range over values."""
        return self.amax / self.largest


@dataclass(frozen=True)
class RangeFit:
    """All ranges of a network beside the values.

    Attributes:
        tensors: those with values other than 0.
        samples: how many were compared.
    """

    tensors: Mapping[str, Fitted]
    samples: int = _FEW_SAMPLES

    @property
    def wide(self) -> float:
        """How many times as wide as all its values a range is that does not fit them."""
        if self.stale:
            return _WIDE_BESIDE_OTHERS
        return WIDE if self.samples >= _FEW_SAMPLES else 2 * WIDE

    def off(self, one: Fitted) -> bool:
        """Too wide, or so narrow as its calibrator would not make it."""
        narrowest = _CUT_ON_PURPOSE if one.clips else 1 / _UNFIT
        widest = _UNFIT if self.samples >= _FEW_SAMPLES else 2 * _UNFIT
        return not narrowest <= one.ratio <= widest

    @cached_property
    def stale(self) -> str:
        """How the ranges show that they were made from other data or by another network; "" where
        they do not."""
        off = [x for x in self.tensors.values() if self.off(x)]
        enough = max(_FEWEST, _STALE_SHARE * len(self.tensors))
        for name, found in self.tensors.items():
            known = found.calibrated or len(off) >= enough
            if found.is_input and known and not _near(found.ratio, _OTHER_SCALE):
                return (
                    f"the range of the input '{name}' is {_times(found.ratio)} what the compared "
                    "samples hold: the calibration samples seem to have been scaled differently"
                )
        old = [x for x in off if not x.calibrated]
        if len(old) < enough:
            return ""
        factor = statistics.median(x.ratio for x in self.tensors.values())
        alike = sum(_near(x.ratio / factor, WIDE) for x in self.tensors.values())
        together = f"; most by a factor of about {factor:.3g}" if alike > len(old) / 2 else ""
        return (
            f"{len(old)} of {len(self.tensors)} ranges do not fit the values that they are for"
            f"{together if not _near(factor, WIDE) else ''}: they seem to be of other weights, "
            "another network or other data"
        )


def _near(ratio: float, factor: float) -> bool:
    return 1 / factor <= ratio <= factor


def _times(ratio: float) -> str:
    return f"{ratio:.3g} times" if ratio >= 1 else f"1/{1 / ratio:.3g} of"
