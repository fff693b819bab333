"""What remedies may look at: made for a repair, and for a comparison that tries remedies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from qdebug.backends.simulation import SimulationBackend
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.registry import parse_method
from qdebug.decide.remedies.calibrator import METHODS
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Study
from qdebug.execute.context import Context
from qdebug.execute.gather import calibrated, gather_ranges
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.plan import TensorRange


def study_of(
    context: Context,
    fitting: SampleSubset,
    *,
    method: str,
    effect: Callable[[], Mapping[str, float]],
) -> Study:
    """A study of the samples `fitting`; tensors that remedies make are calibrated as most others of
    the network are, or by `method`. The rest is as in Study."""

    def gather(network: Quantized, tensors: Sequence[str]) -> Mapping[str, TensorHistogram]:
        found = gather_ranges(context, network.graph, fitting, tensors=list(tensors))
        return found.histograms

    def complete(network: Quantized) -> Quantized:
        missing = network.bound.missing_ranges()
        if not missing:
            return network
        calibrator = parse_method(_prevailing(network) or method)
        found = calibrated(gather(network, missing), missing, calibrator)
        return network.with_ranges(
            {tensor: TensorRange(amax, calibrator.name) for tensor, amax in found.items()}
        )

    cores = context.parallel.workers * context.parallel.threads
    at_once = min(context.parallel.workers, len(fitting.batches))
    threads = cores // max(1, at_once)
    return Study(
        backend=SimulationBackend(threads, sessions=context.sessions),
        simulation=SimulationBackend(threads, context.fp16_kernels, context.sessions),
        samples=fitting,
        gather=gather,
        calibrated=complete,
        effect=effect,
        memory_bytes=context.budget.bytes,
        workers=at_once,
        alone=SimulationBackend(cores, sessions=context.sessions),
        progress=context.progress,
        memo=context.memo,
    )


def _prevailing(network: Quantized) -> str:
    """The calibrator of most activations that have a range; "" where a calibrator gave none."""
    known = network.bound.plan.tensors
    needed = (known[t].method for t in network.bound.needed_ranges() if t in known)
    counts = Counter(method for method in needed if method in METHODS)
    return counts.most_common(1)[0][0] if counts else ""
