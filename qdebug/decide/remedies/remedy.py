"""What a remedy is, and what it may look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from qdebug.backends.base import Backend
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.decide.remedies.quantized import Quantized
from qdebug.memo import Memo
from qdebug.network.samples.subset import SampleSubset
from qdebug.run.timelimit import TimedBackend, check_time
from qdebug.types import ProgressCallback, ignore_progress


@dataclass(frozen=True)
class Study:
    """What remedies may look at: calibration samples, never those that judge the result.

    Attributes:
        backend: runs FP32 models, and single operators.
        simulation: runs models with Q/DQ.
        samples: to calibrate on.
        gather: the histograms of some tensors of an FP32 network over all of `samples`.
        calibrated: the network given with a range for each tensor that lacks one.
        effect: gives what each layer's quantization does to the outputs at the start: noise
            Σerr²/Σref² with it alone in INT8, by name, of very large models estimated from groups
            of layers; those of which nothing is known are missing.
        memory_bytes: what a remedy may hold of activations.
        workers: executions at once.
        alone: as `backend`, for one execution at a time on all cores; None where that is the same.
        ends_at: nothing is executed later, on the clock of `time.monotonic`; see `until`.
        memo: keeps on disk what networks give.
    """

    backend: Backend
    simulation: Backend
    samples: SampleSubset
    gather: Callable[[Quantized, Sequence[str]], Mapping[str, TensorHistogram]]
    calibrated: Callable[[Quantized], Quantized]
    effect: Callable[[], Mapping[str, float]] = dict
    memory_bytes: int = 1 << 30
    workers: int = 1
    alone: Backend | None = None
    progress: ProgressCallback = ignore_progress
    ends_at: float = math.inf
    memo: Memo | None = None

    def until(self, ends_at: float) -> Study:
        """The same, which raises OutOfTimeError where anything would be executed later than
        `ends_at`, on the clock of `time.monotonic`."""

        def gather(network: Quantized, tensors: Sequence[str]) -> Mapping[str, TensorHistogram]:
            check_time(ends_at)
            return self.gather(network, tensors)

        return replace(
            self,
            backend=TimedBackend(self.backend, ends_at),
            simulation=TimedBackend(self.simulation, ends_at),
            gather=gather,
            alone=TimedBackend(self.alone, ends_at) if self.alone else None,
            ends_at=ends_at,
        )

    def most_harmful_first(self, layers: Sequence[str]) -> list[str]:
        """`layers` by what their quantization does to the outputs."""
        effect = self.effect()
        return sorted(layers, key=lambda name: -effect.get(name, 0.0))


@dataclass(frozen=True)
class Proposal:
    """A changed network, to be judged.

    Attributes:
        result: what it would be.
        layers: those that were changed, in execution order.
        what: what was done, for people, such as "exponent 0.7".
    """

    result: Quantized
    layers: tuple[str, ...]
    what: str = ""


@dataclass(frozen=True)
class Remedy:
    """A way to make up for errors of quantization that costs nothing, or almost nothing, when the
    network runs.

    What it proposes computes, in FP32, what the network computes, within 1e-4 of the outputs'
    largest magnitude; or has another weight, bias or range in INT8 layers only. That is tested for
    all of them.

    Attributes:
        name: as the user names it; remedies/names.py says what it does.
        fewest_samples: calibration samples without which it is skipped.
        layers: which layers of a network it can be applied to, in execution order.
        propose: changed networks, the most promising first, in which it was applied to some of
            these layers. They may be few; a proposal is made when it is asked for.
        rewrites: it changes the FP32 network, and with it the values of some tensors.
        groups: layers that are judged apart from each other, the first group first.
    """

    name: str
    fewest_samples: int
    layers: Callable[[Quantized], tuple[str, ...]]
    propose: Callable[[Study, Quantized, Sequence[str]], Iterator[Proposal]]
    rewrites: bool = False
    groups: Callable[[Quantized, Sequence[str]], list[tuple[str, ...]]] = lambda _, layers: [
        tuple(layers)
    ]


def apart_from_heads(network: Quantized, layers: Sequence[str]) -> list[tuple[str, ...]]:
    """`layers` in two groups: those that do not give an output by themselves, and then the others,
    the heads."""
    heads = heads_of(network)
    first = tuple(name for name in layers if name not in heads)
    return [group for group in (first, tuple(n for n in layers if n in heads)) if group]


def heads_of(network: Quantized) -> frozenset[str]:
    """The layers between which and an output there is no other layer with a weight."""
    graph, layers = network.graph, network.layers
    waiting, seen, heads = list(graph.outputs), set[str](), set[str]()
    while waiting:
        node = graph.producers.get(waiting.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        layer = layers.of_node.get(node.name)
        if layer is not None and layer.quantizable:
            heads.add(layer.name)
        else:
            waiting += node.reads
    return frozenset(heads)
