"""Whether what is lost comes from elsewhere than rounding: from the data, from a model that is not
the FP32 one, or from an engine's kernels. Then no layer is to blame, and no precision mends it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from qdebug.analyse.causes.engine import remedy_of
from qdebug.analyse.compared import Compared
from qdebug.analyse.cures import FITTED_RANGES
from qdebug.execute.context import runner_of
from qdebug.execute.measure_options import output_options
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, Comparison
from qdebug.metrics.tensor import noise_db
from qdebug.network.samples.subset import spread
from qdebug.results.attribution import KERNEL, REFERENCE_MISMATCH, Attribution
from qdebug.results.compare import CompareResult
from qdebug.results.curve import part_restored
from qdebug.results.summary import HALF, HOLDS, Elsewhere, Origin
from qdebug.results.words import in_decibels
from qdebug.run.reducers import Errors
from qdebug.run.variant import as_it_is
from qdebug.wording import counted

_SAMPLES = 16
"""What a model without rounding is run on."""
_WITHOUT, _ALL, _ROUNDING = "without rounding", "all", "rounding"


def with_origin(compared: Compared) -> Compared:
    """With where the loss comes from, if that is not quantization, as far as the simulation tells.

    Raises:
        QdebugError: samples cannot be read, or a model does not run.
    """
    summary = compared.result.summary
    if summary is None or not summary.layers:
        return compared
    found = _of_data(compared.result) or _of_model(compared)
    return compared.found(summary=replace(summary, elsewhere=found))


def _of_data(result: CompareResult) -> Elsewhere | None:
    """FP32 guesses on these samples, or ranges that fit them give back most of what was lost."""
    task = result.metric
    if task is not None and task.reference_is_chance(result.samples):
        evidence = f"FP32 itself is no better than guessing: {task.reference:.4f}"
        return Elsewhere(Origin.DATA, None, evidence)
    cure = next((c for c in result.cures if c.name == FITTED_RANGES and c.helps), None)
    if cure is None:
        return None
    before, after = (10 ** (-db / 10) for db in (cure.before_sqnr_db, cure.sqnr_db))
    restored = part_restored(before, after, 0.0)
    stale = any(c.label == "stale-calibration" for x in result.layers for c in x.causes)
    if not stale or not restored >= HOLDS:
        return None
    return Elsewhere(Origin.DATA, restored, "the ranges are not those of these samples")


def _of_model(compared: Compared) -> Elsewhere | None:
    """A model of others that is farther from FP32 without rounding than rounding takes it from
    there."""
    pair, context = compared.pair, compared.context
    proof = pair.proof
    if proof is None or not (proof.changed or proof.refuted):
        return None
    cut = {pair.layers.of_node[n].name for n in pair.saturated if n in pair.layers.of_node}
    if proof.changed and cut.issuperset(proof.changed):  # biases that INT32 does not hold
        return None
    plain, _ = pair.unrounded()
    names = tuple(o.name for o in compared.result.outputs if o.name in pair.candidate.outputs)
    options = output_options(pair.reference)
    ways = {
        name: Errors(Comparison(*runs, tensors=names, options=options))
        for name, runs in (
            (_ALL, (REFERENCE, CANDIDATE)),
            (_ROUNDING, (_WITHOUT, CANDIDATE)),
            (_WITHOUT, (REFERENCE, _WITHOUT)),
        )
    }
    variants = {
        name: as_it_is(graph.proto, context.simulation)
        for name, graph in (
            (REFERENCE, pair.reference),
            (CANDIDATE, pair.candidate),
            (_WITHOUT, plain),
        )
    }
    totals = runner_of(context, spread(compared.subset, _SAMPLES)).run(variants, ways)
    noise = {name: found.worst_noise() for name, found in totals.items()}
    if not 0 < noise[_ALL] < math.inf:
        return None
    share = 1 - noise[_ROUNDING] / noise[_ALL]
    if not share >= HALF:
        return None
    which = [*proof.changed] or [x.tensor for x in proof.refuted]
    what = f"the weights of {counted(len(which), 'layer')} are others"
    if not proof.changed:
        what = f"{counted(len(which), 'tensor')} are something else"
    evidence = (
        f"without any rounding it is already at {in_decibels(noise_db(noise[_WITHOUT]))} against "
        f"FP32, where rounding alone would leave {in_decibels(noise_db(noise[_ROUNDING]))}: {what} "
        f"than in the FP32 model, first '{which[0]}'"
    )
    remedy = (
        "If they were trained or corrected, judge by a metric; otherwise compare with the FP32 "
        "model that was quantized."
    )
    return Elsewhere(Origin.MODEL, share, evidence, remedy)


def of_kernels(outputs: Sequence[Attribution]) -> Elsewhere | None:
    """Where an engine's kernels make most of the error of its worst output."""
    worst = min(outputs, key=lambda x: (not math.isnan(x.total_db), x.total_db), default=None)
    if worst is None or worst.label not in (KERNEL, REFERENCE_MISMATCH):
        return None
    evidence = (
        f"the engine is at {_db(worst.total_db)} in '{worst.tensor}', where the simulation of the "
        f"same model is at {_db(worst.quantization_db)}"
    )
    if worst.label == REFERENCE_MISMATCH and worst.reference_db is not None:
        evidence = (
            f"the engine is at {_db(worst.total_db)} in '{worst.tensor}', and at "
            f"{_db(worst.reference_db)} without quantization"
        )
        return Elsewhere(Origin.KERNEL, None, evidence, remedy_of(worst.label))
    return Elsewhere(Origin.KERNEL, worst.kernel_share, evidence, remedy_of(worst.label))


def _db(value: float) -> str:
    return "NaN or Inf" if math.isnan(value) else in_decibels(value)
