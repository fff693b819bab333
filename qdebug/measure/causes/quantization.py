"""Why a layer is wrong: measured parts of its error, named, with the numbers and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qdebug.calibrators.registry import NEVER_CLIPPING
from qdebug.measure.causes.calibration import WIDE, RangeFit
from qdebug.measure.causes.overflow import FP16_OVERFLOW, HALF_MAX
from qdebug.measure.result import Cause
from qdebug.plan.quantize import MASK
from qdebug.wording import option

ACCUMULATION = "accumulation"
LEAST_SHARE = 0.1
"""Parts below a tenth of the error are not worth a reader's time."""
_HALF_TINY = 2.0**-14
_FEWEST_TINY = 0.01
"""Underflow is reported where more than this fraction of the non-zero values is tiny."""
_UNEQUAL = 8.0
"""Channels whose ranges differ by more share a scale badly: the narrow ones keep 4 bits or less."""
_MOST_OF_THEM = 0.99
"""An eighth of a range that holds so many of the values leaves them 4 bits or less."""
_OF_SOMETHING_ELSE = "the range does not seem to be of this network and such data"


@dataclass(frozen=True)
class OperandPart:
    """What the Q/DQ pair of one activation adds to a layer's error.

    Attributes:
        tensor: the activation.
        energy: its part of Σerr² at the layer's output.
        bounds: where the pair clips.
        step: between two values that the pair can give.
        largest, rms: of the values, on the samples looked at.
        clipped: share of the values beyond the bounds.
        clipped_energy: share of the pair's own error that clipping makes; rounding makes the rest.
        inner: the pair lies between the layer's own nodes.
        dynamic: its range is taken anew from each execution; bounds and step are the widest.
        method: the calibrator that gave the range, "" where that is not known.
        calibrated: the range was found on this model just now.
        compared: the largest magnitude of the tensor in all samples compared.
        in_eighth: share of the values other than 0 that an eighth of the range holds.
        spread: largest over median range of its channels; 1 without channels.
    """

    tensor: str
    energy: float
    bounds: tuple[float, float]
    step: float
    largest: float
    rms: float
    clipped: float
    clipped_energy: float
    method: str = ""
    inner: bool = False
    dynamic: bool = False
    calibrated: bool = False
    compared: float = 0.0
    in_eighth: float = 0.0
    spread: float = 1.0

    @property
    def amax(self) -> float:
        """The larger bound."""
        return max(-self.bounds[0], self.bounds[1])

    @property
    def too_wide(self) -> float:
        """How many times as wide as all its values the range is."""
        largest = max(self.largest, self.compared)
        return self.amax / largest if largest and not self.dynamic else 1.0

    @property
    def where(self) -> str:
        """Where it clips, for people."""
        low, high = self.bounds
        return f"at {high:.3g}" if low == -high else f"to {low:.3g} … {high:.3g}"

    @property
    def extent(self) -> str:
        """Its range, for people."""
        low, high = self.bounds
        return f"{high:.3g}" if low == -high else f"{low:.3g} … {high:.3g}"


@dataclass(frozen=True)
class WeightPart:
    """What the rounding of a weight adds.

    Attributes:
        energy: its part of Σerr² at the layer's output.
        channels: scales it has; 1 for one per tensor.
        spread: largest over median range of its channels; 1 without channels.
        changed: what is no rounding among the layer's constants, for people; "" for nothing.
    """

    energy: float
    channels: int
    spread: float
    changed: str = ""


def int8_causes(
    parts: Sequence[OperandPart], weight: WeightPart | None, fit: RangeFit
) -> tuple[Cause, ...]:
    """The causes of an INT8 layer's local error, the largest share first.

    Shares are energies measured with and without each pair, as parts of their sum.

    Args:
        fit: how the ranges of the whole network fit their values.
    """
    total = sum(p.energy for p in parts) + (weight.energy if weight else 0.0)
    if total <= 0:
        return ()
    causes = []
    for part in parts:
        clipping = part.clipped_energy * part.energy / total
        rounding = part.energy / total - clipping
        causes += [_clipping(part, clipping, fit.stale), _rounding(part, rounding, fit)]
    if weight is not None:
        causes.append(_weight(weight, weight.energy / total))
    kept = [c for c in causes if (c.share or 0) >= LEAST_SHARE]
    return tuple(sorted(kept, key=lambda c: -(c.share or 0)))


def half_causes(
    largest: float, tiny: float, sums: float, sums_db: float, *, broken: bool = False
) -> tuple[Cause, ...]:
    """The causes of an FP16 layer's local error, the largest share first.

    Args:
        largest: the largest magnitude that the layer reads or writes in FP32.
        tiny: fraction of the non-zero values it reads or writes that are below FP16's normal
            numbers, 0 to 1.
        sums: fraction of its error energy that its kernel adds, mostly by summing products in
            FP16, 0 to 1.
        sums_db: SQNR at its output with exact sums, in dB.
        broken: the layer gives NaN or Inf where the reference does not.
    """
    causes = []
    overflows = largest > HALF_MAX
    if overflows:
        # Where the overflow reaches the output, the error has no finite energy, and `sums` is 0.
        # Where it does not (a Sigmoid or a Clip reads Inf as a large value), `sums` was measured.
        causes.append(
            Cause(
                FP16_OVERFLOW,
                1.0 - sums,
                f"values reach {largest:.3g}, FP16's maximum is {HALF_MAX:.0f}",
                "Keep the layer in FP32, or scale what it reads down.",
            )
        )
    if tiny > _FEWEST_TINY:
        causes.append(
            Cause(
                "fp16-underflow",
                # Counted over the reference's values; beside an overflow it has no measured part.
                None if overflows else min(tiny, 1.0 - sums),
                f"{100 * tiny:.2g}% of the non-zero values are under {_HALF_TINY:.1g}, where FP16 "
                "loses digits",
                "Keep the layer in FP32, or scale what it reads up.",
            )
        )
    if broken and sums >= 1 and not overflows:
        causes.append(
            Cause(
                FP16_OVERFLOW,
                sums,
                f"values reach {largest:.3g}, but what its kernel adds up inside exceeds FP16's "
                f"maximum, {HALF_MAX:.0f}; with exact sums it would be {sums_db:.1f} dB",
                "Keep the layer in FP32: TensorRT then sums in FP32 too.",
            )
        )
    elif sums >= LEAST_SHARE:
        causes.append(
            Cause(
                "fp16-sums",
                sums,
                f"its kernel rounds partial sums; with exact sums it would be {sums_db:.1f} dB",
                "Keep the layer in FP32: TensorRT then sums in FP32 too.",
            )
        )
    return tuple(sorted(causes, key=lambda c: -(c.share or 0)))


def harmless_cause(largest: float, readers_db: float) -> Cause:
    """Why a layer overflows harmlessly, as one that makes a mask of -Inf does.

    Args:
        largest: magnitude that it writes in FP32.
        readers_db: the lowest SQNR among the layers that read it.
    """
    return Cause(
        FP16_OVERFLOW,
        1.0,
        f"values reach {largest:.3g}, FP16's maximum is {HALF_MAX:.0f}; harmless: every layer "
        f"that reads them is finite, at {readers_db:.1f} dB or better",
        "Nothing needs to be done: the overflow acts as a mask of -Inf.",
    )


def inherited_cause(local: float, inputs: float, output: float) -> Cause | None:
    """Why a layer's output is worse than its own error explains, None where it is not.

    Args:
        local, inputs, output: Σerr²/Σref²: of the isolated layer, of the worst tensor it reads, and
            of its output.
    """
    if not output > 10 * local:  # also False where one is NaN
        return None
    if inputs == 0:  # what it reads is exact: nothing came in with it
        return None
    share = 1 - local / output
    if output > 10 * inputs:
        return Cause(
            "amplification",
            share,
            f"the error relative to the signal grows {output / inputs:.3g} times from what it "
            "reads to what it writes",
            "Pin the layers that feed it: it amplifies a small error.",
        )
    return Cause(
        ACCUMULATION,
        share,
        f"{100 * share:.3g}% of the error at its output comes in with what it reads",
        "Look at the layers before it; pinning this one changes little.",
    )


def _clipping(part: OperandPart, share: float, stale: str) -> Cause:
    evidence = (
        f"'{part.tensor}' is clipped {part.where}: {100 * part.clipped:.2g}% of its values "
        f"are beyond, up to {part.largest:.3g}"
    )
    never = part.method in NEVER_CLIPPING
    if stale or (never and not part.calibrated and part.too_wide < 1 / WIDE):
        return _stale(share, evidence, stale or _OF_SOMETHING_ELSE)
    if never:
        return Cause(
            "unrepresentative-calibration",
            share,
            f"{evidence}; {part.method} took in all that the calibration samples held",
            "Calibrate on more representative samples.",
        )
    return Cause(
        "clipping",
        share,
        evidence,
        "Calibrate with minmax or a higher percentile; qdebug calibrate compares them.",
    )


def _rounding(part: OperandPart, share: float, fit: RangeFit) -> Cause:
    """What the step of a pair adds: because the range does not fit the values, because a few of
    them stretch it, or because it is INT8."""
    if part.too_wide > fit.wide:
        return _wide(part, share, fit.stale)
    coarse = 100 * part.step / part.rms if part.rms else 0.0
    evidence = (
        f"'{part.tensor}' has an rms of {part.rms:.3g} in a range of {part.extent}: "
        f"one step is {'up to ' if part.dynamic else ''}{part.step:.2g}, {coarse:.2g}% of the rms"
    )
    stretched = _stretched(part)
    remedy = "Try a calibrator that cuts outliers (mse, percentile), or pin the layer."
    if part.inner:
        remedy = (
            "It is rounded between the nodes of one layer: leave it in floating point, or fold "
            "BatchNormalization before quantizing."
        )
    elif not stretched:
        remedy = "This is INT8's own error: pin the layer, or use quantization-aware training."
    if stretched:
        return Cause("coarse-step", share, f"{evidence}; {stretched}", remedy)
    return Cause("rounding", share, evidence, remedy)


def _stretched(part: OperandPart) -> str:
    """What stretches the range beyond the bulk of the values, "" where nothing does."""
    if part.largest > MASK:
        return "it holds a mask, which no range can hold beside other values"
    if part.spread > _UNEQUAL:
        return f"its widest channel has {part.spread:.3g} times the range of the median one"
    if part.in_eighth > _MOST_OF_THEM:
        return f"an eighth of that range holds {100 * part.in_eighth:.3g}% of its values"
    return ""


def _wide(part: OperandPart, share: float, stale: str) -> Cause:
    evidence = (
        f"'{part.tensor}' has a range of {part.extent}, {part.too_wide:.3g} times as wide as "
        f"the largest value compared, {max(part.largest, part.compared):.3g}"
    )
    if part.calibrated and not stale:
        return Cause(
            "unrepresentative-calibration",
            share,
            f"{evidence}: the calibration samples reach further",
            "Calibrate on samples like those compared, or with a calibrator that cuts outliers.",
        )
    return _stale(share, evidence, stale or _OF_SOMETHING_ELSE)


def _stale(share: float, evidence: str, why: str) -> Cause:
    return Cause(
        "stale-calibration",
        share,
        f"{evidence}; {why}",
        "Calibrate this model anew, on samples prepared as those it will see.",
    )


def _weight(weight: WeightPart, share: float) -> Cause:
    if weight.changed:
        return Cause(
            "other-weights",
            share,
            f"its {weight.changed}, more than rounding: it may be refitted, trained or equalized",
            "Where that is meant, as after a repair or training, judge by the outputs; else "
            "compare with the FP32 model that exactly these weights were quantized from.",
        )
    if weight.channels == 1 and weight.spread > _UNEQUAL:
        return Cause(
            "weight-range",
            share,
            f"its weight has one scale, but the widest channel has {weight.spread:.3g} times the "
            "range of the median one",
            f"Use {option('weights', 'per-channel')}.",
        )
    scales = "one scale" if weight.channels == 1 else f"{weight.channels} scales"
    return Cause(
        "rounding",
        share,
        f"caused by rounding its weight ({scales})",
        "Pin the layer, or use quantization-aware training.",
    )
