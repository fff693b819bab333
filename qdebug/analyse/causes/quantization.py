"""Why a layer is wrong: measured parts of its error, named, with the numbers and a remedy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qdebug.analyse.causes.calibration import WIDE, RangeFit
from qdebug.analyse.causes.masked import MaskedScores
from qdebug.analyse.causes.mixed_scales import MixedScale, is_mixed
from qdebug.analyse.causes.overflow import FP16_OVERFLOW
from qdebug.calibrators.registry import NEVER_CLIPPING
from qdebug.formats.base import Format, Kind
from qdebug.formats.registry import BF16, FP16, INT8, is_planned
from qdebug.plan.lints import SaturatedBias
from qdebug.plan.quantize import MASK
from qdebug.results import words
from qdebug.results.compare import AT_OUTPUTS, OUTPUT_ERROR, OWN_ERROR, VALUES, Cause, to_try
from qdebug.wording import option, part_of

ACCUMULATION = "accumulation"
BIAS_SATURATION = "bias-saturation"
INVALID_SCALE = "invalid-scale"
WEIGHT_CAUSES = ("weight-range", "weight-rounding")
LEAST_SHARE = 0.1
"""Parts below a tenth of the error are not worth a reader's time."""
_NO_FAULTS = ("rounding", "weight-rounding")
_GOOD_PART = 0.4
"""A fault of such a share is told before rounding of a larger one: 2 dB may be had."""
_FEWEST_TINY = 0.01
"""Underflow is reported where more than this fraction of the non-zero values is tiny."""
_UNEQUAL = 8.0
"""Channels whose ranges differ by more share a scale badly: the narrow ones keep 4 bits or less."""
_UNEQUAL_DB = 30.0
"""But a layer whose own error is lower does not suffer by it: those with a planted channel that
cost 3 dB or more were at 23.2 dB or worse, a sound one with channels of unlike range at 39.4
(docs/validation/diagnosis.md)."""
_CUT = 1.001
"""By what factor a bias exceeds what INT32 holds of it, at the least; float32 has 7 digits."""
_LEAST_ACROSS = 2.0
"""The same where the scales lie along another axis, which nobody chooses: a bit is lost."""
_MOST_OF_THEM = 0.99
"""An eighth of a range that holds so many of the values leaves them 4 bits or less."""
_OF_SOMETHING_ELSE = "so it seems to come from other data or another network"
_NEAR = 0.9
"""A range of which the values reach so much fits them."""
_CLEARLY_BETTER_DB = 3.0
"""The other format of 8 bits is advised where it halves a tensor's noise."""
_REPAIR_OF_OTHERS = "`qdebug repair --reference FP32.onnx` corrects the model as it is"
_CLIPPING_CALIBRATOR = (
    f"{to_try('a calibrator that clips outliers, such as mse or percentile')} `qdebug calibrate` "
    "compares them."
)
_LAST = "Keep the layer in FP32 only if neither is enough."


@dataclass(frozen=True)
class OperandPart:
    """What the Q/DQ pair of one activation adds to a layer's error.

    Attributes:
        tensor: the activation.
        energy: its part of Σerr² at the layer's output, or of the noise of the model's outputs.
        bounds: where the pair clips.
        step: between two values that the pair can give, around a typical value.
        format: of the pair's codes.
        full_digits: the smallest magnitude that keeps all the digits of a floating-point format; 0
            for an integer format, whose step is the same everywhere.
        tiny_energy: share of the pair's own error that values below it make.
        other_db: how much less noise the other format of 8 bits, FP8 for INT8 and INT8 for FP8,
            makes of the same values with the same range; negative where it makes more, 0 where that
            was not measured.
        mixed: a part of the tensor that the scale does not suit, such as what a mask leaves, or
            None.
        largest, rms: of the values, on the samples looked at.
        clipped: share of the values beyond the bounds.
        clipped_energy: share of the pair's own error that clipping makes; rounding makes the rest.
        inner: the pair lies between the layer's own nodes.
        before_normalization: the layer is a convolution with a BatchNormalization behind it, which
            could have been folded into its weight.
        dynamic: its range is taken anew from each execution; bounds and step are the widest.
        method: the calibrator that gave the range, "" where that is not known.
        calibrated: the range was found on this model just now.
        compared: the largest magnitude of the tensor in all samples compared.
        planned: the pair is of a plan of qdebug's own, whose ranges are settings.
        taken_from: what a Concat joined that it is taken out of; "" for none.
        in_eighth: share of the values other than 0 that an eighth of the range holds.
        spread: largest over median range of its channels; 1 without channels.
        local_db: SQNR of the layer's own error.
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
    before_normalization: bool = False
    dynamic: bool = False
    calibrated: bool = False
    compared: float = 0.0
    in_eighth: float = 0.0
    spread: float = 1.0
    format: Format = INT8
    full_digits: float = 0.0
    tiny_energy: float = 0.0
    other_db: float = 0.0
    mixed: MixedScale | MaskedScores | None = None
    taken_from: str = ""
    planned: bool = True
    local_db: float = -math.inf

    @property
    def amax(self) -> float:
        """The larger bound."""
        return max(-self.bounds[0], self.bounds[1])

    @property
    def too_wide(self) -> float:
        """How many times as wide as all its values the range is, where that makes the step large
        for all of them."""
        if self.format.kind is Kind.FLOAT and self.rms >= self.full_digits:
            return 1.0
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
        energy: its part of Σerr² at the layer's output, or of the noise of the model's outputs.
        channels: scales it has; 1 for one per tensor.
        spread: largest over median range of its channels; 1 without channels.
        changed: what is no rounding among the layer's constants, for people; "" for nothing.
        saturated: its INT32 bias, where that saturates.
        exceeded: how many times too small the scale of that is; 1 where it is not known.
        planned: it is quantized here, so that its scales are a setting.
        format: of its codes.
        axis: that of its output channels; None where it has none.
        across: the axis that its scales lie along, where that is another one.
        block: how many neighbours share a scale; 0 for a whole channel or tensor.
        divisible: it has more than one output channel, so that there could be more scales.
        alone: no activation that the layer reads is quantized, by the plan.
    """

    energy: float
    channels: int
    spread: float
    changed: str = ""
    planned: bool = True
    format: Format = INT8
    axis: int | None = None
    across: int | None = None
    block: int = 0
    divisible: bool = True
    alone: bool = False
    saturated: SaturatedBias | None = None
    exceeded: float = 1.0

    @property
    def more_scales(self) -> str:
        """The advice to give every channel a scale."""
        if self.planned:
            return to_try(f"a scale for every channel ({option('weights', 'per-channel')})")
        return to_try("a scale for every channel when quantizing the FP32 model")


def rounding_causes(
    parts: Sequence[OperandPart],
    weight: WeightPart | None,
    fit: RangeFit,
    share_of: str = OWN_ERROR,
) -> tuple[Cause, ...]:
    """The causes of the error of a layer that reads Q/DQ pairs, what is to be mended first.

    Shares are energies measured with and without each pair, as parts of their sum.

    Args:
        fit: how the ranges of the whole network fit their values.
        share_of: what the energies are parts of.
    """
    total = sum(p.energy for p in parts) + (weight.energy if weight else 0.0)
    if total <= 0:
        return ()
    causes = []
    for part in parts:
        clipping = part.clipped_energy * part.energy / total
        underflow = part.tiny_energy * part.energy / total
        rounding = max(0.0, part.energy / total - clipping - underflow)
        causes += [
            _clipping(part, clipping, fit),
            _underflow(part, underflow),
            _rounding(part, rounding, fit),
        ]
    if weight is not None:
        causes.append(_weight(weight, weight.energy / total))
    kept = [replace(c, share_of=share_of) for c in _merged(causes) if (c.share or 0) >= LEAST_SHARE]
    return tuple(sorted(kept, key=_order))


def _order(cause: Cause) -> tuple[bool, float]:
    """Sort key, what to mend first: a fault that makes a good part of what a layer costs at the
    outputs comes before the rounding that every layer has."""
    share = cause.share or 0.0
    told = cause.share_of == AT_OUTPUTS and share >= _GOOD_PART
    fault = told and cause.label not in _NO_FAULTS
    return not fault, -share


def _merged(causes: Sequence[Cause]) -> list[Cause]:
    """One cause for each label: a product of two activations has two that are rounded."""
    found: dict[str, Cause] = {}
    for cause in sorted(causes, key=lambda c: -(c.share or 0)):
        first = found.get(cause.label)
        if first is None:
            found[cause.label] = cause
            continue
        share = cause.share or 0.0
        evidence = first.evidence
        if share >= LEAST_SHARE:
            evidence += f"; besides, {cause.evidence}"
        found[cause.label] = replace(first, share=(first.share or 0.0) + share, evidence=evidence)
    return list(found.values())


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
    overflows = largest > FP16.largest
    if overflows:
        # Where the overflow reaches the output, the error has no finite energy, and `sums` is 0.
        # Where it does not (a Sigmoid or a Clip reads Inf as a large value), `sums` was measured.
        causes.append(
            Cause(
                FP16_OVERFLOW,
                1.0 - sums,
                f"values reach {largest:.3g}, and the largest number of FP16 is {FP16.largest:.0f}",
                "Keep the layer in FP32, or scale down what it reads.",
            )
        )
    if tiny > _FEWEST_TINY:
        causes.append(
            Cause(
                "fp16-underflow",
                # Counted over the reference's values; beside an overflow it has no measured part.
                None if overflows else min(tiny, 1.0 - sums),
                f"{words.share(tiny)} of the non-zero values are below "
                f"{FP16.smallest_normal:.1g}, where FP16 loses digits",
                "Keep the layer in FP32, or scale up what it reads.",
                VALUES,
            )
        )
    if broken and sums >= 1 and not overflows:
        causes.append(
            Cause(
                FP16_OVERFLOW,
                sums,
                f"values reach only {largest:.3g}, but partial sums inside the kernel exceed the "
                f"largest number of FP16, {FP16.largest:.0f}; with exact sums its local SQNR would "
                f"be {sums_db:.1f} dB",
                "Keep the layer in FP32: TensorRT then sums in FP32 too.",
            )
        )
    elif sums >= LEAST_SHARE:
        causes.append(
            Cause(
                "fp16-sums",
                sums,
                "its kernel rounds partial sums to FP16; with exact sums its local SQNR would be "
                f"{sums_db:.1f} dB",
                "Keep the layer in FP32: TensorRT then sums in FP32 too.",
            )
        )
    return tuple(sorted(causes, key=lambda c: -(c.share or 0)))


def bf16_causes(largest: float, tiny: float) -> tuple[Cause, ...]:
    """The cause of a BF16 layer's local error: its range is that of FP32, its digits are few.

    Args:
        largest, tiny: as of `half_causes`: whether FP16, with eight times the digits, would do.
    """
    few = f"BF16 keeps {BF16.fraction_bits + 1} significant bits: it rounds values by up to 1/256"
    if largest > FP16.largest:
        beyond = f"FP16 is no way out: values reach {largest:.3g}, beyond its {FP16.largest:.0f}"
        remedy = "Keep the layer in FP32."
    elif tiny > _FEWEST_TINY:
        beyond = (
            f"FP16 would lose digits too: {words.share(tiny)} of the non-zero values are below "
            f"{FP16.smallest_normal:.1g}"
        )
        remedy = "Keep the layer in FP32, or try FP16."
    else:
        beyond = f"FP16 keeps {FP16.fraction_bits + 1}, and its range holds all values here"
        remedy = f"{to_try('FP16, which costs the same')} Keep it in FP32 where its sums overflow."
    return (Cause("bf16-rounding", 1.0, f"{few}; {beyond}", remedy),)


def harmless_cause(largest: float, readers_db: float) -> Cause:
    """Why a layer overflows harmlessly, as one that makes a mask of -Inf does.

    Args:
        largest: magnitude that it writes in FP32.
        readers_db: the lowest SQNR among the layers that read it.
    """
    return Cause(
        FP16_OVERFLOW,
        1.0,
        f"values reach {largest:.3g}, and the largest number of FP16 is {FP16.largest:.0f}; "
        f"harmless here: every layer that reads them gives finite values, at "
        f"{readers_db:.1f} dB or better",
        "Nothing to do: the overflow acts as a mask of -Inf.",
    )


def inherited_cause(
    local: float, inputs: float, output: float, *, repairable: bool = True
) -> Cause | None:
    """Why a layer's output is worse than its own error explains, None where it is not.

    Args:
        local, inputs, output: Σerr²/Σref²: of the isolated layer, of the worst tensor it reads, and
            of its output.
        repairable: it runs in a format that qdebug plans, where calibration and repair can help.
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
            f"noise power relative to the signal grows {output / inputs:.3g} times between its "
            "input and its output",
            f"{less_noise('the layers that feed it', repairable=repairable)}",
            OUTPUT_ERROR,
        )
    return Cause(
        ACCUMULATION,
        share,
        "most of the error at its output was already in its input",
        "Look at the layers before it: keeping this one in FP32 changes little.",
        OUTPUT_ERROR,
    )


def less_noise(what: str, *, repairable: bool = True) -> str:
    """The advice to reduce the error of some layers: in their format before it is given up."""
    if not repairable:
        return f"Keep {what} in FP32."
    return (
        f"{to_try(f'to reduce the error of {what}')} `qdebug calibrate` compares ranges, `qdebug "
        "repair` corrects weights and stays in INT8. Keep them in FP32 only if neither is enough."
    )


def _clipping(part: OperandPart, share: float, fit: RangeFit) -> Cause:
    evidence = (
        f"'{part.tensor}' is clipped {part.where}: {words.share(part.clipped)} of its values "
        f"are beyond in the samples examined, up to {part.largest:.3g}"
    )
    never = part.method in NEVER_CLIPPING
    if fit.stale or (never and not part.calibrated and part.too_wide < 1 / WIDE):
        return _stale(part, share, evidence, fit)
    if never:
        return Cause(
            "unrepresentative-calibration",
            share,
            f"{evidence}, although {part.method} covers every value of the calibration samples",
            to_try("a calibration on samples that represent the compared ones"),
        )
    return Cause(
        "clipping",
        share,
        evidence,
        to_try("a wider range, that of minmax or a higher percentile")
        + " `qdebug calibrate` compares them."
        if part.planned and is_planned(part.format)
        else to_try(
            "a wider range when quantizing the FP32 model, that of all values or a higher "
            "percentile"
        ),
        brief=f"{words.share(part.clipped)} of the values of its input are beyond the range, up to "
        f"{part.largest:.3g}",
    )


def _underflow(part: OperandPart, share: float) -> Cause:
    """What a floating-point format of 8 bits loses below its normal numbers."""
    evidence = (
        f"'{part.tensor}' has a range of {part.extent} while a typical value (rms) is "
        f"{part.rms:.2g}: values below {part.full_digits:.2g} lose digits in {part.format.label}"
    )
    if not is_planned(part.format):
        remedy = to_try("a narrower range where the model is quantized, or BF16 for the layer")
    else:
        remedy = f"{_CLIPPING_CALIBRATOR} Else keep the layer in BF16, whose range is that of FP32."
    brief = f"values of its input below {part.full_digits:.2g} lose digits in {part.format.label}"
    return Cause("fp8-underflow", share, evidence, remedy, brief=brief)


def _other_format(part: OperandPart) -> tuple[str, str]:
    """What the other format of 8 bits would give, as evidence, and the advice to take it; "" where
    it is not clearly the better one."""
    if part.other_db < _CLEARLY_BETTER_DB:
        return "", ""
    if part.format is INT8:
        other, why = "fp8", "most values are small beside the range: its steps shrink with them"
    else:
        other, why = "int8", "the values fill the range: its even step is finer there"
    gives = f"; {other.upper()} would add {part.other_db:.1f} dB less noise to this tensor"
    takes = f"{option('precision', other)}, or {option('pin_to', 'ladder')} of bisect by layer"
    return gives, f" {other.upper()} suits such a tensor, where {why} ({takes})."


def _rounding(part: OperandPart, share: float, fit: RangeFit) -> Cause:
    """What the step of a pair adds: because the range does not fit the values, because a few of
    them stretch it, or because it is INT8."""
    step = f"{part.format.label} step"
    if part.mixed is not None:
        return part.mixed.cause(share, part.tensor, step)
    if (shared := _shared(part, fit)) is not None:
        return shared.cause(share, part.taken_from, step)
    if part.too_wide > fit.wide and part.tensor not in fit.fixed:
        return _wide(part, share, fit)
    evidence = _steps(part, f"'{part.tensor}'" if part.inner else f"its input '{part.tensor}'")
    brief = _steps(part, "a tensor inside" if part.inner else "its input", short=True)
    stretched = _stretched(part)
    if part.inner:
        fold = ", or folding BatchNormalization before quantizing"
        only = "floating point there, between the nodes of one layer"
        remedy = to_try(f"{only}{fold if part.before_normalization else ''}")
    elif not (part.planned and is_planned(part.format)):
        other = "one that clips outliers" if stretched else "that of another calibrator"
        remedy = to_try(f"another range when quantizing the FP32 model, {other}") + (
            f" {_REPAIR_OF_OTHERS}. {_LAST}"
            if is_planned(part.format)
            else " Else keep the layer in FP32."
        )
    elif stretched:
        remedy = f"{_CLIPPING_CALIBRATOR} `qdebug repair` can equalize channels. {_LAST}"
    else:
        remedy = (
            "`qdebug calibrate` compares other ranges, `qdebug repair` tries to recover accuracy "
            f"within {part.format.label}. {_LAST}"
        )
    if stretched:
        evidence = f"{evidence}; {stretched}"
    if part.planned and is_planned(part.format) and not part.inner:
        gives, takes = _other_format(part)
        evidence, remedy = f"{evidence}{gives}", f"{remedy}{takes}"
    if stretched:
        return Cause("coarse-step", share, evidence, remedy, brief=brief)
    return Cause("rounding", share, evidence, remedy, brief=brief)


def _steps(part: OperandPart, what: str, *, short: bool = False) -> str:
    """How large one step is beside what is usual, for people."""
    low, high = part.bounds
    reach = f"ranges from {low:.3g} to {high:.3g}"
    if low == -high:
        reaches = _NEAR <= part.too_wide <= 1 / _NEAR
        reach = f"reaches {high:.3g}" if reaches else f"has a range of ±{high:.3g}"
    rms, step = ("", "") if short else (" (rms)", f" ({part.step:.2g})")
    most = "up to " if part.dynamic else ""
    size = part_of(part.step / part.rms, "a typical value") if part.rms else "all there is"
    return (
        f"{what} {reach} while a typical value{rms} is {part.rms:.2g}, so one "
        f"{part.format.label} step{step} is {most}{size}"
    )


def _stretched(part: OperandPart) -> str:
    """What stretches the range beyond the bulk of the values, "" where nothing does."""
    if part.largest > MASK:
        return "it holds a mask, and no range fits a mask and other values at once"
    if part.format.kind is Kind.FLOAT:
        return ""
    if part.spread > _UNEQUAL and not part.local_db >= _UNEQUAL_DB:
        return f"its widest channel has {part.spread:.3g} times the range of the median channel"
    if part.in_eighth > _MOST_OF_THEM:
        return f"{100 * part.in_eighth:.3g}% of its values lie in an eighth of that range"
    return ""


def _shared(part: OperandPart, fit: RangeFit) -> MixedScale | None:
    """A small part of what was joined and is taken out again, where the scale is still that of the
    whole, which other tensors fill: boxes and scores that a detector joins, sorts and takes apart.
    """
    filled = fit.filled_by(part.amax) if part.taken_from else 0.0
    noise = (part.step / part.rms) ** 2 / 12 if part.rms else math.inf
    if not part.largest or not is_mixed(part.largest, filled, noise, 0.0):
        return None
    return MixedScale(part.tensor, part.largest, filled, noise, part.step, planned=part.planned)


def _wide(part: OperandPart, share: float, fit: RangeFit) -> Cause:
    evidence = (
        f"'{part.tensor}' has a range of {part.extent}, {part.too_wide:.3g} times its largest "
        f"value in the compared samples, {max(part.largest, part.compared):.3g}"
    )
    if part.calibrated and not fit.stale:
        return Cause(
            "unrepresentative-calibration",
            share,
            f"{evidence}: the calibration samples reach further",
            to_try("a calibration on samples like the compared ones, or one that clips outliers"),
        )
    return _stale(part, share, evidence, fit)


def _stale(part: OperandPart, share: float, evidence: str, fit: RangeFit) -> Cause:
    why = fit.stale or _OF_SOMETHING_ELSE
    said = why if fit.names(part.tensor) else f"{evidence}; {why}"
    return Cause("stale-calibration", share, said, fit.remedy, brief=fit.stale)


def with_invalid_scale(
    causes: tuple[Cause, ...], scales: str, *, broken: bool
) -> tuple[Cause, ...]:
    """`causes` of a layer, behind a scale that is not a positive number where that is why: the
    layer gives NaN or Inf, or its weight is most of its error. One of a dead channel does no harm.

    Args:
        scales: which ones, for people; "" for none.
        broken: the layer gives NaN or Inf.
    """
    main = causes[0] if causes else None
    if not scales or not (broken or (main is not None and main.label in WEIGHT_CAUSES)):
        return causes
    evidence = f"a scale has to be a positive number; {scales}"
    remedy = "Quantize the FP32 model again: what is all 0 needs any scale above 0."
    share = None if broken or main is None else main.share
    share_of = OWN_ERROR if main is None else main.share_of
    rest = causes if broken else causes[1:]
    return (Cause(INVALID_SCALE, share, evidence, remedy, share_of, brief=evidence), *rest)


def saturation_cause(bias: SaturatedBias, exceeded: float, share: float | None) -> Cause:
    """The cause of an error that an INT32 bias makes which saturates.

    Args:
        exceeded: how many times too small its scale is; 1 where the FP32 bias is not known.
        share: of the error; None where that is not known, since the reference has the same bias.
    """
    evidence = f"its INT32 bias saturates: {bias.what}"
    larger = "a larger scale"
    if exceeded > _CUT:
        evidence += f", and reaches {exceeded * bias.limits.min():.3g} in the FP32 model"
        larger = f"a scale that is {exceeded:.3g} times as large"
    remedy = to_try(
        f"{larger} for the weights of that channel when quantizing the FP32 model (the scale of a "
        "bias is that of the input times it), or this bias in floating point"
    )
    return Cause(BIAS_SATURATION, share, evidence, remedy, brief=evidence)


def _weight(weight: WeightPart, share: float) -> Cause:
    if weight.saturated is not None and weight.exceeded > _CUT:
        return saturation_cause(weight.saturated, weight.exceeded, share)
    if weight.changed:
        return Cause(
            "other-weights",
            share,
            f"its {weight.changed}, which is more than rounding: it may have been corrected, "
            "trained or equalized",
            "If that is intended, as after a repair or training, judge by the outputs; otherwise "
            "compare with the FP32 model that these very weights were quantized from.",
        )
    if weight.channels > 1 and weight.across is not None and weight.spread > _LEAST_ACROSS:
        lie = (
            f"its {weight.channels} weight scales lie along axis {weight.across}, which is not "
            f"that of its output channels, and the widest of these has {weight.spread:.3g} times "
            "the range of the median channel"
        )
        along = f" (axis {weight.axis})" if weight.axis is not None else ""
        remedy = to_try(f"scales along the output channels{along} when quantizing the FP32 model")
        return Cause("weight-range", share, lie, remedy, brief=lie)
    if weight.channels == 1 and weight.spread > _UNEQUAL:
        return Cause(
            "weight-range",
            share,
            f"its weight has one scale, but the widest channel has {weight.spread:.3g} times the "
            "range of the median channel",
            weight.more_scales,
            brief="its weight has one scale, but the widest channel has "
            f"{weight.spread:.3g} times the range of the median channel",
        )
    if weight.channels == 1 and weight.divisible:
        return Cause(
            "weight-rounding",
            share,
            f"its weight is rounded to {weight.format.label} with one scale for all channels",
            f"{weight.more_scales} `qdebug repair` tries more."
            if weight.planned
            else weight.more_scales,
            brief=f"its weight is rounded to {weight.format.label} with one scale for all channels",
        )
    each = f"for {weight.block} values each" if weight.block else "one for each channel"
    rounded = (
        f"its weight is rounded to {weight.format.label}, although it has {weight.channels} "
        f"scales, {each}"
        if weight.channels > 1
        else f"its weight, of one output channel, is rounded to {weight.format.label}"
    )
    return Cause(
        "weight-rounding",
        share,
        rounded,
        f"Smaller blocks ({option('block_size')}) or 8 bits ({option('precision', 'w8')}, or "
        f"{option('pin_to', 'w8')} of `qdebug bisect`) round it less; otherwise keep it in higher "
        "precision."
        if weight.alone and weight.format.bits < INT8.bits
        else f"Smaller blocks ({option('block_size')}) round it less; otherwise keep it in higher "
        "precision."
        if weight.alone
        else to_try("smaller blocks or 8 bits for this layer when quantizing the FP32 model")
        + " Otherwise keep it in higher precision."
        if weight.block
        else "Keep the layer in higher precision, or train the network with its weights quantized."
        if not is_planned(weight.format)
        else f"{_REPAIR_OF_OTHERS}: it refits weights and biases. Keep the layer in FP32 only if "
        "that is not enough."
        if not weight.planned
        else "`qdebug repair` refits weights and biases so that the layer's output suffers less "
        "(`qdebug calibrate` changes the ranges of activations only). Keep the layer in FP32 only "
        "if that is not enough.",
        brief=rounded,
    )
