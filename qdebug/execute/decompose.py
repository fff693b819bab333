"""Measure what each layer's output error consists of, on some of the batches of a lockstep pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from qdebug.backends.base import Session
from qdebug.metrics.accumulate import CANDIDATE, ErrorTotals, ExecutedBatch
from qdebug.metrics.parts import PartEnergies
from qdebug.metrics.sums import ErrorSums, error_energy
from qdebug.plan.pair import ModelPair
from qdebug.plan.rewrite.bypass import Pair, pairs_of
from qdebug.plan.rewrite.cut import LocalGraph
from qdebug.plan.rewrite.unrounded import UnroundedLayers, without_rounding
from qdebug.types import Array, Precision, Tensors

MOST_SAMPLES = 8
"""How many samples are decomposed. Each costs three or four executions of all layers, and more of
them move a ratio of energies by little."""


class _Isolated(NamedTuple):
    """A layer to decompose: its output in the reference and in the graph of isolated layers."""

    name: str
    tensor: str
    output: str
    clips: bool

    def of(self, tensors: Tensors) -> Array:
        """What it gives among the results of an isolated execution, or of a whole model."""
        return tensors[self.output if self.output in tensors else self.tensor]


@dataclass(frozen=True)
class Decomposition:
    """What is to be decomposed, and the graph for it.

    Attributes:
        local: the isolated layers as planned.
        unrounded: the same without rounding.
        pairs: their Q/DQ pairs.
        layers: those that are run isolated.
        floats: those in FP32, whose errors are all inherited, with their outputs.
    """

    local: LocalGraph | None
    unrounded: UnroundedLayers | None
    pairs: Mapping[str, Sequence[Pair]]
    layers: tuple[_Isolated, ...]
    floats: Mapping[str, str]


def decomposition(
    pair: ModelPair, tensors: Collection[str], local: LocalGraph | None
) -> Decomposition:
    """That of the layers whose outputs are among `tensors`.

    Layers whose parts cannot be told are left out: those that read what is something else in the
    candidate, a Q/DQ pair whose range is not known, and in FP32 those whose constants differ.

    Args:
        local: all of them that do not run in FP32, isolated.

    Raises:
        PlanError: as `without_rounding`.
    """
    pairs = pairs_of(local) if local else {}
    bare = without_rounding(local, pairs) if local else None
    changed = pair.proof.changed if pair.proof else {}
    isolated, floats = [], {}
    for layer in pair.layers:
        if layer.output not in tensors or not pair.refuted.isdisjoint(pair.reads(layer.name)):
            continue
        if pair.precisions[layer.name] is Precision.FP32:
            if not any(node in changed for node in layer.nodes):
                floats[layer.name] = layer.output
        elif local and bare and layer.name in local.outputs and layer.name not in bare.unknown:
            clips = any(p.restored in bare.ranges for p in pairs[layer.name])
            output = local.outputs[layer.name]
            isolated.append(_Isolated(layer.name, layer.output, output, clips))
    return Decomposition(local, bare, pairs, tuple(isolated), floats)


@dataclass
class PartsSink:
    """A sink that decomposes the errors of the batches with an index in `due`.

    It holds the results of two or three more executions at a time, whatever the number of workers.

    Attributes:
        comparison: the name of the comparison that has the cumulative errors.
        sessions: of the isolated layers, as planned and without rounding; empty without any.
        parts: the energies found, by layer.
    """

    plan: Decomposition
    comparison: str
    sessions: Sequence[Session]
    due: Collection[int]
    parts: dict[str, PartEnergies] = field(default_factory=dict)

    def __call__(self, executed: ExecutedBatch, errors: Mapping[str, ErrorTotals]) -> None:
        """Add one batch. See evaluator.Sink."""
        if executed.batch.index not in self.due:
            return
        sums = errors[self.comparison].tensors
        count = executed.batch.count
        for name, tensor in self.plan.floats.items():
            if tensor in sums:
                self._add(name, _energies(count, sums[tensor]))
        layers = [x for x in self.plan.layers if x.tensor in sums]
        tensors = {x.name: x.tensor for x in layers}
        if not layers:
            return
        for name, found in self._parts(executed, layers).items():
            self._add(name, _energies(count, sums[tensors[name]], found))

    def _add(self, layer: str, energies: PartEnergies) -> None:
        known = self.parts.get(layer)
        self.parts[layer] = energies if known is None else known.merge(energies)

    def _parts(
        self, executed: ExecutedBatch, layers: Sequence[_Isolated]
    ) -> dict[str, dict[str, float]]:
        """The energies of the parts, by layer and name; NaN where the candidate does not have what
        a layer reads. See metrics/parts.py for the four executions."""
        local, unrounded = self.plan.local, self.plan.unrounded
        assert local is not None and unrounded is not None
        planned, bare = self.sessions
        given, missing = _fed_by_candidate(executed, local)
        clips = any(self._clips(p, given) for pairs in self.plan.pairs.values() for p in pairs)
        exact, clipping = ({unrounded.slack: np.array(x, np.float32)} for x in (np.inf, 0))
        truth = {**executed.feeds, **executed.reference}
        candidate = executed.of(CANDIDATE)
        found: dict[str, dict[str, float]] = {x.name: {} for x in layers}

        def note(part: str, one: Tensors, other: Tensors) -> None:
            for layer in layers:
                found[layer.name][part] = _energy(layer.of(one), layer.of(other))

        whole = planned.run(given)
        note("unexplained", whole, candidate)
        clipped = bare.run({**given, **(clipping if clips else exact)})
        note("rounding", clipped, whole)
        del whole
        plain = bare.run({**given, **exact}) if clips else clipped
        note("clipping", plain, clipped)
        del clipped
        weights = bare.run({**{name: truth[name] for name in local.inputs}, **exact})
        note("inherited", weights, plain)
        note("weights", truth, weights)
        for layer in layers:
            if not layer.clips:
                del found[layer.name]["clipping"]
            if not missing.isdisjoint(local.reads[layer.name]):
                found[layer.name]["inherited"] = np.nan
        return found

    def _clips(self, pair: Pair, feeds: Tensors) -> bool:
        """Whether a pair clips any of the values to feed; taken for granted between the nodes of a
        layer, where what it reads is not known."""
        assert self.plan.unrounded is not None
        bounds = self.plan.unrounded.ranges.get(pair.restored)
        if bounds is None:
            return False
        values = None if pair.inner else feeds.get(pair.source)
        if values is None:
            return True
        return bool(values.size and not (bounds[0] <= values.min() and values.max() <= bounds[1]))


def _fed_by_candidate(
    executed: ExecutedBatch, local: LocalGraph
) -> tuple[dict[str, Array], set[str]]:
    """What the candidate gives the isolated layers to read, and which tensors it does not have;
    those are the reference's."""
    truth, candidate = {**executed.feeds, **executed.reference}, executed.of(CANDIDATE)
    feeds, missing = {}, set[str]()
    for name in local.inputs:
        expected = truth[name]
        found = executed.feeds.get(name, candidate.get(name))
        if found is None or found.shape != expected.shape:
            missing.add(name)
            found = expected
        feeds[name] = found.astype(expected.dtype, copy=False)
    return feeds, missing


def _energies(
    count: int, sums: ErrorSums, parts: Mapping[str, float] | None = None
) -> PartEnergies:
    total = np.nan if sums.mismatched_non_finite else sums.sq_err
    return PartEnergies(count, sums.ref_sq, total, parts or {})


def _energy(one: Array, other: Array) -> float:
    """Σ(one − other)² of any float types; NaN where only one is finite, or of another shape."""
    if one.shape != other.shape:
        return float("nan")
    if one is other:
        return 0.0
    return error_energy(one.astype(np.float32, copy=False), other.astype(np.float32, copy=False))
