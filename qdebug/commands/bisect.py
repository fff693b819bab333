"""`qdebug bisect`: calibrate, rate the layers, search, verify, and say what it costs."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import replace

from qdebug.commands.check.trials import suspicions
from qdebug.commands.framework.framework_check import framework_result
from qdebug.config.search import BisectSettings
from qdebug.decide.bisect.result import BisectResult
from qdebug.decide.bisect.steps import prepare, search_from
from qdebug.decide.search.pareto import check_select_point
from qdebug.display.framework import unlike_export
from qdebug.errors import ModelError
from qdebug.execute.context import context_of, session_settings, time_limit_told
from qdebug.execute.control_flow import open_model
from qdebug.network.prepare import QDQ_OPSET
from qdebug.network.sampleaxis import sample_inputs
from qdebug.results.framework import FrameworkResult
from qdebug.types import ProgressCallback, ignore_progress
from qdebug.wording import option


def bisect(settings: BisectSettings, progress: ProgressCallback = ignore_progress) -> BisectResult:
    """Find the cheapest layers to keep in higher precision so that the target holds.

    Raises:
        ModelError: the model does not compute what the training framework does.
        QdebugError: bad input, or a runtime or a metric that failed; what was evaluated is kept.
    """
    check_select_point(settings.select_point)
    started = time.monotonic()
    framework = _right_export(settings, progress)
    with ExitStack() as stack, time_limit_told(settings.time_limit):
        setup = prepare(settings, progress, stack)
        suspicious = suspicions(
            setup.context,
            setup.model.graph,
            setup.searched.samples,
            setup.target.metric,
            settings.quantization.calibrates_on,
            ends_at=started + (settings.time_limit or math.inf),
        )
        found = search_from(settings.search, setup, started)
        return replace(found, framework=framework, notes=(*suspicious, *found.notes))


def _right_export(settings: BisectSettings, progress: ProgressCallback) -> FrameworkResult | None:
    """The training framework against the model; None where its outputs are not given.

    Raises:
        ModelError: they differ: no set of layers in higher precision mends that.
        QdebugError: samples or outputs cannot be read, or the model does not run.
    """
    if settings.framework is None:
        return None
    sessions = session_settings(settings)
    model = open_model(settings.model, QDQ_OPSET, [settings.compared], sessions, progress)
    samples = settings.compared.open(sample_inputs(model.graph))
    context = context_of(settings, progress)
    found = framework_result(settings.framework, context, model.graph, samples, None)
    if found.agrees is False:
        raise ModelError(
            f"{settings.model}: {unlike_export(found)}".removesuffix("."),
            "No layer in higher precision mends that. Export the network again, or leave "
            f"{option('framework')} out to search for what quantization costs this model as it is. "
            "'qdebug compare' with "
            f"{option('framework')} lists every difference.",
            code="QD-MODEL-EXPORT",
        )
    return found
