"""Whether the ranges of a calibration fit the values that are compared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from qdebug.results.compare import to_try

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
_SAME_SCALE = 1e-4
"""Ranges that differ by less come from one scale."""
_FEWEST = 3
_STALE_SHARE = 1 / 4
"""Ranges that are off: so many, and such a share of all, do not come from one mistake."""

_WHICH = {
    None: ", and only a metric that judges FP32 (top1) could tell which of them is right",
    True: ", and FP32 does well on the compared samples, so the calibration samples are the odd "
    "ones",
    False: ", and FP32 is no better than guessing on the compared samples, so these seem to be "
    "the odd ones",
}
"""Which samples were prepared wrongly, by whether FP32 does well on those compared."""


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
        fixed: tensors whose range a quantizer takes without looking at values, 0 to 1 of a Softmax:
            they are not among `tensors`.
        trusted: whether FP32 does well on them (True), or no better than guessing (False); None
            where that is not known.
    """

    tensors: Mapping[str, Fitted]
    samples: int = _FEW_SAMPLES
    trusted: bool | None = None
    fixed: frozenset[str] = frozenset()

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
    def _off(self) -> list[Fitted]:
        return [x for x in self.tensors.values() if self.off(x)]

    @property
    def _enough(self) -> float:
        """So many ranges that are off do not come from one mistake."""
        return max(_FEWEST, _STALE_SHARE * len(self.tensors))

    @cached_property
    def _other_scale(self) -> tuple[str, Fitted] | None:
        """The input of the model that was scaled differently for the calibration."""
        for name, found in self.tensors.items():
            known = found.calibrated or len(self._off) >= self._enough
            if found.is_input and known and not _near(found.ratio, _OTHER_SCALE):
                return name, found
        return None

    def names(self, tensor: str) -> bool:
        """Whether `stale` is about this input of the model."""
        return self._other_scale is not None and self._other_scale[0] == tensor

    def filled_by(self, amax: float) -> float:
        """The largest value of the tensors that have this range, which fits them; 0 without any."""
        alike = (
            x for x in self.tensors.values() if math.isclose(x.amax, amax, rel_tol=_SAME_SCALE)
        )
        return max((x.largest for x in alike if x.ratio <= self.wide), default=0.0)

    @property
    def remedy(self) -> str:
        """What to do about ranges that are stale."""
        if self._other_scale is None:
            return to_try(
                "calibrating this model again, on samples prepared like those it will see"
            )
        if self.trusted is None:
            return (
                "Prepare both sets of samples alike, as for the training of the network, and "
                "calibrate again."
            )
        if self.trusted:
            return to_try("calibrating again, on samples prepared like the compared ones")
        return "Prepare the compared samples like those of the calibration, then compare again."

    @cached_property
    def stale(self) -> str:
        """How the ranges show that they were made from other data or by another network; "" where
        they do not."""
        if self._other_scale is not None:
            name, found = self._other_scale
            return (
                f"the input '{name}' has a calibrated range of {found.amax:.3g}, and reaches "
                f"{found.largest:.3g} in the compared samples ({_times(found.ratio)}): the two "
                f"were scaled differently{_WHICH[self.trusted]}"
            )
        old = [x for x in self._off if not x.calibrated]
        if len(old) < self._enough:
            return ""
        factor = statistics.median(x.ratio for x in self.tensors.values())
        alike = sum(_near(x.ratio / factor, WIDE) for x in self.tensors.values())
        together = f"; most by a factor of about {factor:.3g}" if alike > len(old) / 2 else ""
        return (
            f"{len(old)} of {len(self.tensors)} ranges do not fit the values of their tensors"
            f"{together if not _near(factor, WIDE) else ''}: they seem to come from other weights, "
            "another network or other data"
        )


def _near(ratio: float, factor: float) -> bool:
    return 1 / factor <= ratio <= factor


def _times(ratio: float) -> str:
    if ratio >= 1:
        return f"a range {ratio:.3g} times too wide"
    return f"a range {1 / ratio:.3g} times too narrow"
