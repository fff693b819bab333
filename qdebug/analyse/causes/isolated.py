"""What running a layer isolated, with and without parts of its Q/DQ, says about its error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from qdebug.analyse.causes.at_outputs import AtOutputs
from qdebug.analyse.causes.calibration import RangeFit
from qdebug.analyse.causes.masked import (
    LEAST_MASK,
    MaskedScores,
    feeds_softmax,
    masked_scores,
)
from qdebug.analyse.causes.mixed_scales import MixedScale, PartSums, is_mixed
from qdebug.analyse.causes.quantization import (
    BIAS_SATURATION,
    OperandPart,
    WeightPart,
    bf16_causes,
    half_causes,
    rounding_causes,
    saturation_cause,
    with_invalid_scale,
)
from qdebug.analyse.causes.stored import changed_constants
from qdebug.engine_info.mismatch import MOVING_OPS
from qdebug.formats.base import FloatArray, Format, Kind
from qdebug.formats.registry import CAST, FP8_E4M3, FP16, INT8, UINT8, WEIGHT_ONLY
from qdebug.metrics.sums import error_energy, signal_energy
from qdebug.metrics.tensor import sqnr_db
from qdebug.network.codes import format_of_codes
from qdebug.network.graph import Graph
from qdebug.network.layers import Layer
from qdebug.network.outputparts import OutputParts, joined_parts, parts_of, shown_parts
from qdebug.plan.exact_constants import normalization_behind
from qdebug.plan.lints import SaturatedBias
from qdebug.plan.pair import ModelPair
from qdebug.plan.quantize import Grid, dynamic_grid
from qdebug.plan.rewrite.bypass import Pair
from qdebug.plan.rewrite.constants import ConstantValues
from qdebug.plan.rewrite.qdq import weight_axis
from qdebug.results.compare import AT_OUTPUTS, OWN_ERROR, Cause
from qdebug.types import Array, Precision, Tensors

WHOLE, NO_PAIRS, EXACT = "whole", "no pairs", "exact sums"
_SQUARE_SAFE = 1e15
"""Squares of larger values, such as a mask's, leave float32."""
_TAKING_OUT = (MOVING_OPS - {"Concat"}) | {"Cast", "ReduceMax", "TopK"}
"""What passes values of its first input on, perhaps some only."""
_SAME_RANGE = 0.01
"""Codes of INT8 reach from -128 or -127 to 127: the ends of one range differ by less than this."""
_OTHER_8_BITS = {INT8.name: FP8_E4M3, FP8_E4M3.name: INT8}
"""By the name of a format, the other one of 8 bits."""


def without(k: int) -> str:
    """The name of the variant in which each layer lacks its `k`-th pair."""
    return f"without {k}"


@dataclass
class _Values:
    """Sums over the values of one tensor."""

    count: int = 0
    squares: float = 0.0
    largest: float = 0.0
    low: float = 0.0
    high: float = 0.0
    beyond: int = 0
    clip_error: float = 0.0
    error: float = 0.0
    tiny_error: float = 0.0
    other_error: float = 0.0
    nonzero: int = 0
    tiny: int = 0
    inside: int = 0
    scores: float = 0.0
    lowest_score: float = 0.0
    channels: FloatArray | None = None

    def add(self, values: Array, grid: Grid | None, axis: int | None = None) -> None:
        """Add an array; `grid` is what a Q/DQ pair rounds it to, None without one, `axis` that of
        its channels.

        In float32, in one buffer: fractions of an error need no more, and new memory is expensive.
        """
        exact = values.astype(np.float32, copy=False).ravel()
        largest = _largest(exact)
        if not np.isfinite(largest):
            exact = exact[np.isfinite(exact)]
            largest = _largest(exact)
            if not exact.size:
                return
        self.count += exact.size
        self.largest = max(self.largest, largest)
        if grid is None:
            magnitude = np.abs(exact)
            self.nonzero += int(np.count_nonzero(magnitude))
            self.tiny += int(np.sum((magnitude > 0) & (magnitude < FP16.smallest_normal)))
            return
        if axis is not None:
            self._add_channels(np.abs(np.moveaxis(values, axis, 0)).reshape(values.shape[axis], -1))
        if largest > _SQUARE_SAFE:
            exact = exact.astype(np.float64)
        self.squares += float(exact @ exact)
        self.low, self.high = min(self.low, float(exact.min())), max(self.high, float(exact.max()))
        work = grid.quantize(exact).astype(exact.dtype, copy=False)
        work -= exact
        self.error += float(work @ work)
        if full := _full_digits(grid):
            tiny = work[np.abs(exact) < full]
            self.tiny_error += float(tiny @ tiny)
        low, high = grid.limits
        if (other := _OTHER_8_BITS.get(grid.format.name)) and grid.symmetric and grid.axis is None:
            scale = other.scale_of(max(-low, high))
            lost = other.quantize(exact, scale).astype(exact.dtype, copy=False) - exact
            self.other_error += float(lost @ lost)
        np.abs(exact, out=work)
        self.nonzero += int(np.count_nonzero(work))
        eighth = np.float32(max(-low, high) / 8)
        inside = (work > 0) & (work <= eighth)
        self.inside += int(np.count_nonzero(inside))
        if -low >= LEAST_MASK:
            self.scores = max(self.scores, float(work.max(where=inside, initial=0.0)))
            self.lowest_score = min(self.lowest_score, float(exact.min(where=inside, initial=0.0)))
        if largest > min(-low, high):
            np.clip(exact, np.float32(low), np.float32(high), out=work)
            work -= exact
            self.beyond += int(np.count_nonzero(work))
            self.clip_error += float(work @ work)

    def _add_channels(self, magnitudes: Array) -> None:
        largest = magnitudes.max(axis=1).astype(np.float32)
        known = largest if self.channels is None else self.channels
        if len(known) == len(largest):
            self.channels = np.maximum(known, largest)
        else:  # an axis whose length differs between samples has no channels
            self.channels = np.zeros(0, np.float32)

    @property
    def spread(self) -> float:
        """The largest over the median range of the channels that are not all 0."""
        if self.channels is None:
            return 1.0
        used = self.channels[self.channels > 0]
        return float(used.max()) / float(np.median(used)) if used.size > 1 else 1.0


def _with_masked(parts: Sequence[OperandPart], energy: float) -> list[OperandPart]:
    """`parts` that add up to `energy`, that of all pairs together: what one pair of an unsuitable
    scale has taken away, a second one can not take away again, so that leaving out either changes
    nothing. They share what is missing."""
    mixed = sum(part.mixed is not None for part in parts)
    missing = energy - sum(part.energy for part in parts)
    if not mixed or not missing > 0:
        return [*parts]
    more = missing / mixed
    return [replace(p, energy=p.energy + more) if p.mixed is not None else p for p in parts]


def _largest(values: Array) -> float:
    """The largest magnitude; NaN if a value is NaN, 0 without values."""
    return float(max(values.max(), -values.min())) if values.size else 0.0


def _gain_db(error: float, other: float) -> float:
    """How much less noise the other format of 8 bits makes, in dB; 0 where that is not known."""
    return 10 * math.log10(error / other) if error and other else 0.0


def _reach(grid: Grid) -> float:
    """The largest magnitude that it holds."""
    return max(-grid.shown[0], grid.shown[1])


def _full_digits(grid: Grid | None) -> float:
    """See `OperandPart.full_digits`."""
    if grid is None or grid.format.kind is not Kind.FLOAT:
        return 0.0
    return grid.format.smallest_normal * float(grid.scale)


@dataclass
class IsolatedLayer:
    """A layer that runs isolated, and sums over the batches it was fed.

    Attributes:
        energies: Σerr² at its output, by variant.
        signal: Σref² there.
        rounded: Σerr² of what a pair makes of its output, that counts as its own.
        values: of the tensors its pairs quantize, by name; of all it reads and writes where it is
            in FP16 or BF16.
        parts: of those tensors that its pairs quantize and that a Concat joins.
        at_outputs: what its variants make of the outputs; None where that is not looked at.
    """

    subject: ModelPair
    layer: Layer
    pairs: Sequence[Pair]
    energies: dict[str, float] = field(default_factory=dict)
    signal: float = 0.0
    rounded: float = 0.0
    values: dict[str, _Values] = field(default_factory=dict)
    parts: dict[str, PartSums | None] = field(default_factory=dict)
    at_outputs: AtOutputs | None = None

    def add(
        self,
        truth: Tensors,
        results: Mapping[str, Tensors],
        output: str,
        behind: Mapping[str, Tensors],
    ) -> None:
        """Add one batch: the reference's tensors, what each variant made of them, and what follows
        from that at the outputs."""
        reference = truth[self.layer.output]
        self.signal += error_energy(reference, np.zeros_like(reference))
        self._add_behind(reference)
        self._add_variants(truth, results, output)
        for variant, tensors in behind.items():
            if self.at_outputs is not None:
                self.at_outputs.add(
                    truth, variant, {**tensors, self.layer.output: results[variant][output]}
                )
        grids = self.subject.grids
        bare = results.get(NO_PAIRS, {})
        for pair in self.pairs:
            values = bare.get(pair.quantized) if pair.inner else truth[pair.source]
            if values is not None and values.size:
                grid = dynamic_grid(values) if pair.dynamic else grids.get(pair.source)
                if pair.bounds is not None and pair.bounds != (None, None):
                    values = np.clip(values, *pair.bounds)
                axis = None if pair.inner else self._axis(pair.source)
                self._values(pair.source).add(values, grid, axis)
                parts = self._parts(pair)
                if parts is not None and grid is not None:
                    parts.add(values, grid)
        if self.subject.precisions[self.layer.name] in CAST:
            for tensor in (*self._reads(), self.layer.output):
                if tensor in truth:
                    self._values(tensor).add(truth[tensor], None)

    def _add_variants(self, truth: Tensors, results: Mapping[str, Tensors], output: str) -> None:
        reference = truth[self.layer.output]
        for variant, tensors in results.items():
            if tensors[output].shape == reference.shape:
                energy = self._error(reference, tensors[output])
                self.energies[variant] = self.energies.get(variant, 0.0) + energy

    def _add_behind(self, reference: Array) -> None:
        grid, shown = self._behind, self._shown
        if grid is None or shown is None or not reference.size:
            return
        self.rounded += self._error(reference, grid.quantize(reference))
        self._values(self.layer.output).add(reference, grid)
        sums = self.parts.setdefault(self.layer.output, PartSums(shown))
        assert sums is not None
        sums.add(reference, grid)

    def _error(self, reference: Array, given: Array) -> float:
        """Σerr² at its output. Where that is an output that has parts, each weighs as if it had the
        mean signal of all, as where layers are ranked."""
        if self._shown is None:
            return error_energy(reference, given)
        pieces, others = (parts_of(self._shown, x) for x in (reference, given))
        signals = [signal_energy(piece) for piece in pieces]
        mean = sum(signals) / len(signals)
        each = zip(pieces, others, signals, strict=True)
        return sum(error_energy(x, y) * mean / s for x, y, s in each if s > 0)

    @cached_property
    def _shown(self) -> OutputParts | None:
        return shown_parts(self.subject.reference, self.layer.output)

    @cached_property
    def _behind(self) -> Grid | None:
        """What the pair behind a Concat rounds its output to, where that is only moved from there
        on. It counts as the layer's, as where layers are left out."""
        alone = self._shown is not None and not any(pair.inner for pair in self.pairs)
        joins = alone and self.layer.op_type == "Concat"
        return self.subject.grids.get(self.layer.output) if joins else None

    def _parts(self, pair: Pair) -> PartSums | None:
        """The sums of what a pair quantizes by part; None where it has none."""
        if pair.source not in self.parts:
            tensor = self.layer.output if pair.inner else pair.source
            found = joined_parts(self.subject.reference, tensor)
            self.parts[pair.source] = PartSums(found) if found else None
        return self.parts[pair.source]

    def causes(self, fit: RangeFit) -> tuple[Cause, ...]:
        """The causes of its error; `fit` is how all ranges fit the values."""
        precision = self.subject.precisions[self.layer.name]
        if precision in CAST:
            values = self.values.values()
            nonzero = sum(v.nonzero for v in values)
            tiny = sum(v.tiny for v in values) / nonzero if nonzero else 0.0
            largest = max((v.largest for v in values), default=0.0)
            if precision is Precision.BF16:
                return bf16_causes(largest, tiny) if self.energies.get(WHOLE) else ()
            broken = math.isnan(self.energies.get(WHOLE, 0.0))
            causes = half_causes(largest, tiny, *self._sums(), broken=broken)
            changed = changed_constants(self.subject, self.layer)
            return causes if changed is None else (changed, *causes)
        energies, share_of = self._weighed()
        whole = energies.get(WHOLE, 0.0)
        bare = energies.get(NO_PAIRS, 0.0 if self.pairs else whole)
        parts = []
        for k, pair in enumerate(self.pairs):
            rest = bare if len(self.pairs) == 1 else energies.get(without(k), 0.0)
            parts.append(self._part(pair, max(0.0, whole - rest), fit))
        parts = _with_masked(parts, whole - bare)
        if self.rounded:
            output = self.layer.output
            parts.append(self._part(Pair(output, output, output, True), self.rounded, fit))
        weight = self._weight(bare)
        found = rounding_causes(parts, weight, fit, share_of)
        if weight and weight.saturated and all(c.label != BIAS_SATURATION for c in found):
            found = (saturation_cause(weight.saturated, weight.exceeded, None), *found)
        scales = self.subject.invalid_scales
        invalid = next((scales[n] for n in self.layer.nodes if n in scales), "")
        return with_invalid_scale(found, invalid, broken=not math.isfinite(whole))

    def matters(self, variant: str) -> bool:
        """Whether the variant differs from the others in this layer."""
        places = [without(k) for k in range(len(self.pairs))] if len(self.pairs) > 1 else []
        return variant in (WHOLE, NO_PAIRS, *places)

    def _weighed(self) -> tuple[Mapping[str, float], str]:
        """The energy of each variant at the outputs, or at the layer's own where that is not known;
        and what they are parts of. What the pair behind a Concat adds is no variant."""
        found = self.at_outputs.energies() if self.at_outputs and not self.rounded else {}
        if found and all(map(math.isfinite, found.values())) and found[WHOLE] > 0:
            return found, AT_OUTPUTS
        return self.energies, OWN_ERROR

    def _sums(self) -> tuple[float, float]:
        """The share of the error that inexact sums make, and the SQNR without them."""
        whole, exact = self.energies.get(WHOLE, 0.0), self.energies.get(EXACT)
        if exact is not None and math.isnan(whole) and math.isfinite(exact):
            return 1.0, sqnr_db(self.signal, exact)  # partial sums alone overflow
        if exact is None or not 0 <= exact < whole:
            return 0.0, math.inf
        return 1 - exact / whole, sqnr_db(self.signal, exact)

    def _values(self, tensor: str) -> _Values:
        return self.values.setdefault(tensor, _Values())

    def _reads(self) -> list[str]:
        graph = self.subject.reference
        return [t for n in self.layer.nodes for t in graph.by_name[n].reads]

    def _axis(self, tensor: str) -> int | None:
        """Where the channels are in what the layer reads, counted from the end for a product of
        matrices; None where they are not known."""
        node = self.subject.reference.by_name[self.layer.name]
        if node.op_type in ("Conv", "ConvTranspose"):
            return 1
        if node.op_type not in ("MatMul", "Gemm"):  # a model that others quantized has any
            return None
        return -2 if tensor == node.inputs[1] else -1

    @property
    def _before_normalization(self) -> bool:
        candidate = self.subject.candidate
        node = candidate.by_name.get(self.layer.name)
        return node is not None and normalization_behind(candidate, node) is not None

    def _part(self, pair: Pair, energy: float, fit: RangeFit) -> OperandPart:
        found = self.values.get(pair.source, _Values())
        count = max(found.count, 1)
        rms = (found.squares / count) ** 0.5
        plan = self.subject.plan
        grid = self.subject.grids.get(pair.source)
        planned = plan.tensors.get(pair.source) if plan else None
        return OperandPart(
            tensor=pair.source,
            energy=energy,
            bounds=grid.shown if grid else (found.low, found.high),
            step=float(grid.format.step(rms, grid.scale))
            if grid
            else (found.high - found.low) / UINT8.largest,
            largest=found.largest,
            rms=rms,
            clipped=found.beyond / count,
            clipped_energy=min(1.0, found.clip_error / found.error) if found.error else 0.0,
            method=planned.method if planned else "",
            inner=pair.inner and pair.bounds is None,
            before_normalization=self._before_normalization,
            dynamic=pair.dynamic,
            calibrated=pair.source in self.subject.calibrated,
            compared=fit.tensors[pair.source].largest if pair.source in fit.tensors else 0.0,
            in_eighth=found.inside / found.nonzero if found.nonzero else 0.0,
            spread=found.spread,
            format=grid.format if grid else UINT8,
            full_digits=_full_digits(grid),
            tiny_energy=found.tiny_error / found.error if found.error else 0.0,
            other_db=_gain_db(found.error, found.other_error) if planned else 0.0,
            mixed=self._mixed(pair),
            taken_from=joined_in(self.subject.reference, pair.source),
            planned=plan is not None,
            local_db=sqnr_db(self.signal, self.energies.get(WHOLE, math.nan)),
        )

    def _masked(self, pair: Pair) -> MaskedScores | None:
        """What the pair of scores behind a mask makes of them, where its range is the mask's."""
        grid, found = self.subject.grids.get(pair.source), self.values.get(pair.source)
        if grid is None or found is None or pair.inner or grid.format.kind is Kind.FLOAT:
            return None
        if grid.scale.size != 1 or not feeds_softmax(self.subject.reference, self.layer):
            return None
        return masked_scores((found.low, found.high), found.scores, found.lowest_score, grid.step)

    def _mixed(self, pair: Pair) -> MixedScale | MaskedScores | None:
        if (masked := self._masked(pair)) is not None:
            return masked
        parts = self.parts.get(pair.source)
        found = (parts.found() if parts else None) or self._beside(pair)
        return replace(found, planned=self.subject.plan is not None) if found else None

    def _beside(self, pair: Pair) -> MixedScale | None:
        """What the pair of an input of a Concat or an Add does to it, where it has the range of
        another one, which has far larger values: in INT8 or UINT8, so that scales may be others."""
        grids, joins = self.subject.grids, self.layer.op_type
        own, values = grids.get(pair.source), self.values.get(pair.source)
        if joins not in ("Concat", "Add") or own is None or not values or not values.squares:
            return None
        for other in self.pairs:
            grid, beside = grids.get(other.source), self.values.get(other.source)
            if other is pair or grid is None or not beside or not beside.squares:
                continue
            noise = [x.error / x.squares for x in (values, beside)]
            alike = math.isclose(_reach(own), _reach(grid), rel_tol=_SAME_RANGE)
            alike = alike and own.scale.size == grid.scale.size == 1
            if alike and is_mixed(values.largest, beside.largest, *noise):
                sizes = values.largest, beside.largest, noise[0], own.step
                return MixedScale(pair.source, *sizes, joins=joins)
        return None

    def _weight(self, energy: float) -> WeightPart | None:
        graph = self.subject.reference
        changed = self._changed()
        if self.layer.weight is None:
            return WeightPart(energy, 1, 1.0, changed) if changed else None
        values = graph.constant(self.layer.weight)
        if values is None:
            return None
        saturated, exceeded = self._saturated()
        axis = weight_axis(graph.by_name[self.layer.name], graph, self.layer.weight)
        spread = 1.0
        if self._before_normalization:  # the reference has it folded: the scale serves this weight
            candidate = self.subject.candidate
            own = ConstantValues(candidate).value(candidate.by_name[self.layer.name].inputs[1])
            values = own if own is not None and own.shape == values.shape else values
        if axis is not None:
            channels = np.abs(np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1))
            ranges = channels.max(axis=1)
            spread = float(ranges.max() / np.median(ranges)) if np.median(ranges) else np.inf
        planned = self.subject.plan is not None
        scales, form, along, block = self._scales()
        across = along if along != axis else None
        divisible = axis is not None and values.shape[axis] > 1
        return WeightPart(
            energy=energy,
            channels=scales,
            spread=spread,
            changed=changed,
            planned=planned,
            format=form,
            axis=axis,
            across=across,
            block=block,
            divisible=divisible,
            alone=self.subject.precisions[self.layer.name] in WEIGHT_ONLY,
            saturated=saturated,
            exceeded=exceeded,
        )

    def _saturated(self) -> tuple[SaturatedBias | None, float]:
        """Its INT32 bias, where that saturates, and how many times too small its scale is."""
        found = next((n for n in self.layer.nodes if n in self.subject.saturated), None)
        if found is None:
            return None, 1.0
        graph, bias = self.subject.reference, self.subject.saturated[found]
        node = graph.by_name.get(found)
        exact = [graph.constant(t) for t in node.inputs if t != self.layer.weight] if node else []
        return bias, max((bias.exceeded(x) for x in exact if x is not None), default=1.0)

    def _changed(self) -> str:
        proof = self.subject.proof
        changed = proof.changed if proof else {}
        return next((changed[n] for n in self.layer.nodes if n in changed), "")

    def _scales(self) -> tuple[int, Format, int | None, int]:
        """How many scales the candidate has for the weight, the format of its codes, the axis
        of the weight that the scales lie along, None where that is not known, and for how many
        neighbours one is, 0 for a whole channel or tensor."""
        candidate = self.subject.candidate
        node = candidate.by_name.get(self.layer.name)
        for tensor in node.inputs[:2] if node else ():
            producer = candidate.producers.get(tensor)
            direct = producer
            while producer is not None and producer.op_type in ("Cast", "Transpose", "Reshape"):
                producer = candidate.producers.get(producer.inputs[0])
            if producer is None or producer.op_type != "DequantizeLinear":
                continue
            scale = candidate.initializers.get(producer.inputs[1])
            quantizer = candidate.producers.get(producer.inputs[0])
            stored = producer.inputs[0] if quantizer is None else quantizer.inputs[0]
            if stored in candidate.initializers and scale is not None:
                form = format_of_codes(candidate, producer) or INT8
                along = None
                if producer is direct and len(scale.dims) == 1:
                    given = int(candidate.attributes(producer).get("axis", 1))
                    along = given % len(candidate.initializers[stored].dims)
                block = int(candidate.attributes(producer).get("block_size", 0))
                return int(np.prod(scale.dims)), form, along, block
        return 1, INT8, None, 0


def joined_in(graph: Graph, tensor: str) -> str:
    """What a Concat joined that the values of a tensor are taken out of; "" where that is not so,
    or the tensor is all of it."""
    node, read = graph.producers.get(tensor), tensor
    while node is not None and node.op_type in _TAKING_OUT:
        read = node.inputs[0]
        node = graph.producers.get(read)
    return read if node is not None and node.op_type == "Concat" and read != tensor else ""
