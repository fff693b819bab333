"""What each layer's output error consists of, on some of the batches of a comparison."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qdebug.execute.context import Context
from qdebug.memo import digest_of
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, ExecutedBatch
from qdebug.metrics.parts import PartEnergies
from qdebug.metrics.sums import error_energy, signal_energy
from qdebug.plan.pair import ModelPair
from qdebug.plan.rewrite.bypass import pairs_of
from qdebug.plan.rewrite.cut import LocalGraph
from qdebug.plan.rewrite.unrounded import UnroundedLayers, without_rounding
from qdebug.run.variant import Variant, as_it_is
from qdebug.types import Array, Feeds, Precision, Tensors

_PLANNED, _CLIPPED, _PLAIN, _WEIGHTS = "planned", "clipped", "plain", "weights"
"""Variants of the isolated layers. Fed by the candidate: as planned, without rounding, and without
clipping as well; fed by the reference: the last of these, in which only weights are rounded."""


@dataclass(frozen=True)
class _Isolated:
    """A layer to decompose: its output in the reference and in the graph of isolated layers;
    `clips`: one of its Q/DQ pairs has a fixed range; `reads`: what is fed to it."""

    name: str
    tensor: str
    output: str
    clips: bool
    reads: frozenset[str]


@dataclass(frozen=True)
class Decomposition:
    """What is to be decomposed, and the graphs for it.

    Attributes:
        local: the isolated layers as planned; None where there are none.
        unrounded: the same without rounding.
        layers: those that are run isolated.
        floats: those in FP32, whose errors are all inherited, with their outputs.
    """

    local: LocalGraph | None
    unrounded: UnroundedLayers | None
    layers: tuple[_Isolated, ...]
    floats: Mapping[str, str]

    def variants(self, context: Context, batches: frozenset[int]) -> dict[str, Variant]:
        """The four executions of the isolated layers, on these batches."""
        if self.local is None or self.unrounded is None or not self.layers:
            return {}
        planned = as_it_is(self.local.proto, context.simulation)
        bare = as_it_is(self.unrounded.proto, context.backend)
        inputs, slack = self.local.inputs, self.unrounded.slack
        found = {
            _PLANNED: (planned, FedBy(CANDIDATE, inputs)),
            _CLIPPED: (bare, FedBy(CANDIDATE, inputs, slack, 0.0)),
            _PLAIN: (bare, FedBy(CANDIDATE, inputs, slack, np.inf)),
            _WEIGHTS: (bare, FedBy(REFERENCE, inputs, slack, np.inf)),
        }
        reads = REFERENCE, CANDIDATE
        return {
            name: replace(one, reads=reads, feeds=feeds, batches=batches)
            for name, (one, feeds) in found.items()
        }

    def reducer(self, batches: frozenset[int]) -> Parts:
        """What sums the parts on these batches."""
        inputs = self.local.inputs if self.local else ()
        return Parts(self.layers, tuple(self.floats.items()), inputs, batches)


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
        name = layer.name
        if layer.output not in tensors or not pair.refuted.isdisjoint(pair.reads(name)):
            continue
        if pair.precisions[name] is Precision.FP32:
            if not any(node in changed for node in layer.nodes):
                floats[name] = layer.output
        elif local and bare and name in local.outputs and name not in bare.unknown:
            clips = any(p.restored in bare.ranges for p in pairs[name])
            output, reads = local.outputs[name], local.reads[name]
            isolated.append(_Isolated(name, layer.output, output, clips, reads))
    return Decomposition(local, bare, tuple(isolated), floats)


@dataclass(frozen=True)
class FedBy:
    """Feeds isolated layers with the activations of a run.

    Attributes:
        slack: an input of the graph: how far beyond their ranges its Q/DQ pairs clip; "" for none.
    """

    run: str
    inputs: tuple[str, ...]
    slack: str = ""
    value: float = 0.0

    def __call__(self, executed: ExecutedBatch) -> Feeds:
        """See Variant.feeds. What the run does not have is fed from the reference."""
        feeds, _ = fed_by(executed, self.run, self.inputs)
        return feeds | ({self.slack: np.array(self.value, np.float32)} if self.slack else {})


def fed_by(
    executed: ExecutedBatch, run: str, inputs: Sequence[str]
) -> tuple[dict[str, Array], set[str]]:
    """The values of `inputs` in a run, and those of them that it does not have, or has in another
    shape: these are the reference's."""
    truth, tensors = {**executed.feeds, **executed.reference}, executed.of(run)
    feeds, missing = dict[str, Array](), set[str]()
    for name in inputs:
        expected = truth[name]
        found = executed.feeds.get(name, tensors.get(name))
        if found is None or found.shape != expected.shape:
            missing.add(name)
            found = expected
        feeds[name] = found.astype(expected.dtype, copy=False)
    return feeds, missing


@dataclass(frozen=True)
class Parts:
    """The energies of the parts of each layer's error, by layer, on some batches. See Reducer, and
    metrics.parts for what the four executions tell."""

    layers: tuple[_Isolated, ...]
    floats: tuple[tuple[str, str], ...]
    inputs: tuple[str, ...]
    batches: frozenset[int]

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        isolated = (_PLANNED, _CLIPPED, _PLAIN, _WEIGHTS) if self.layers else ()
        return REFERENCE, CANDIDATE, *isolated

    @property
    def key(self) -> str:
        """See Reducer."""
        layers = [(x.name, x.tensor, x.output, x.clips, sorted(x.reads)) for x in self.layers]
        return digest_of("parts", layers, self.floats, self.inputs, sorted(self.batches))

    def reduce(self, executed: ExecutedBatch) -> dict[str, PartEnergies]:
        """See Reducer."""
        if executed.batch.index not in self.batches:
            return {}
        parts: dict[str, dict[str, float]] = {name: {} for name, _ in self.floats}
        runs = [executed.of(run) for run in (_PLANNED, _CLIPPED, _PLAIN, _WEIGHTS)]
        _, missing = fed_by(executed, CANDIDATE, self.inputs)
        there = executed.of(CANDIDATE).keys()
        for layer in (x for x in self.layers if x.tensor in there):
            parts[layer.name] = self._of(layer, executed, runs)
            if not missing.isdisjoint(layer.reads):
                parts[layer.name]["inherited"] = np.nan
        tensors = {**dict(self.floats), **{x.name: x.tensor for x in self.layers}}
        found = {}
        for name, own in parts.items():
            both = executed.reference.get(tensors[name]), executed.of(CANDIDATE).get(tensors[name])
            if both[0] is None or both[1] is None or both[0].shape != both[1].shape:
                continue
            total, signal = _energy(both[0], both[1]), signal_energy(both[0])
            found[name] = PartEnergies(executed.batch.count, signal, total, own)
        return found

    def merge(
        self, before: dict[str, PartEnergies], after: dict[str, PartEnergies]
    ) -> dict[str, PartEnergies]:
        """See Reducer."""
        for name, energies in after.items():
            known = before.get(name)
            before[name] = energies if known is None else known.merge(energies)
        return before

    @staticmethod
    def _of(layer: _Isolated, executed: ExecutedBatch, runs: Sequence[Tensors]) -> dict[str, float]:
        planned, clipped, plain, weights = (run[layer.output] for run in runs)
        truth, candidate = executed.reference[layer.tensor], executed.of(CANDIDATE)[layer.tensor]
        parts = {
            "unexplained": _energy(planned, candidate),
            "rounding": _energy(clipped, planned),
            "inherited": _energy(weights, plain),
            "weights": _energy(truth, weights),
        }
        return parts | ({"clipping": _energy(plain, clipped)} if layer.clips else {})


def _energy(one: Array, other: Array) -> float:
    """Σ(one − other)² of any float types; NaN where only one is finite, or of another shape."""
    if one.shape != other.shape:
        return float("nan")
    return error_energy(one.astype(np.float32, copy=False), other.astype(np.float32, copy=False))
