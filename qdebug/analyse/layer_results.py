"""From error totals to the result that reports are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnx import TensorProto

from qdebug.analyse.causes.overflow import contained
from qdebug.backends.fp16_emulation.rounding import OBSERVED
from qdebug.formats.registry import SCALED
from qdebug.metrics.accumulate import ErrorTotals
from qdebug.metrics.effect import Effect, EffectSummary, rank_key
from qdebug.metrics.sums import ErrorSums
from qdebug.metrics.tensor import metrics_of, part_sqnrs, sqnr_of
from qdebug.network.layers import Layer
from qdebug.plan.correspond import Unmatched
from qdebug.plan.pair import ModelPair
from qdebug.results.compare import (
    Correspondence,
    Divergence,
    LayerResult,
    OutputPart,
    OutputResult,
    TensorMatch,
    TensorResult,
)
from qdebug.types import Precision, Skipped
from qdebug.wording import counted, option

DIVERGENCE_DB = 20.0
"""First divergence: an error of a tenth of the signal."""


def tensor_results(pair: ModelPair, errors: ErrorTotals) -> tuple[TensorResult, ...]:
    """Every compared tensor that a node computes, in execution order."""
    return tuple(
        TensorResult(tensor, metrics_of(errors.tensors[tensor]))
        for tensor in pair.tensors
        if tensor in errors.tensors and tensor in pair.reference.producers
    )


def output_results(pair: ModelPair, sums: Mapping[str, ErrorSums]) -> tuple[OutputResult, ...]:
    """Every output with these sums, in the order of the model."""
    outputs = [t for t in pair.reference.outputs if t in sums]
    return tuple(OutputResult(t, metrics_of(sums[t]), _parts_of(pair, t, sums[t])) for t in outputs)


def with_worst_files(
    outputs: Sequence[OutputResult], files: Sequence[str]
) -> tuple[OutputResult, ...]:
    """The same with the file of each worst sample; `files` are those of the samples, in order, none
    where samples are no files."""
    found = []
    for output in outputs:
        worst = output.metrics.worst_sample
        named = worst is not None and worst < len(files)
        found.append(replace(output, worst_file=files[worst or 0]) if named else output)
    return tuple(found)


def _parts_of(pair: ModelPair, tensor: str, sums: ErrorSums) -> tuple[OutputPart, ...]:
    found = part_sqnrs(sums)
    if not found:
        return ()
    parts = pair.parts[tensor]
    return tuple(
        OutputPart(part.branch, parts.axis, part.first, part.last, value)
        for part, value in zip(parts.parts, found, strict=True)
    )


def layer_results(pair: ModelPair, errors: ErrorTotals) -> tuple[LayerResult, ...]:
    """Every layer whose output was compared, worst first."""
    results = [
        _layer_result(pair, errors, layer)
        for layer in pair.layers
        if layer.output in errors.tensors and layer.output not in pair.refuted
    ]
    ranked = sorted(contained(pair, results), key=_badness)
    return tuple(replace(result, rank=i) for i, result in enumerate(ranked, start=1))


def ranked_by_effect(
    layers: Sequence[LayerResult], effects: Mapping[str, Effect], noise: float
) -> tuple[LayerResult, ...]:
    """`layers` with their effects, the costliest at the outputs first; those without an effect
    follow in the order they had. `noise` is that of the outputs.

    An overflow is handed from layer to layer, so that pinning any one of them gains nothing. Those
    that alone cost more than any layer without an overflow gains stand before these.
    """
    known = [replace(x, effect=effects.get(x.name)) for x in layers]
    gains = [x.effect.gain or 0.0 for x in known if x.effect and not x.overflows]
    most = max(gains, default=0.0)

    def key(layer: LayerResult) -> tuple[int, tuple[float, float], int]:
        effect = layer.effect
        if effect is None:
            return (1, (0.0, 0.0), layer.rank)
        alone = effect.alone or 0.0
        handed_on = layer.overflows and alone > most and effect.gain != math.inf
        return (0, (1.0, -alone) if handed_on else rank_key(effect, noise), layer.rank)

    return tuple(replace(x, rank=i) for i, x in enumerate(sorted(known, key=key), start=1))


def unobserved_note(pair: ModelPair) -> tuple[str, ...]:
    """That layers in FP16 have operators whose kernels were not examined, where there are any."""
    graph = pair.candidate
    kinds: dict[str, int] = {}
    for node in graph.nodes:
        half = any(graph.types.get(t) == TensorProto.FLOAT16 for t in node.outputs)
        if half and (node.domain or node.op_type not in OBSERVED):
            kinds[node.op_type] = kinds.get(node.op_type, 0) + 1
    if not kinds:
        return ()
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return (
        f"An engine may round FP16 otherwise inside of {named}, whose kernels were not "
        "examined: the simulation rounds results alone. "
        f"{option('backend')} compares with an engine.",
    )


def first_divergence(
    layers: Sequence[LayerResult], pair: ModelPair, threshold_db: float = DIVERGENCE_DB
) -> Divergence | None:
    """The first layer in execution order whose output is under the threshold, or holds NaN or Inf
    of its own that do harm."""
    by_name = {layer.name: layer for layer in layers}
    for layer in pair.layers:
        result = by_name.get(layer.name)
        if result is None or result.harmless:
            continue
        value = result.metrics.sqnr_db
        if math.isnan(value) or value < threshold_db:
            return Divergence(result.tensor, result.name, value, threshold_db)
    return None


def effect_notes(
    summary: EffectSummary, layers: Sequence[LayerResult], of_samples: int
) -> tuple[str, ...]:
    """What the reader must know of the effects of `layers`, the costliest first, measured on some
    or all of `of_samples` samples."""
    if not summary.noise:
        return ()
    exact = option("effect", "exact")
    notes = []
    alone = summary.of_layers - summary.layers - summary.grouped_layers
    of = f"the {summary.of_layers} layers in lower precision"
    if alone:
        notes.append(
            f"The gain of {alone} of {of} was not measured, only estimated: each ran in lower "
            f"precision with all others in FP32, on {counted(summary.alone_samples, 'sample')}. "
            f"{exact} measures every gain that the simulation can."
        )
    if summary.grouped_layers:
        notes.append(
            f"{summary.grouped_layers} of {of} were measured only in groups of consecutive layers, "
            f"which make less of the error than those that are ranked. {exact} measures every "
            "layer."
        )
    by_share = bool(layers) and not layers[0].overflows
    if by_share and not summary.certain_ranks and summary.of_layers > 1:
        on_all = f"{exact} measures on all {of_samples} samples."
        more = on_all if summary.samples < of_samples else "More samples may tell them apart."
        notes.append(
            f"Which layer costs most is uncertain: on {counted(summary.samples, 'sample')}, the "
            f"first two differ by less than the standard error. {more}"
        )
    return tuple(notes)


def overflow_notes(
    outputs: Sequence[TensorResult], layers: Sequence[LayerResult]
) -> tuple[str, ...]:
    """Overflows that the outputs do not show: attention masks, mostly."""
    notes = []
    harmless = [x for x in layers if x.harmless]
    if harmless:
        worst = min(x.readers_sqnr_db for x in harmless if x.readers_sqnr_db is not None)
        holds = f"{worst:.1f} dB or better" if math.isfinite(worst) else "exact"
        notes.append(
            f"{_overflowing(harmless)}, harmlessly, as attention masks do: the layers that read "
            f"them give finite values ({holds})."
        )
    rest = [x for x in layers if not (x.metrics.is_finite or x.harmless)]
    if rest and all(t.metrics.is_finite for t in outputs):
        notes.append(f"{_overflowing(rest)}, but every output is finite.")
    return tuple(notes)


def _overflowing(layers: Sequence[LayerResult]) -> str:
    huge = max(x.metrics.ref_amax for x in layers)
    one = len(layers) == 1
    if any(x.precision not in (Precision.FP32, Precision.INT8) for x in layers):
        does = "1 layer overflows" if one else f"{len(layers)} layers overflow"
    else:  # nothing overflows there: infinities of FP32 are chosen by other indices, for example
        does = "1 layer gives" if one else f"{len(layers)} layers give"
        does = f"{does} NaN or Inf where FP32 does not"
    return f"{does} (values of up to {huge:.3g} in FP32), such as '{layers[0].name}'"


def all_skipped(
    pair: ModelPair, errors: ErrorTotals, not_float: Sequence[str]
) -> tuple[Skipped, ...]:
    """Tensors of the reference that have no error, with the reason."""
    skipped = [Skipped(tensor, reason) for tensor, reason in errors.skipped.items()]
    skipped += [Skipped(t, "not floating point") for t in not_float]
    told = {u.tensor: u.reason for u in (*_unmatched(pair), *_refuted(pair))}
    known = {*pair.tensors, *(s.tensor for s in skipped)}
    for node in pair.reference.nodes:
        if node.op_type == "Constant":
            continue
        for tensor in node.outputs:
            if tensor and tensor not in known:
                is_float = pair.reference.is_float(tensor)
                reason = "not in the candidate" if is_float else "not floating point"
                reason = told.get(tensor, reason)
                skipped.append(Skipped(tensor, reason))
    return tuple(skipped)


def correspondence(pair: ModelPair) -> Correspondence | None:
    """How the tensors of a quantized model and of its FP32 model were matched; None where one was
    made from the other."""
    if pair.aligned is None or pair.proof is None:
        return None
    proof = pair.proof
    proven = set(proof.proven)
    wrong = {u.tensor: u.reason for u in proof.refuted}
    matches = [
        TensorMatch(
            tensor=m.tensor,
            candidate=m.candidate,
            how=str(m.how),
            transformation=m.transformation,
            proven=m.tensor in proven,
            reason=wrong.get(m.tensor) or proof.unproven.get(m.tensor, ""),
        )
        for m in pair.aligned.matches
    ]
    unmatched = tuple(Skipped(u.tensor, u.reason) for u in pair.aligned.unmatched)
    return Correspondence(proof.samples, tuple(matches), unmatched)


def _unmatched(pair: ModelPair) -> Sequence[Unmatched]:
    return pair.aligned.unmatched if pair.aligned else ()


def _refuted(pair: ModelPair) -> Sequence[Unmatched]:
    return pair.proof.refuted if pair.proof else ()


def _layer_result(pair: ModelPair, errors: ErrorTotals, layer: Layer) -> LayerResult:
    sums = errors.tensors[layer.output]
    local = errors.local.get(layer.name)
    clipped = [_clipped(errors, t) for t in layer.quantized_inputs]
    measured = [c for c in clipped if c is not None]
    is_scaled = pair.precisions[layer.name] in SCALED
    parts = errors.parts.get(layer.name)
    return LayerResult(
        name=layer.name,
        op_type=layer.op_type,
        precision=pair.precisions[layer.name],
        tensor=layer.output,
        nodes=tuple(n for node in layer.nodes for n in pair.model.origins.get(node, (node,))),
        metrics=metrics_of(sums),
        local_sqnr_db=sqnr_of(local) if local else None,
        input_clipped_fraction=max(measured) if measured and is_scaled else None,
        error_parts=parts.noise() if parts else None,
    )


def _clipped(errors: ErrorTotals, tensor: str) -> float | None:
    sums = errors.tensors.get(tensor)
    if sums is None or sums.clipped is None or not sums.count:
        return None
    return sums.clipped / sums.count


def _badness(result: LayerResult) -> tuple[int, float, float]:
    """Sort key: local error first; NaN and Inf are the worst of each kind, unless they end in
    finite layers. Such a layer stands behind the reader that it ranks by."""
    held = -math.inf if result.readers_sqnr_db is None else result.readers_sqnr_db
    cumulative = result.metrics.sqnr_db if result.metrics.is_finite else held
    local = result.local_sqnr_db
    if local is None:
        return (1, cumulative, 0.0)
    if math.isnan(local):
        return (0, held, math.inf)
    return (0, local, cumulative)
