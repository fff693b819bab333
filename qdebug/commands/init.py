"""`qdebug init`: look at a model and its samples, and write down how to compare."""

from __future__ import annotations

import json
import math
import shlex
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from qdebug.backends.options import DEFAULT_SESSIONS
from qdebug.backends.sizing import parallelism
from qdebug.commands.check.judging import Judged, execute, judge_of, judged_by
from qdebug.commands.check.trials import score_findings
from qdebug.commands.reading import read_data, require_samples
from qdebug.config.look import CheckSettings, InitSettings
from qdebug.config.specs import spec_from
from qdebug.errors import MetricError
from qdebug.execute.context import simulation_context
from qdebug.execute.control_flow import open_model
from qdebug.execute.model_pair import is_in_fp16
from qdebug.inmemory import InMemory
from qdebug.network.graph import Graph
from qdebug.network.load import read_model
from qdebug.network.prepare import QDQ_OPSET, Model, is_quantized
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples import Samples
from qdebug.network.samples.found_preprocessing import class_names, read_metadata
from qdebug.network.samples.subset import finely, first, whole
from qdebug.network.samplespec import given_specs
from qdebug.result import ModelRef
from qdebug.results.check import Finding
from qdebug.results.init import ChosenSetting, InitResult
from qdebug.types import ProgressCallback, ignore_progress
from qdebug.wording import counted

_SCORED = 256
"""Samples that the score of FP32 is of, at least: as many as there are, where all take no longer
than _ALL_S seconds. The gate is of all."""
_ALL_S = 60.0
"""As long as somebody waits for a configuration; compare runs them all again anyhow."""
_DROP = 0.01
_WIDTH = 96
"""Of the lines of a comment."""
_COSINE = "output.cosine>=0.99"
_TO_REFERENCE = ("map50-to-reference", "agreement")
"""Metrics without labels, in the order in which they are tried."""


def init(settings: InitSettings, progress: ProgressCallback = ignore_progress) -> InitResult:
    """The configuration for a model and its samples; nothing is written here.

    Raises:
        QdebugError: they cannot be read, or do not fit each other.
    """
    require_samples(settings.inputs, metric=settings.metric)
    sources = given_specs(settings.compared)
    file = read_model(settings.model)
    narrow = _narrow(file.proto)
    chosen = [ChosenSetting("model", _text(settings.model), f"The {narrow or 'FP32'} model.")]
    if narrow:
        chosen.append(
            ChosenSetting(
                "# reference",
                "fp32.onnx",
                "The FP32 model that it was made from: remove the # and give its path. Without it, "
                "what its\nweights lost is not known.",
            )
        )
    further: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    if settings.inputs is None:
        chosen.append(
            ChosenSetting("# inputs", "photos/", "The samples: remove the # and give their path.")
        )
    else:
        model = open_model(settings.model, QDQ_OPSET, sources, DEFAULT_SESSIONS, progress)
        found = _with_samples(settings, model, settings.inputs, bool(narrow), progress)
        chosen, further, findings = [*chosen, *found.settings], found.further, found.findings
    if not narrow:
        chosen.append(ChosenSetting("precision", "int8", "What is compared with FP32."))
    chosen += [
        ChosenSetting(
            "# framework",
            "framework.h5",
            "What the training framework gives for the same samples, to check the export first: "
            "remove the #.\nOf PyTorch, qdebug.capture writes it.",
        ),
        ChosenSetting("# backend", "openvino", "An engine, to tell its kernels' error as well."),
    ]
    return InitResult(
        model=ModelRef(settings.model, file.sha256),
        file=Path(settings.output),
        settings=tuple(chosen),
        further=further,
        data=read_data(*sources),
        findings=findings,
    )


def _narrow(proto: onnx.ModelProto) -> str:
    """What a model is in that is not FP32, for people: it is compared as it is; "" for FP32."""
    if any(is_quantized(node.op_type) for node in proto.graph.node):
        return "quantized"
    return "FP16" if is_in_fp16(Graph.inferred(proto)) else ""


def _text(value: str) -> str:
    """A value as YAML has it: quoted where it could be read as something else."""
    plain = value.replace("/", "").replace(".", "").replace("-", "").replace("_", "").isalnum()
    return value if plain and not value[0].isdigit() else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class _Found:
    """What follows from the samples; see InitResult."""

    settings: tuple[ChosenSetting, ...]
    further: tuple[str, ...]
    findings: tuple[Finding, ...]


def _with_samples(
    settings: InitSettings, model: Model, data: str, narrow: bool, progress: ProgressCallback
) -> _Found:
    assert settings.compared is not None
    samples = settings.compared.open(sample_inputs(model.graph))
    why = samples.origin.told or counted(samples.count, "sample")
    chosen = [ChosenSetting("inputs", _text(data), f"What is compared on: {why}")]
    if not narrow:
        why = (
            "Other samples, to calibrate on: remove the # and give their path. Ranges that were "
            "fitted to what\nis compared flatter the result."
        )
        chosen.append(ChosenSetting("# calib-data", "calibration/", why))
    chosen += _about_pictures(settings, samples)
    scored, metric, findings = _gate(settings, model, samples, progress)
    if narrow and metric:  # its score is not FP32's
        why = (
            "What must hold, or the command ends with exit code 1: the score of the FP32 model, "
            "less\nwhat may be lost. Remove the #."
        )
        scored = [
            ChosenSetting("metric", _text(metric), "The accuracy of the task."),
            ChosenSetting("# fail-on", '["metric>=0.9"]', why),
        ]
    chosen += scored
    further = () if narrow or isinstance(data, InMemory) else _further(settings, metric, data)
    return _Found(tuple(chosen), further, findings)


def _about_pictures(settings: InitSettings, samples: Samples) -> Iterator[ChosenSetting]:
    how = samples.spec.preprocessing
    if settings.preprocess and not isinstance(settings.preprocess, InMemory):
        yield ChosenSetting("preprocess", _text(settings.preprocess), "How pictures are read.")
    elif how is not None and how.guess:
        yield ChosenSetting(
            "# preprocess",
            "imagenet",
            "Nothing says how the model was trained, so this is a guess: "
            "`qdebug check` tests it. To say it\nyourself, remove the #: a preset or a YAML file.",
        )
    if settings.shape:
        listed = ", ".join(json.dumps(shape) for shape in settings.shape)
        yield ChosenSetting("shape", f"[{listed}]", "The shapes of inputs whose axes are free.")


def _gate(
    settings: InitSettings, model: Model, samples: Samples, progress: ProgressCallback
) -> tuple[list[ChosenSetting], str, tuple[Finding, ...]]:
    """The metric and what must hold, and what is wrong with its labels or its score; "" where the
    outputs alone are compared.

    Raises:
        MetricError: the metric that was asked for cannot be computed.
    """
    names = class_names(read_metadata(settings.model))
    subset = whole(finely(samples, _SCORED))
    scored = first(subset, _SCORED)
    asked = [settings.metric, *_TO_REFERENCE] if settings.metric is None else [settings.metric]
    context = simulation_context(parallelism(), progress, DEFAULT_SESSIONS)
    for name in asked:
        try:
            judge = judge_of(
                spec_from(CheckSettings, settings, metric=name), samples, model, len(names)
            )
            if judge.to_reference is not None:
                judge = judged_by(judge.to_reference)
            if judge.metric is None:
                continue
            began = time.monotonic()
            run = execute(context, model.graph, scored)
            took_each = (time.monotonic() - began) / scored.count
            value = judge.value(run)
            if value is None:
                continue
            if scored.count < subset.count and took_each * subset.count <= _ALL_S:
                scored = subset
                run = execute(context, model.graph, scored)
                value = judge.value(run)
        except MetricError:
            if settings.metric is not None:
                raise
            continue
        if value is not None:
            wrong = score_findings(scored.samples, run, judge, value, scored.count)
            chosen = _gated(judge, value, scored.count, subset.count, wrong)
            return chosen, judge.name, wrong
    why = (
        "What must hold, or the command ends with exit code 1. No metric was found that fits: "
        "`metric: file.py:function`\nadds one of your own."
    )
    return [ChosenSetting("fail-on", f"[{json.dumps(_COSINE)}]", why)], "", ()


def _gated(
    judge: Judged, value: float, samples: int, count: int, wrong: Sequence[Finding]
) -> list[ChosenSetting]:
    """The metric, and what must hold by FP32's value on so many of `count` samples: a comment where
    something is `wrong` with that."""
    assert judge.metric is not None
    drop = max(_DROP, 1 / samples)
    worse = value - drop if judge.metric.higher_is_better else value + drop
    sign = ">=" if judge.metric.higher_is_better else "<="
    # Rounded towards what is worse, so that FP32 itself always passes.
    bound = (math.floor if sign == ">=" else math.ceil)(worse * 1e4) / 1e4
    to_itself = judge.metric.name.endswith(("reference", "agreement"))
    told = "1 by definition" if to_itself else f"{value:.4f} in FP32 on {samples} samples"
    if samples < count and not to_itself:
        told += f" of {count}:\nput in what `qdebug compare` says of all, less what may be lost"
    why = (
        f"What must hold, or the command ends with exit code 1: {drop:.2g} less than FP32 at most."
    )
    if wrong:
        said = " ".join(f"{one.message} {one.remedy}" for one in wrong)
        again = "The gate is of that score: mend this first, and run `qdebug init` again."
        why = textwrap.fill(f"{said} {again} {why}", _WIDTH)
    return [
        ChosenSetting("metric", _text(judge.name), f"The accuracy of the task: {told}."),
        ChosenSetting(
            "# fail-on" if wrong else "fail-on", f"[{json.dumps(f'metric{sign}{bound:g}')}]", why
        ),
    ]


def _further(settings: InitSettings, metric: str, data: str) -> tuple[str, ...]:
    """Commands to go on with: `repair` holds out a share of the samples by itself."""
    model, quoted = shlex.quote(settings.model), shlex.quote(data)
    preprocess = ""
    if settings.preprocess and not isinstance(settings.preprocess, InMemory):
        preprocess = f" --preprocess {shlex.quote(settings.preprocess)}"
    target = f"--metric {metric} --max-drop {_DROP}" if metric else f"--target {_COSINE!r}"
    return (
        f"qdebug check {model} --inputs {quoted}{preprocess}",
        f"qdebug repair {model} --calib-data {quoted}{preprocess} {target} -o model.int8.onnx",
    )
