"""`qdebug check`: what an engineer looks at first, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qdebug.commands.check.judging import Judged, judge_of
from qdebug.commands.check.samples import (
    nothing_found,
    sample_findings,
    set_findings,
    uncomputed,
)
from qdebug.commands.check.structure import (
    findings_of,
    macs_of,
    tensors_of,
    unquantized_findings,
)
from qdebug.commands.check.trials import Tried, try_variants
from qdebug.commands.framework.framework_check import framework_result
from qdebug.commands.reading import read_data, require_samples
from qdebug.config.look import CheckSettings
from qdebug.errors import MetricError
from qdebug.execute.context import context_of, session_settings
from qdebug.execute.control_flow import open_model
from qdebug.network.graph import opset_of
from qdebug.network.inputshapes import InputShapes, parse_shapes
from qdebug.network.layers import QUANTIZABLE_OPS, find_layers
from qdebug.network.load import read_model
from qdebug.network.macs import shapes_of_first, shapes_per_sample, unquantized_work
from qdebug.network.prepare import QDQ_OPSET, Model, prepare_model
from qdebug.network.preprocessing import fixed_size, layout_of, picture_input
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples.found_preprocessing import (
    class_names,
    find_preprocessing,
    read_metadata,
)
from qdebug.network.samples.subset import finely, spread, whole
from qdebug.network.samplespec import given_specs
from qdebug.result import ModelRef
from qdebug.results.check import CheckResult, Finding, Severity
from qdebug.results.framework import FrameworkResult
from qdebug.results.words import in_decibels
from qdebug.types import ProgressCallback, ignore_progress
from qdebug.wording import counted

_ORDER: Mapping[Severity, int] = {"error": 0, "warning": 1, "note": 2}
_NOTHING = Tried("", (), (), ())


def check(settings: CheckSettings, progress: ProgressCallback = ignore_progress) -> CheckResult:
    """Look at a model, and at samples for it.

    Raises:
        QdebugError: one of them cannot be read, or they do not fit each other.
    """
    require_samples(
        settings.inputs,
        metric=settings.metric,
        decode=settings.decode,
        framework=settings.framework,
    )
    file = read_model(settings.model)
    sources = given_specs(settings.compared, settings.calibrates_on)
    sessions = session_settings(settings)
    model = prepare_model(file, QDQ_OPSET, parse_shapes(settings.shape))
    if sources:
        model = open_model(settings.model, QDQ_OPSET, sources, sessions, progress)
    names = class_names(read_metadata(settings.model))
    inputs, outputs = tensors_of(model.graph, names)
    findings = list(findings_of(file.proto, model))
    tried, samples, framework = _NOTHING, 0, None
    shapes = shapes_per_sample(model.graph)
    if settings.compared is not None:
        tried, found, samples = _with_samples(settings, model, len(names), progress)
        findings += [*tried.findings, *found]
        compared = settings.compared.open(sample_inputs(model.graph))
        shapes = shapes_of_first(model.graph, whole(compared))
        if settings.framework is not None:
            context = context_of(settings, progress)
            some = compared.first(settings.samples)
            framework = framework_result(settings.framework, context, model.graph, some, None)
            findings.append(_of_export(framework))
    work = unquantized_work(model.graph, shapes)
    findings += unquantized_findings(work)
    findings.sort(key=lambda finding: _ORDER[finding.severity])
    return CheckResult(
        model=ModelRef(settings.model, file.sha256),
        opset=opset_of(file.proto),
        producer=" ".join(filter(None, (file.proto.producer_name, file.proto.producer_version))),
        inputs=inputs,
        outputs=outputs,
        layers=sum(layer.op_type in QUANTIZABLE_OPS for layer in find_layers(model.graph)),
        macs=_macs(settings, model),
        samples=samples,
        ranges=tried.ranges,
        score=tried.score,
        variants=tried.variants,
        findings=tuple(findings),
        data=read_data(*sources),
        framework=framework,
        uncounted=work.counts,
        quantized=model.quantized,
    )


def _of_export(found: FrameworkResult) -> Finding:
    """What the framework's outputs say of the model."""
    severity, message = _EXPORT[found.agrees]
    told = message.format(
        sqnr=in_decibels(found.worst.sqnr_db),
        on=f"on {counted(found.samples, 'sample')}",
        limit=in_decibels(found.limit_db),
        tensor=found.worst.tensor,
        first=f", first in '{found.first_differing}'" if found.first_differing else "",
    )
    return Finding(severity, "export", told)


_APART = "'{tensor}' is {sqnr} from the framework's {on}, and rounding"
_EXPORT: Mapping[bool | None, tuple[Severity, str]] = {
    True: ("note", "the model computes what the framework does, to rounding: {sqnr} {on}"),
    None: (
        "warning",
        f"whether the export is right cannot be told: {_APART} alone explains {{limit}}",
    ),
    False: ("error", f"{_APART} explains {{limit}}{{first}}"),
}


def _macs(settings: CheckSettings, model: Model) -> float | None:
    """For the shapes that are given; where pictures have a size by the model's metadata or a file
    beside it, for that."""
    known = macs_of(model.graph)
    taken = picture_input(model.graph.inputs)
    if known is not None or taken is None:
        return known
    how = find_preprocessing(settings.model, settings.preprocess, taken)
    if how.size is None:
        return None
    layout = how.layout or layout_of(taken) or "nchw"
    size = tuple(
        own or other for own, other in zip(fixed_size(taken, layout), how.size, strict=True)
    )
    shaped = replace(how, layout=layout, size=(size[0], size[1]))
    shapes: InputShapes = ((taken.name, (None, *shaped.input_shape)),)
    return macs_of(prepare_model(read_model(settings.model), QDQ_OPSET, shapes).graph)


def _is_misspelt(error: MetricError, settings: CheckSettings) -> bool:
    """Whether it is about what was asked for, and not about the model or the samples."""
    if settings.decode is not None and error.code == "QD-METRIC-DECODE":
        return True
    unknown = error.code in ("QD-METRIC-UNKNOWN", "QD-METRIC-FUNCTION")
    return settings.metric is not None and unknown


def _with_samples(
    settings: CheckSettings, model: Model, classes: int, progress: ProgressCallback
) -> tuple[Tried, list[Finding], int]:
    """What is tried on the samples, what follows from the sets, and on how many samples."""
    assert settings.compared is not None
    compared = settings.compared.open(sample_inputs(model.graph))
    context = context_of(settings, progress)
    subset = spread(whole(finely(compared, settings.samples)), settings.samples)
    findings: list[Finding] = []
    judge = Judged("confidence", None, classes)
    try:
        judge = judge_of(settings, compared, model, classes)
        if model.quantized:
            judge = replace(judge, subject="The quantized model")
        tried = try_variants(context, model.graph, subset, judge)
    except MetricError as error:
        if _is_misspelt(error, settings):
            raise
        if settings.metric is not None:
            tried = _NOTHING
            findings.append(uncomputed(error))
        else:  # the labels are of another task, or a package is not installed
            findings.append(replace(uncomputed(error), severity="note"))
            judge = Judged("confidence", None, classes)
            tried = try_variants(context, model.graph, subset, judge)
    value = tried.variants[0].value if tried.variants else None
    if judge.to_reference is not None:
        value = 1.0
    metric = judge.metric or judge.to_reference
    findings += sample_findings(compared, metric, value, settings.max_drop)
    given = tried.given
    if judge.to_reference is not None and given is not None:
        findings += nothing_found(judge.to_reference, given, subset.count)
    if settings.calibrates_on is not None:
        findings += set_findings(compared, settings.calibrates_on.open(sample_inputs(model.graph)))
    return tried, findings, subset.count
