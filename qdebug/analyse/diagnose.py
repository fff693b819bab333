"""Find out why the worst layers are wrong, by running them isolated, with parts of their Q/DQ."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import onnx

from qdebug.analyse.causes.at_outputs import AtOutputs, FedBehind
from qdebug.analyse.causes.calibration import Fitted, RangeFit
from qdebug.analyse.causes.isolated import EXACT, NO_PAIRS, WHOLE, IsolatedLayer, without
from qdebug.analyse.causes.masked import LEAST_MASK, feeds_softmax
from qdebug.analyse.causes.overflow import pinned_together
from qdebug.analyse.causes.quantization import harmless_cause, inherited_cause
from qdebug.calibrators.registry import NEVER_CLIPPING
from qdebug.execute.context import Context, runner_of
from qdebug.formats.base import Kind
from qdebug.formats.registry import FORMAT_OF, RANGED, SCALED
from qdebug.metrics.accumulate import REFERENCE
from qdebug.network.graph import Graph
from qdebug.network.layers import Layer
from qdebug.network.samples import Batch, Samples
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.pair import ModelPair
from qdebug.plan.rewrite.bypass import Pair, bypass, pairs_of
from qdebug.plan.rewrite.cut import LocalGraph, cut_layers
from qdebug.plan.rewrite.tail import tail_of
from qdebug.results.compare import Cause, LayerResult, TensorResult
from qdebug.results.summary import MOST_LEADERS
from qdebug.run.variant import FedByReference, Variant, as_it_is
from qdebug.types import Array, Fp16Kernels, Precision

MOST_LAYERS = 16
"""How many layers are examined: a reader looks at no more."""
_MOST_SAMPLES, _LEAST_SAMPLES = 16, 2
_ENOUGH_VALUES = 4 << 20
"""This many values suffice to explain an error, but at least two samples are examined. Of small
activations more are, since they cost nothing."""
_MOST_WEIGHED = MOST_LEADERS
"""Of so many layers, those that cost most, the parts are weighed at the outputs."""
_DECIDING = frozenset({"ArgMax", "ArgMin", "TopK", "NonMaxSuppression", "NonZero"})
"""Behind these a small error is nothing or all: what a part of it costs there is chance."""
_SAME_VALUES = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
_CODE = 0.01
"""Signed codes end at 127, unsigned ones at 255: what ends at 1 in one ends one code off in the
other."""
_GOOD_DB = 60.0
"""A layer whose own error is smaller needs no explanation."""


def diagnosed(
    context: Context,
    pair: ModelPair,
    samples: Samples,
    batches: Sequence[Batch],
    layers: Sequence[LayerResult],
    tensors: Sequence[TensorResult],
    most: int = MOST_LAYERS,
    *,
    trusted: bool | None = None,
    fed: Mapping[str, float] | None = None,
    noise_of: Array | None = None,
) -> tuple[LayerResult, ...]:
    """`layers`, worst first, with the causes of their errors.

    The `most` worst ones are run isolated on a few samples, fed with reference activations, with
    and without each Q/DQ pair; of the leading ones whose effects are known, what follows from that
    is taken to the outputs. `trusted`: see RangeFit. `fed`: see `input_amax`; found here where it
    is not known. `noise_of`: of the outputs, float64 [samples]: the sample that makes most of it
    is among the few.
    """
    wanted = [pair.layers.by_name[r.name] for r in layers if _needs_reason(pair, r)][:most]
    few = max(1, _MOST_SAMPLES // samples.batch_size)
    chosen = _spread(_examined(batches, few, noise_of))
    largest = {r.tensor: r.metrics.ref_amax for r in layers}
    largest |= {t.name: t.metrics.ref_amax for t in tensors}
    own = {}
    if wanted:
        leading = [r.name for r in layers if r.effect is not None][:_MOST_WEIGHED]
        isolated = _isolated(context, pair, samples, chosen, wanted, leading)
        if fed is None:
            fed = input_amax(pair, samples, batches)
        fixed = _fixed(pair)
        fitted = {t: x for t, x in _fitted(pair, largest, fed).items() if t not in fixed}
        fit = RangeFit(fitted, samples.count, trusted, fixed)
        own = {name: layer.causes(fit) for name, layer in isolated.items()}
    own = {name: pinned_together(pair, name, found, largest, layers) for name, found in own.items()}
    noise = {t.name: 10 ** (-t.metrics.sqnr_db / 10) for t in tensors}
    return tuple(
        replace(r, causes=(*own.get(r.name, ()), *_inherited(pair, r, noise))) for r in layers
    )


def _needs_reason(pair: ModelPair, result: LayerResult) -> bool:
    local = result.local_sqnr_db
    if local is None or result.harmless:
        return False
    # Beside a mask that is passed on, the loss of all scores is a small error.
    huge = result.metrics.ref_amax >= LEAST_MASK and result.precision in RANGED
    masked = huge and feeds_softmax(pair.reference, pair.layers.by_name[result.name])
    return masked or not local > _GOOD_DB


def _inherited(
    pair: ModelPair, result: LayerResult, noise: Mapping[str, float]
) -> tuple[Cause, ...]:
    if result.harmless:
        return (harmless_cause(result.metrics.ref_amax, result.readers_sqnr_db or 0.0),)
    local = 0.0 if result.local_sqnr_db is None else 10 ** (-result.local_sqnr_db / 10)
    inputs = max((noise.get(t, 0.0) for t in pair.reads(result.name)), default=0.0)
    repairable = result.precision in FORMAT_OF and result.precision in RANGED
    cause = inherited_cause(local, inputs, noise.get(result.tensor, 0.0), repairable=repairable)
    return (cause,) if cause else ()


def _isolated(
    context: Context,
    pair: ModelPair,
    samples: Samples,
    batches: Sequence[Batch],
    wanted: Sequence[Layer],
    leading: Collection[str],
) -> dict[str, IsolatedLayer]:
    """The layers that were run isolated. The variants of those that are `leading` are taken to the
    outputs."""
    local = cut_layers(pair.reference, pair.candidate, wanted)
    if local is None:
        return {}
    pairs = pairs_of(local)
    isolated = {
        layer.name: IsolatedLayer(pair, layer, pairs[layer.name])
        for layer in wanted
        if layer.name in local.outputs
    }
    tails = {
        name: tail
        for name, layer in isolated.items()
        if name in leading and pair.precisions[name] in SCALED and layer.pairs
        if (tail := tail_of(pair.reference, layer.layer.output, pair.candidate.outputs))
        if _DECIDING.isdisjoint(node.op_type for node in tail.proto.graph.node)
    }
    captured = {*(a.layer.output for a in isolated.values()), *local.inputs}
    captured |= {t for tail in tails.values() for t in (*tail.reads, *tail.outputs)}
    captured &= set(pair.reference.producers)
    fed, reads = FedByReference(local.inputs), (REFERENCE,)
    variants = {
        name: replace(as_it_is(proto, context.simulation), reads=reads, feeds=fed)
        for name, proto in _variants(local, pairs).items()
    }
    if _sums_in_half(context, pair, wanted):
        exact = as_it_is(local.proto, context.backend)
        variants[EXACT] = replace(exact, reads=reads, feeds=fed)
    behind: dict[str, dict[str, Variant]] = {name: {} for name in isolated}
    for name, tail in tails.items():
        isolated[name].at_outputs = AtOutputs(tail, pair.parts)
        model = as_it_is(tail.proto, context.backend)
        for one in filter(isolated[name].matters, variants):
            feeds = FedBehind(tail, one, local.outputs[name])
            behind[name][one] = replace(model, reads=(REFERENCE, one), feeds=feeds)
    reference = as_it_is(pair.reference.proto, context.backend, {t: t for t in captured})
    everything = {REFERENCE: reference, **variants}
    everything |= {_behind(n, one): x for n, each in behind.items() for one, x in each.items()}
    alone = replace(context, parallel=replace(context.parallel, workers=1))
    runner = runner_of(alone, SampleSubset(samples, tuple(batches)))
    seen = values = 0
    with closing(runner.batches(everything)) as done:
        for executed in done:
            truth = {**executed.feeds, **executed.reference}
            results = {name: executed.of(name) for name in variants}
            for name, layer in isolated.items():
                at_outputs = {one: executed.of(_behind(name, one)) for one in behind[name]}
                layer.add(truth, results, local.outputs[name], at_outputs)
            seen += executed.batch.count
            values += sum(array.size for array in truth.values())
            del executed, truth, results, at_outputs  # before the next ones exist
            if seen >= _LEAST_SAMPLES and values >= _ENOUGH_VALUES:
                break
    return isolated


def _behind(layer: str, variant: str) -> str:
    """The name of what follows from a variant of a layer."""
    return f"{variant} of {layer}"


def input_amax(pair: ModelPair, samples: Samples, batches: Sequence[Batch]) -> dict[str, float]:
    """The largest magnitudes of the float inputs of the model that are quantized, as they are or
    reshaped, in these batches.

    Raises:
        SampleError: samples cannot be read.
    """
    floats = {spec.name for spec in pair.reference.inputs if spec.dtype.kind == "f"}
    wanted = floats & {_origin(pair.reference, tensor) for tensor in pair.grids}
    if wanted and sum(batch.count for batch in batches) == samples.count:
        return {name: samples.inputs_amax[name] for name in wanted}
    found = dict.fromkeys(wanted, 0.0)
    for batch in batches if wanted else ():
        feeds = samples.feeds(batch.start, batch.count)
        for name in wanted & feeds.keys():
            found[name] = max(found[name], float(np.abs(feeds[name]).max(initial=0)))
    return found


def _fixed(pair: ModelPair) -> frozenset[str]:
    """The outputs of Softmax and Sigmoid that have a range of 0 to 1, as `quantize_static` of ONNX
    Runtime gives them, whatever the samples are."""
    producers = pair.reference.producers
    return frozenset(
        tensor
        for tensor, grid in (pair.grids.items() if pair.plan is None else ())
        if tensor in producers
        and producers[tensor].op_type in ("Softmax", "Sigmoid")
        and math.isclose(max(-grid.shown[0], grid.shown[1]), 1.0, rel_tol=_CODE)
    )


def _fitted(
    pair: ModelPair, largest: Mapping[str, float], fed: Mapping[str, float]
) -> dict[str, Fitted]:
    """The ranges of all activations on an integer grid beside their values: `largest` magnitudes,
    those of the inputs `fed`. Wide ranges cost a floating-point format nothing."""
    methods = {name: entry.method for name, entry in pair.plan.tensors.items()} if pair.plan else {}
    fitted = {}
    for tensor, grid in pair.grids.items():
        values = max(largest.get(t, fed.get(t, 0.0)) for t in (tensor, _cut_from(pair, tensor)))
        amax = max(-grid.shown[0], grid.shown[1])
        even = grid.format.kind is Kind.INTEGER
        if even and values > 0 and amax > 0 and np.isfinite(values):
            fitted[tensor] = Fitted(
                amax=amax,
                largest=values,
                calibrated=tensor in pair.calibrated,
                clips=methods.get(tensor) not in NEVER_CLIPPING,
                is_input=_origin(pair.reference, tensor) in fed,
            )
    return fitted


def _cut_from(pair: ModelPair, tensor: str) -> str:
    """What a Split or a Slice has cut `tensor` from, where both have one scale: its range was found
    on more values than are in `tensor`."""
    node = pair.reference.producers.get(tensor)
    while node is not None and node.op_type in _SAME_VALUES | {"Split", "Slice"}:
        own, whole = pair.grids.get(tensor), pair.grids.get(node.inputs[0])
        if own is None or whole is None or not np.array_equal(own.scale, whole.scale):
            break
        tensor = node.inputs[0]
        node = pair.reference.producers.get(tensor)
    return tensor


def _origin(graph: Graph, tensor: str) -> str:
    """The tensor whose values `tensor` has, in another order or shape."""
    node = graph.producers.get(tensor)
    while node is not None and node.op_type in _SAME_VALUES:
        tensor = node.inputs[0]
        node = graph.producers.get(tensor)
    return tensor


def _variants(
    local: LocalGraph, pairs: Mapping[str, tuple[Pair, ...]]
) -> dict[str, onnx.ModelProto]:
    """The layers as they are, without any pair, and those with several without each of them."""
    variants = {WHOLE: local.proto}
    most = max((len(p) for p in pairs.values()), default=0)
    if most:
        variants[NO_PAIRS] = bypass(local, pairs, show_inner=True)
    if most > 1:
        for k in range(most):
            chosen = {name: [p[k]] for name, p in pairs.items() if len(p) > k}
            variants[without(k)] = bypass(local, chosen)
    return variants


def _examined(batches: Sequence[Batch], few: int, noise_of: Array | None) -> Sequence[Batch]:
    """At most `few` batches, evenly spread, and the one that makes most noise at the outputs first:
    it may hold what no other does, such as values beyond a range."""
    spread = batches[:: max(1, len(batches) // few)][:few]
    if noise_of is None or len(noise_of) != sum(b.count for b in batches):
        return spread
    noise = [noise_of[b.start : b.start + b.count].sum() for b in batches]
    worst = batches[int(np.argmax(noise))]  # NaN is the worst
    return [worst, *(b for b in spread if b is not worst)][:few]


def _spread(batches: Sequence[Batch]) -> list[Batch]:
    """The batches in an order in which any first few of them lie far apart (van der Corput's)."""
    bits = max(1, (len(batches) - 1).bit_length())
    order = sorted(range(len(batches)), key=lambda i: f"{i:0{bits}b}"[::-1])
    return [batches[i] for i in order]


def _sums_in_half(context: Context, pair: ModelPair, layers: Sequence[Layer]) -> bool:
    half = any(pair.precisions[layer.name] is Precision.FP16 for layer in layers)
    return half and context.fp16_kernels is not Fp16Kernels.EXACT
