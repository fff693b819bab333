"""Prove that tensors which were matched are the same quantity, on samples.

Each tensor is computed by its node of the quantized model without any rounding: its Q/DQ pairs
taken out, its weights the FP32 model's where they are roundings of them, its inputs the FP32
model's activations. What comes out must be the FP32 model's tensor but for float32's rounding. So
the error of quantization, however large, cannot make a right match look wrong; and a wrong match
cannot hide behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from qdebug.execute.context import Context, runner_of
from qdebug.metrics.accumulate import LOCAL, REFERENCE, Comparison
from qdebug.metrics.tensor import sqnr_of
from qdebug.network.graph import Graph, Node
from qdebug.network.layers import Layer
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.correspond import Proof, Unmatched
from qdebug.plan.pair import ModelPair
from qdebug.plan.quantize import ROUNDING_INSIDE
from qdebug.plan.rewrite.cut import cut_layers
from qdebug.results.words import in_decibels
from qdebug.run.reducers import Errors
from qdebug.run.variant import FedByReference, as_it_is

PROVEN_DB = 40.0
"""Without rounding a tensor that is the same quantity is equal to float32's rounding, 100 dB and
more; one that lacks a Relu which cuts off a thousandth of its energy is at 30."""
RELATED_DB = 3.0
"""Where weights were trained on or equalized, an output is not equal. One that shares less than
half of its energy with the FP32 model's is of something else."""
_SAMPLES = 2


def proven(context: Context, pair: ModelPair, samples: Samples) -> ModelPair:
    """`pair` without the tensors that turn out to be something else.

    Raises:
        QdebugError: a model does not run.
    """
    if pair.aligned is None:
        return pair
    refined, changed = pair.unrounded()
    levels = _levels(context, pair, samples, refined)
    refuted: dict[str, str] = {}
    unproven: dict[str, str] = {}
    for tensor, level in levels.items():
        if level >= PROVEN_DB:
            continue
        node = pair.reference.producers[tensor]
        why = changed.get(_anchor(pair, tensor, node), "")
        inside = _rounding_inside(pair, tensor)
        if inside and level >= RELATED_DB:
            unproven[tensor] = f"{inside} before it rounds inside, which cannot be left out"
        elif why and level >= RELATED_DB:
            unproven[tensor] = f"its {why}"
        else:
            what = f"computes something else in the quantized model: SQNR {in_decibels(level)}"
            if math.isnan(level):
                what = "gives NaN or Inf in the quantized model"
            refuted[tensor] = f"'{node.name}' {what} from the same inputs and without rounding"
    count = min(_SAMPLES, samples.count)
    outputs = set(pair.reference.outputs)
    kept = {t: c for t, c in pair.tensors.items() if t not in refuted or t in outputs}
    proof = Proof(
        samples=count,
        proven=tuple(t for t, level in levels.items() if level >= PROVEN_DB),
        unproven=unproven,
        refuted=tuple(Unmatched(t, why) for t, why in refuted.items()),
        changed=dict(changed),
    )
    return replace(pair, tensors=kept, proof=proof)


def _anchor(pair: ModelPair, tensor: str, node: Node) -> str:
    """The node of the quantized model whose constants make `tensor`: of the same name, or before
    the BatchNormalization or Add that the FP32 model has folded."""
    writer = pair.candidate.producers[tensor]
    return node.name if node.name in pair.candidate.by_name else writer.name


def _rounding_inside(pair: ModelPair, tensor: str) -> str:
    """The operator that rounds inside between `tensor` of the quantized model and what is matched
    before it; "" for none."""
    matched, producers = set(pair.tensors.values()), pair.candidate.producers
    waiting, seen = [pair.tensors[tensor]], set[str]()
    while waiting:
        node = producers.get(waiting.pop())
        if node is None or node.name in seen:
            continue
        if node.op_type in ROUNDING_INSIDE:
            return node.op_type
        seen.add(node.name)
        waiting += [t for t in node.reads if t not in matched]
    return ""


def _levels(
    context: Context, pair: ModelPair, samples: Samples, refined: Graph
) -> Mapping[str, float]:
    """The SQNR of every matched tensor without rounding, in dB."""
    nodes = [
        Layer(tensor, node.op_type, (node.name,), tensor, False)
        for tensor in pair.tensors
        if (node := pair.reference.producers.get(tensor)) is not None
    ]
    local = cut_layers(pair.reference, refined, nodes)
    if local is None:
        return {}
    read = {t: t for t in (*local.inputs, *local.outputs) if t in pair.reference.producers}
    isolated = as_it_is(local.proto, context.backend, local.outputs)
    feeds = FedByReference(local.inputs)
    variants = {
        REFERENCE: as_it_is(pair.reference.proto, context.backend, read),
        LOCAL: replace(isolated, reads=(REFERENCE,), feeds=feeds),
    }
    compared = Errors(Comparison(REFERENCE, LOCAL, tuple(local.outputs)))
    totals = runner_of(context, _first(samples)).run(variants, {"": compared})[""]
    levels = {t: sqnr_of(sums) for t, sums in totals.tensors.items()}
    return levels | dict.fromkeys(totals.skipped, -math.inf)


def _first(samples: Samples) -> SampleSubset:
    """About as many as prove something."""
    if samples.batch_is_free:
        samples = samples.with_batch_size(min(samples.batch_size, _SAMPLES))
    return SampleSubset(samples, tuple(b for b in samples.batches() if b.start < _SAMPLES))
