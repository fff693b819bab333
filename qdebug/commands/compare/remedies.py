"""Try remedies on the leading layers of a comparison, each by itself."""

from __future__ import annotations

from dataclasses import replace

from qdebug.analyse.compared import Compared
from qdebug.decide.remedies.quantized import Quantized, quantized
from qdebug.decide.remedies.registry import REMEDIES
from qdebug.decide.remedies.remedy import Remedy, Study
from qdebug.decide.repair.judge import Judge
from qdebug.decide.repair.study import study_of
from qdebug.decide.repair.verdict import Judgement
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples.subset import finely, halves, spread, whole
from qdebug.network.samplespec import SampleSpec
from qdebug.plan.plan import bind_plan
from qdebug.results.compare import LayerResult, TriedRemedy
from qdebug.types import Precision, Progress

_MOST_LAYERS = 5
_MOST_SAMPLES = 64
_EXECUTIONS = 24
"""Samples are run in at least this many executions, as those of a repair are."""


def with_remedies(compared: Compared, calibrates_on: SampleSpec | None, *, method: str) -> Compared:
    """With what each remedy gives on each of the leading layers, by itself, in the simulation.

    Args:
        calibrates_on: samples to fit remedies on; None fits on half of those compared, and judges
            on the others.
        method: that tensors which remedies make are calibrated by.

    Raises:
        UsageError: a single batch is compared, and there are no calibration samples.
        QdebugError: samples cannot be read, a model does not run, or the metric raised.
    """
    context, pair, result = compared.context, compared.pair, compared.result
    calibration = None
    if calibrates_on is not None:
        calibration = whole(calibrates_on.open(sample_inputs(pair.model.graph)))
    if pair.plan is None:
        return compared.found(
            "No remedies were tried, since the model is quantized already: `qdebug repair` takes "
            "such models."
        )
    judging = every = whole(finely(compared.samples, _EXECUTIONS))
    if calibration is None:
        calibration, judging = halves(every, "try_remedies")
    start = quantized(pair.model, bind_plan(pair.plan, pair.model, pair.layers))
    study = study_of(
        context,
        calibration,
        method=method,
        effect=lambda: {x.name: x.output_share or 0.0 for x in result.layers},
    )
    leading = [x for x in result.layers if x.precision is not Precision.FP32][:_MOST_LAYERS]
    tried: dict[str, tuple[TriedRemedy, ...]] = {}
    judge = Judge(context, pair.model.graph, spread(judging, _MOST_SAMPLES), compared.metric)
    before = judge(start)
    for number, layer in enumerate(leading, start=1):
        tried[layer.name] = _tried(study, judge, before, start, layer)
        context.progress(Progress("remedies", number, len(leading)))
    return compared.found(
        layers=tuple(replace(x, remedies=tried.get(x.name, ())) for x in result.layers),
        remedy_samples=judge.count,
        remedy_metric=before.metric,
    )


def _tried(
    study: Study, judge: Judge, before: Judgement, start: Quantized, layer: LayerResult
) -> tuple[TriedRemedy, ...]:
    """Every remedy that applies to a layer, the best first."""
    found = []
    for remedy in REMEDIES.values():
        if study.samples.count >= remedy.fewest_samples and layer.name in remedy.layers(start):
            best = _best(study, judge, before, start, remedy, layer.name)
            if best is not None:
                found.append(best)
    return tuple(sorted(found, key=lambda one: (not one.helps, -one.gain_db)))


def _best(
    study: Study,
    judge: Judge,
    before: Judgement,
    start: Quantized,
    remedy: Remedy,
    layer: str,
) -> TriedRemedy | None:
    """The best that a remedy proposes for a layer; None where it proposes nothing, or nothing that
    can be run."""
    found: list[TriedRemedy] = []
    for proposal in remedy.propose(study, start, [layer]):
        after = judge(proposal.result)
        if after.failure:
            continue
        verdict = judge.verdict(before, after, None)
        gain = after.sqnr_db - before.sqnr_db
        found.append(TriedRemedy(remedy.name, proposal.what, verdict.better, gain, after.metric))
    return max(found, key=lambda one: (one.helps, one.gain_db), default=None)
