"""The sign of the outputs' errors: whether the candidate gives more, or less, on average.

Most of a quantization error has no sign, and no constant takes it off. Where it has one, a bias
does, at no cost. Scores of a detector that are 0.16 lower on average cost it more detections than
noise does, and the SQNR, in which places without an answer dominate, shows little of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, ErrorTotals, ExecutedBatch
from qdebug.metrics.tasks.base import Float64
from qdebug.network.outputparts import OutputParts, parts_of
from qdebug.plan.pair import ModelPair
from qdebug.results.compare import OutputPart, OutputResult, Shift, ShiftedValues
from qdebug.types import Array

_MOST_CHANNELS = 128
"""Of more channels each by itself is not looked at."""
_SCORE = 0.1
"""A score of less is no answer of the network; as of head-shift, which takes such a shift off."""
_LEAST_SAMPLES = 8
_STANDS_OUT = 0.3
"""Of the standard deviation of the scores' errors; see head-shift."""
_LEAST_DB = 1.0
"""What taking the mean errors off must give; see cures."""
_ERRORS = 4.0
"""Standard errors by which a mean must differ from 0. On many samples one of 128 channels does so
by chance in one network of 120."""


class SampleShifts(NamedTuple):
    """What one part of an output says of some samples.

    Attributes:
        means: the mean error (candidate less reference) of each channel, float64 [samples,
            channels].
        reference: the means of the reference, float64 [samples, channels].
        squares: mean squares of the errors, float64 [samples].
        scores: of what scores enough: how many, the sums of the reference, of the errors and of
            their squares, float64 [samples, 4].
        range: the least and the largest value of the reference, float64 [samples, 2].
    """

    means: Float64
    reference: Float64
    squares: Float64
    scores: Float64
    range: Float64


KeptShifts = Mapping[int, Mapping[str, list[SampleShifts]]]
"""Of each output its parts, by the number of a batch's first sample."""


class ShiftSink:
    """A sink that keeps the mean errors of the outputs by sample. See evaluator.Sink."""

    def __init__(self, pair: ModelPair) -> None:
        """`pair`: what is compared."""
        graph, both = pair.reference, {*pair.candidate.outputs}
        self._outputs = [t for t in graph.outputs if t in both and graph.is_float(t)]
        self._parts = pair.parts
        self._axes = {
            x.name: [d.dim_param for d in x.type.tensor_type.shape.dim]
            for x in graph.proto.graph.output
        }
        self._each: dict[int, dict[str, list[SampleShifts]]] = {}

    def __call__(self, executed: ExecutedBatch, _: Mapping[str, ErrorTotals]) -> None:
        """Take a batch; outputs that are not there, or not split by samples, say nothing."""
        reference, candidate = executed.of(REFERENCE), executed.of(CANDIDATE)
        count = executed.batch.count
        found = self._each.setdefault(executed.batch.start, {})
        for name in self._outputs:
            if name in reference and name in candidate:
                shifts = _of_batch(reference[name], candidate[name], count, self._parts.get(name))
                if shifts:
                    found[name] = shifts

    @property
    def kept(self) -> KeptShifts:
        """For `merge`."""
        return self._each

    def merge(self, other: KeptShifts) -> None:
        """Add what another sink kept over other batches, or of other outputs."""
        for start, shifts in other.items():
            self._each.setdefault(start, {}).update(shifts)

    def on(self, outputs: Sequence[OutputResult]) -> tuple[OutputResult, ...]:
        """`outputs` with the shifts of those that were the same in all batches."""
        return tuple(self._on(output) for output in outputs)

    def _on(self, output: OutputResult) -> OutputResult:
        each = [self._each[start].get(output.name, []) for start in sorted(self._each)]
        count = max(1, len(output.parts))
        if not each or any(len(shifts) != count for shifts in each):
            return output
        widths = {tuple(x.means.shape[1] for x in shifts) for shifts in each}
        if len(widths) > 1:
            return output
        found = [
            shift_of(SampleShifts(*map(np.concatenate, zip(*pieces, strict=True))))
            for pieces in zip(*each, strict=True)
        ]
        axis = output.parts[0].axis if output.parts else 1
        name = next(iter(self._axes.get(output.name, [])[axis : axis + 1]), "")
        found = [x and replace(x, axis=name if x.channel is not None else "") for x in found]
        if not output.parts:
            return replace(output, shift=found[0])
        parts = zip(output.parts, found, strict=True)
        return replace(output, parts=tuple(replace(p, shift=_within(x, p)) for p, x in parts))


def _within(shift: Shift | None, part: OutputPart) -> Shift | None:
    """The shift of a part, with the channel counted from that of the output."""
    if shift is None or shift.channel is None:
        return shift
    return replace(shift, channel=part.first + shift.channel)


def _of_batch(
    reference: Array, candidate: Array, samples: int, parts: OutputParts | None
) -> list[SampleShifts]:
    """Of each part; none where the first axis is not that of the samples, or values are not
    finite."""
    same = reference.shape == candidate.shape and reference.ndim and reference.size
    if not same or reference.shape[0] % samples:
        return []
    axis = parts.axis if parts else 1
    divided = [parts_of(parts, array) for array in (reference, candidate)]
    found = []
    for expected, given in zip(*divided, strict=True):
        has_channels = parts is not None or expected.ndim in (2, 4, 5)
        channels = expected.shape[axis] if has_channels and expected.ndim > axis else 1
        if channels > _MOST_CHANNELS:
            channels = 1
        both = [_rows(array, axis, samples, channels) for array in (expected, given)]
        if not all(np.isfinite(x).all() for x in both):
            return []
        found.append(_of_part(both[0], both[1] - both[0]))
    return found


def _rows(array: Array, axis: int, samples: int, channels: int) -> Float64:
    """As float64 [samples, channels, positions]."""
    moved = np.moveaxis(array, axis, 1) if channels > 1 else array
    if channels > 1 and array.shape[0] != samples:  # several rows for each sample
        moved = moved.reshape(samples, -1, *moved.shape[1:]).swapaxes(1, 2)
    return np.asarray(moved.reshape(samples, channels, -1), np.float64)


def _of_part(reference: Float64, error: Float64) -> SampleShifts:
    every = (1, 2)
    score = reference >= _SCORE
    sums = (score, reference * score, error * score, np.square(error) * score)
    return SampleShifts(
        means=error.mean(axis=2),
        reference=reference.mean(axis=2),
        squares=np.square(error).mean(axis=every),
        scores=np.stack([x.sum(axis=every) for x in sums], axis=1),
        range=np.stack([reference.min(axis=every), reference.max(axis=every)], axis=1),
    )


def shift_of(shifts: SampleShifts) -> Shift | None:
    """What stands out of chance: a shift of scores, or of all values; None for none, and on too few
    samples."""
    if len(shifts.means) < _LEAST_SAMPLES:
        return None
    return _of_scores(shifts) or _of_all(shifts)


def _of_scores(shifts: SampleShifts) -> Shift | None:
    """Of values between 0 and 1, the shift of those that make an answer."""
    count, _, error, _ = shifts.scores.T
    total, reference, errors, squares = shifts.scores.sum(axis=0).tolist()
    if shifts.range.min() < 0 or shifts.range.max() > 1 or total < _LEAST_SAMPLES:
        return None
    mean, samples = errors / total, len(count)
    # Of a ratio of sums over samples (Cochran, Sampling Techniques, 1977, 6.4).
    residual = float(np.square(error - mean * count).sum())
    std_error = math.sqrt(samples / (samples - 1) * residual) / total
    std = math.sqrt(max(0.0, squares / total - mean**2))
    if abs(mean) <= max(_STANDS_OUT * std, _ERRORS * std_error):
        return None
    return Shift(
        values=ShiftedValues.SCORES,
        mean=mean,
        std_error=std_error,
        std=std,
        reference=reference / total,
        share=mean**2 / (squares / total),
    )


def _of_all(shifts: SampleShifts) -> Shift | None:
    """The channel with the largest mean error, where the mean errors of all channels make enough of
    the error."""
    mean, energy = shifts.means.mean(axis=0), float(shifts.squares.mean())
    std_error = shifts.means.std(axis=0, ddof=1) / math.sqrt(len(shifts.means))
    stands_out = np.abs(mean) > _ERRORS * std_error
    if not stands_out.any():
        return None
    share = float((np.square(mean) - np.square(std_error)).mean()) / energy  # less that by chance
    if share < 1 - 10 ** (-_LEAST_DB / 10):
        return None
    most = int(np.argmax(np.abs(mean) * stands_out))
    return Shift(
        values=ShiftedValues.ALL,
        mean=float(mean[most]),
        std_error=float(std_error[most]),
        std=math.sqrt(max(0.0, energy - float(np.square(mean).mean()))),
        reference=float(shifts.reference[:, most].mean()),
        share=min(1.0, share),
        channel=most if len(mean) > 1 else None,
    )
