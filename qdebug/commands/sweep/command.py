"""`qdebug sweep`, whole: every combination simulated, built, audited and checked."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from qdebug.analyse.gate import check_metric, on_model, read_metric, refuse_without_arrays
from qdebug.analyse.metric_direction import check_direction
from qdebug.backends.options import SessionSettings
from qdebug.calibrators.registry import parse_method
from qdebug.commands.sweep.axes import (
    BuilderPoint,
    Variant,
    builder_points,
    check_backend,
    idle_note,
    read_conditions,
    slower_note,
    variants_of,
)
from qdebug.commands.sweep.builds import built_elsewhere, check_cluster
from qdebug.commands.sweep.measured import (
    EngineFolder,
    FoundEngine,
    PairEvaluator,
    built_of,
    executed,
    facts_of,
)
from qdebug.config.sweep import SweepSettings
from qdebug.errors import QdebugError, given_by
from qdebug.execute.cluster.machines import open_executor
from qdebug.execute.context import context_of, session_settings
from qdebug.execute.engine.build import check_requested, shapes_of
from qdebug.execute.model_pair import (
    bind_user_plan,
    build_pair,
    load_model,
    plan_from,
    ranges_for,
)
from qdebug.memo import Memo
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.network.prepare import Model
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import whole
from qdebug.network.samplespec import SampleSpec, given_specs
from qdebug.plan.lower import required_opset
from qdebug.plan.pair import ModelPair
from qdebug.plan.plan import PrecisionPlan
from qdebug.result import ModelRef
from qdebug.results.calibrate import ReferenceMetric
from qdebug.results.conditions import Condition
from qdebug.results.sweep import Failure, OutputErrors, SweepResult, SweepRow
from qdebug.types import Progress, ProgressCallback, ignore_progress


def sweep(settings: SweepSettings, progress: ProgressCallback = ignore_progress) -> SweepResult:
    """Try every combination of what `settings` names.

    A combination that cannot be built is a row that says why. What is built and measured is kept
    as it is found, so that an interrupted sweep resumes where it was.

    Raises:
        QdebugError: bad input (nothing was built), or a reference that does not run.
    """
    with ExitStack() as stack:
        return _sweep(stack, settings, progress)


def _reference_metric(metric: TaskMetric, errors: OutputErrors) -> ReferenceMetric:
    direction = metric.higher_is_better if metric.is_declared else None
    found = errors.reference_metric, direction, metric.is_share, errors.reference_interval
    return ReferenceMetric(metric.name, *found)


def _sweep(stack: ExitStack, settings: SweepSettings, progress: ProgressCallback) -> SweepResult:
    started = time.perf_counter()
    conditions = read_conditions(settings)
    metric = read_metric(settings.metric, settings.decode)
    for condition in conditions:
        check_direction(condition, metric, "fail_on")
    check_backend(settings, conditions)
    check_cluster(settings)
    sessions = session_settings(settings)
    points = builder_points(settings, sessions, progress)
    variants = variants_of(settings)
    models = _Models(
        settings.model,
        settings.backend,
        settings.provider,
        given_specs(settings.compared, settings.calibrates_on),
        sessions,
        {},
    )
    plans = [models.checked(variant) for variant in variants]
    samples = _samples(settings, models.of(plans[0]))
    metric = on_model(metric, models.of(plans[0]))
    check_metric(metric, models.of(plans[0]), samples)
    refuse_without_arrays(models.of(plans[0]), "settings")
    fit = _fitted(points, models.of(plans[0]), samples)
    not_run = [_why_not_run(point) for point in fit]
    runs = "" in not_run
    # Engines take the batches that they were built for, so these are run everywhere.
    batch_size = samples.batch_size if runs else settings.batch_size
    context = context_of(settings, progress, open_executor(stack, settings, gpus=True))
    context = replace(context, batch_size=batch_size)
    total = len(variants) * len(fit)
    folder = None
    if settings.save_engines:
        folder = EngineFolder(stack, settings.save_engines, total, force=settings.force)
    evaluator = PairEvaluator(context, whole(samples), metric)
    pairs: Iterable[tuple[Variant, ModelPair]] = (
        (variant, build_pair(variant.spec, context, plan, models.of(plan), samples).pair)
        for variant, plan in zip(variants, plans, strict=True)
    )
    built = None
    if context.executor.workers:
        pairs = list(pairs)
        points_run = list(zip(fit, not_run, strict=True))
        each = [pair for _, pair in pairs]
        built = built_elsewhere(stack, context, settings, samples, each, points_run)
    work = _Work(progress, evaluator, context.memo, fit, not_run, conditions, total, built, folder)
    rows: list[SweepRow] = []
    notes: dict[str, list[str]] = {}
    for variant, pair in pairs:
        rows += work.rows(variant, pair, len(rows))
        for note in pair.notes:
            notes.setdefault(note, []).append(variant.name)
    if folder:
        folder.finish()
    library = points[0].runtime.label
    all_notes = tuple(_note(text, names, len(variants)) for text, names in notes.items())
    return SweepResult(
        model=ModelRef(settings.model, models.of(plans[0]).file.sha256),
        backend=settings.backend,
        library=library,
        device=fit[0].runtime.device_name if runs else "",
        samples=samples.count,
        metric=_reference_metric(metric, rows[0].simulation) if metric else None,
        combinations=tuple(rows),
        notes=(*all_notes, *idle_note(rows, library), *slower_note(rows)),
        timings_s={"total": time.perf_counter() - started},
    )


def _note(text: str, variants: Sequence[str], total: int) -> str:
    """Names the variants that a note is about, unless it is about all of them."""
    return text if len(variants) == total else f"{', '.join(dict.fromkeys(variants))}: {text}"


@dataclass(frozen=True)
class _Models:
    """The user's model, prepared once for each opset that a plan needs."""

    path: str
    backend: str
    provider: str | None
    sources: tuple[SampleSpec, ...]
    sessions: SessionSettings
    known: dict[int, Model]

    def of(self, plan: PrecisionPlan) -> Model:
        opset = required_opset(plan)
        if opset not in self.known:
            self.known[opset] = load_model(self.path, plan, self.sources, self.sessions)
        return self.known[opset]

    def checked(self, variant: Variant) -> PrecisionPlan:
        """The plan of a variant, which fits the model: found out before anything is built."""
        plan = plan_from(variant.spec)
        check_requested(self.backend, plan, self.provider)
        model = self.of(plan)
        if not model.quantized:
            bind_user_plan(plan, model, variant.spec.plan)
        return plan


def _samples(settings: SweepSettings, model: Model) -> Samples:
    """The samples to run; also checks that those to calibrate on exist."""
    if settings.calibrates_on:
        settings.calibrates_on.open(sample_inputs(model.graph))
    if settings.calibration and not model.quantized:
        with given_by("calibration"):
            ranges_for(settings.calibration, model)
    parse_method(settings.method)
    return settings.compared.open(sample_inputs(model.graph))


def _fitted(
    points: Sequence[BuilderPoint], model: Model, samples: Samples
) -> tuple[BuilderPoint, ...]:
    """The points with their runtimes fitted to the shapes of the samples, which may have to be read
    for that, once."""
    shapes = shapes_of(model.graph, samples)
    return tuple(replace(p, runtime=p.runtime.fitted(model.graph.inputs, shapes)) for p in points)


def _why_not_run(point: BuilderPoint) -> str:
    if point.runtime.not_run:
        return point.runtime.not_run
    try:
        point.runtime.start()
    except QdebugError as error:  # without pycuda engines are built all the same
        return error.message
    return ""


@dataclass(frozen=True)
class _Work:
    """What all combinations share.

    Attributes:
        built: engines that were built already, in order; None builds each when it is its turn.
        folder: where engines are saved; None saves none.
    """

    progress: ProgressCallback
    evaluator: PairEvaluator
    memo: Memo | None
    points: Sequence[BuilderPoint]
    not_run: Sequence[str]
    conditions: Sequence[Condition]
    total: int
    built: Iterator[FoundEngine | Failure] | None
    folder: EngineFolder | None

    def rows(self, variant: Variant, pair: ModelPair, done: int) -> Iterator[SweepRow]:
        """Those of one variant; `done` are before them."""
        self._tell(done, f"{variant.name}, simulated")
        simulation = self.evaluator.simulated(pair)
        for number, (point, not_run) in enumerate(zip(self.points, self.not_run, strict=True)):
            values = point.values.values()
            text = ", ".join(v for v in values if v not in ("", "default", "off", "strong"))
            self._tell(done + number, f"{variant.name}, {text}")
            row = SweepRow(done + number + 1, point.combination(variant, pair), simulation, not_run)
            yield self._built(row, pair, point).judged(self.conditions)
        self._tell(done + len(self.points), variant.name)

    def _built(self, row: SweepRow, pair: ModelPair, point: BuilderPoint) -> SweepRow:
        runtime, not_run = point.runtime, row.not_executed_because
        if self.built is not None:
            found = next(self.built)
        else:
            found = facts_of(runtime, pair, not_run=not_run, memo=self.memo)
        if isinstance(found, Failure):
            return replace(row, failure=found)
        row = replace(row, engine=found.facts)
        if self.folder:
            self.folder.save(row.number, built_of(runtime, pair, found))
        if not_run:
            return row
        run = executed(runtime, pair, found, self.evaluator, self.memo)
        return replace(row, execution=run)

    def _tell(self, done: int, what: str) -> None:
        self.progress(Progress("sweep", done, self.total, what))
