"""One function per command: check its settings, run it, return its result.

Each takes the options of its command as keywords, under the names of the flags (`--calib-data` is
`calib_data`), or one settings object. The command line calls these functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from qdebug.config.bisect import BisectSettings
from qdebug.config.calibrate import CalibrateSettings
from qdebug.config.check import CheckSettings
from qdebug.config.compare import CompareSettings
from qdebug.config.diff import DiffSettings
from qdebug.config.export import ExportSettings
from qdebug.config.init import InitSettings
from qdebug.config.inspect import InspectSettings
from qdebug.config.option import settings_of
from qdebug.config.ranges import RangesSettings
from qdebug.config.repair import RepairSettings
from qdebug.config.report import ReportSettings
from qdebug.config.sweep import SweepSettings
from qdebug.config.view import ViewSettings
from qdebug.errors import StoreError, UsageError, about_model
from qdebug.execute.context import session_settings
from qdebug.types import ProgressCallback, ignore_progress
from qdebug.wording import option

if TYPE_CHECKING:
    from onnx import ModelProto

    from qdebug.backends.doctor import DoctorResult
    from qdebug.commands.report.view import View
    from qdebug.decide.bisect.result import BisectResult
    from qdebug.decide.remedies.result import RepairResult
    from qdebug.network.samples import Samples
    from qdebug.plan.export import ExportResult
    from qdebug.result import Result
    from qdebug.results.calibrate import CalibrateResult
    from qdebug.results.check import CheckResult
    from qdebug.results.compare import CompareResult
    from qdebug.results.diff import DiffResult
    from qdebug.results.init import InitResult
    from qdebug.results.inspect import InspectResult
    from qdebug.results.ranges import RangesResult
    from qdebug.results.recorded import Run
    from qdebug.results.report import ReportResult
    from qdebug.results.sweep import SweepResult

SettingsT = TypeVar("SettingsT")
ResultT = TypeVar("ResultT", bound="Result")


def check(
    model: Any = None, *, progress: ProgressCallback | None = None, **settings: Any
) -> CheckResult:
    """Look at a model and its samples first: operators, preprocessing, labels, their number.

    Args:
        model: a path, an `onnx.ModelProto`, or `CheckSettings`.
        progress: called with a `Progress` again and again; what it raises ends the call and
            reaches the caller.
        settings: the fields of `CheckSettings`.

    Raises:
        QdebugError: bad input, or a runtime that failed.
    """
    from qdebug.commands.check.command import check as run

    checked = _settings(CheckSettings, model, settings)
    with _running(checked, checked.model):
        return run(checked, progress or ignore_progress)


def init(
    model: Any = None, *, progress: ProgressCallback | None = None, **settings: Any
) -> InitResult:
    """Look at a model and its samples, and write a configuration that compare runs at once.

    Args:
        model: a path, or `InitSettings`.
        progress: called with a `Progress` again and again; what it raises ends the call and
            reaches the caller.
        settings: the fields of `InitSettings`.

    Raises:
        QdebugError: bad input, or a runtime that failed.
    """
    from qdebug.commands.init import init as run

    checked = _settings(InitSettings, model, settings)
    with about_model(checked.model):
        result = run(checked, progress or ignore_progress)
    return _with_text(checked, "output", lambda r: r.config_yaml(), result)


def compare(
    model: Any = None, *, progress: ProgressCallback | None = None, **settings: Any
) -> CompareResult:
    """Compare a quantized or FP16 model with its FP32 reference, tensor by tensor.

    Args:
        model: a path, an `onnx.ModelProto`, or `CompareSettings`; None takes the plan's.
        progress: called with a `Progress` again and again; what it raises ends the call and
            reaches the caller.
        settings: the fields of `CompareSettings`.

    A stage that fails after the tensors were compared, such as a metric that raises, is listed in
    the result's `failed`, beside all that was measured.

    Raises:
        QdebugError: bad input (nothing was written), or a runtime that failed.
    """
    from qdebug.commands.compare.command import compare as run
    from qdebug.commands.report.attached import compare_with_page

    checked = _settings(CompareSettings, model, settings)
    with _running(checked, checked.model):
        if checked.html:
            return compare_with_page(checked, checked.html, progress or ignore_progress)
        return run(checked, progress or ignore_progress)


def calibrate(
    model: Any = None, *, progress: ProgressCallback | None = None, **settings: Any
) -> CalibrateResult:
    """Calibrate by several methods in one pass, and compare them on held-out samples.

    Args:
        model: a path, an `onnx.ModelProto`, or `CalibrateSettings`.
        progress: called with a `Progress` again and again; what it raises ends the call and
            reaches the caller.
        settings: the fields of `CalibrateSettings`.

    Raises:
        QdebugError: bad input, or a runtime that failed.
    """
    from qdebug.commands.calibrate.command import calibrate as run
    from qdebug.commands.reading import read_data

    checked = _settings(CalibrateSettings, model, settings)
    with _running(checked, checked.model):
        data = read_data(checked.calibrates_on, checked.held_out)
        result = replace(run(checked, progress or ignore_progress), data=data)
    result = _with_text(checked, "output", lambda r: r.scales_yaml(), result)
    result = _with_text(checked, "trt_cache", lambda r: r.trt_cache(), result)
    return _with_page(checked, checked.model, result)


def ranges(
    source: Any = None, *, progress: ProgressCallback | None = None, **settings: Any
) -> RangesResult:
    """Dynamic range, histogram and calibration coverage of every tensor.

    Args:
        source: a run file (its path or a `Run`), or a model (its path or an `onnx.ModelProto`);
            or `RangesSettings`.
        progress: called with a `Progress` again and again; what it raises ends the call and
            reaches the caller.
        settings: the fields of `RangesSettings`.

    Raises:
        QdebugError: bad input, or a runtime that failed.
    """
    from qdebug.commands.ranges.command import ranges as run

    checked = _settings(RangesSettings, source, settings)
    with _running(checked, checked.source):
        return run(checked, progress or ignore_progress)


def bisect(
    model: Any = None, *, progress: ProgressCallback | None = None, **settings: Any
) -> BisectResult:
    """Find the cheapest layers to keep in higher precision, so that the target holds.

    What was evaluated is kept on disk, so that a search that was interrupted goes on; with a metric
    in memory that uses more than plain data it is not.

    Args:
        model: a path, an `onnx.ModelProto`, or `BisectSettings`; None takes the plan's.
        progress: called with a `Progress` again and again; what it raises ends the call and
            reaches the caller.
        settings: the fields of `BisectSettings`.

    Raises:
        QdebugError: bad input, or a runtime or a metric that failed; what was evaluated is kept.
    """
    from qdebug.commands.bisect import bisect as run
    from qdebug.commands.reading import read_data

    checked = _settings(BisectSettings, model, settings)
    with _running(checked, checked.model):
        data = read_data(*checked.quantization.samples, checked.held_out)
        result = replace(run(checked, progress or ignore_progress), data=data)
    if result.found:
        result = _with_text(checked, "output", lambda r: r.plan_yaml(), result)
    return _with_page(checked, checked.model, result)


def repair(
    model: Any = None, *, progress: ProgressCallback | None = None, **settings: Any
) -> RepairResult:
    """Give INT8 its accuracy back without training, and pin only what that leaves.

    What is done so far is kept in the cache folder, from where a repair that was interrupted goes
    on; with a metric in memory that uses more than plain data it is not.

    Args:
        model: a path, an `onnx.ModelProto`, or `RepairSettings`; None takes the plan's.
        progress: called with a `Progress` again and again; what it raises ends the call and
            reaches the caller.
        settings: the fields of `RepairSettings`.

    Raises:
        QdebugError: bad input, or a runtime or a metric that failed; what was done is kept.
    """
    from qdebug.commands.reading import read_data
    from qdebug.commands.repair import repair as run
    from qdebug.plan.repaired import is_unfinished

    checked = _settings(RepairSettings, model, settings)
    with _running(checked, checked.model):
        data = read_data(checked.calibrates_on, checked.held_out)
        publish = partial(_publish, checked)
        result = replace(run(checked, progress or ignore_progress, publish), data=data)
    kept = _with_better_kept(checked, result)
    if kept is not None:
        return kept
    path = checked.output
    unfinished = path is not None and is_unfinished(path, result.model.sha256)
    replaced = replace(checked, force=checked.force or unfinished)
    result = _with_model(replaced, "output", lambda r: r.model_proto(), result)
    result = _with_model(checked, "save_fp32", lambda r: r.fp32_proto(), result)
    result = _with_text(checked, "save_plan", lambda r: r.plan_yaml(), result)
    result = _with_text(checked, "trt_cache", lambda r: r.trt_cache(), result)
    return _with_page(checked, checked.model, result)


def _publish(settings: RepairSettings, best: RepairResult) -> str:
    """Write the best so far, unless what is there is better; returns what is to be said of it."""
    from qdebug.network.weights import write_model
    from qdebug.plan.repaired import is_unfinished, record_in

    path = settings.output
    if path is None:
        return ""
    there = record_in(path)
    if there is not None and replace(there, unfinished=False).better_than(best.record()):
        return ""
    force = settings.force or is_unfinished(path, best.model.sha256)
    try:
        write_model(best.model_proto(), path, option("output"), force=force)
    except StoreError:  # the last write says it
        return ""
    return f"the best so far is in {path}"


def _with_better_kept(settings: RepairSettings, result: RepairResult) -> RepairResult | None:
    """`result`, of which no file is written because one of them holds a better one for the same
    question; None where none does."""
    from qdebug.plan.repaired import record_in
    from qdebug.stages import with_failure

    names = ("output", "save_plan", "save_fp32", "trt_cache", "html")
    files = {name: getattr(settings, name) for name in names if getattr(settings, name)}
    records = {n: record_in(files[n]) for n in ("output", "save_plan") if n in files}
    better = [n for n, found in records.items() if found and found.better_than(result.record())]
    if not better:
        return None
    for name in (*better[:1], *(n for n in files if n != better[0])):
        what, hint = f"{option(name)}: {files[name]}", ""
        if name == better[0] and (found := records[name]):
            what += f" holds a better result for the same target ({found.told}), and stays"
            hint = "Give other paths to write this result, or remove that file."
        else:
            what += " is not written either: files of one repair belong together"
        error = StoreError(what, hint, code="QD-STORE-BETTER-RESULT")
        result = with_failure(result, option(name), error, file=files[name])
    return result


def inspect(file: Any = None, **settings: Any) -> InspectResult:
    """What an engine really is: precision, fusion, formats and tactics of its layers.

    Args:
        file: an ONNX model (its path or an `onnx.ModelProto`), an engine, layer information, a
            profile or a build log; or `InspectSettings`.
        settings: the fields of `InspectSettings`.

    Raises:
        QdebugError: a file that cannot be read or is none of the known kinds, a plan that does not
            fit, an engine of another model, an unknown condition.
    """
    from qdebug.commands.inspect import inspect as run
    from qdebug.display.inspect import layers_to_csv

    checked = _settings(InspectSettings, file, settings)
    result = _with_text(checked, "csv", layers_to_csv, run(checked))
    return _with_page(checked, checked.model, result)


def sweep(
    model: Any = None, *, progress: ProgressCallback | None = None, **settings: Any
) -> SweepResult:
    """Builder settings against accuracy, latency and build time: every combination is built.

    Args:
        model: a path, an `onnx.ModelProto`, or `SweepSettings`; None takes the plan's.
        progress: called with a `Progress` again and again; what it raises ends the call and
            reaches the caller.
        settings: the fields of `SweepSettings`.

    Raises:
        QdebugError: bad input (nothing was built), or a reference that does not run.
    """
    from qdebug.commands.reading import read_data
    from qdebug.commands.sweep.command import sweep as run
    from qdebug.display.sweep import sweep_to_csv

    checked = _settings(SweepSettings, model, settings)
    with _running(checked, checked.model):
        data = read_data(checked.compared, checked.calibrates_on)
        result = replace(run(checked, progress or ignore_progress), data=data)
    result = _with_text(checked, "output", sweep_to_csv, result)
    return _with_page(checked, checked.model, result)


def diff(run: Any = None, **settings: Any) -> DiffResult:
    """Where two runs of one model, on two machines or backends, diverge.

    Args:
        run: the run file of the first (a path or a `Run`), against which differences are measured;
            or `DiffSettings`.
        settings: the fields of `DiffSettings`; `other` is the run file of the second.

    Raises:
        QdebugError: a file that cannot be read, runs of two models or on other samples, an unknown
            condition.
    """
    from qdebug.commands.diff import diff as compare_runs

    return compare_runs(_settings(DiffSettings, run, settings))


def report(runs: Any = None, **settings: Any) -> ReportResult:
    """Write a page that shows a result: one HTML file that needs nothing else.

    Args:
        runs: run files (paths or `Run`), JSON files that `--json` of a command wrote, or results in
            memory: one, or a list of several to be compared; or `ReportSettings`.
        settings: the fields of `ReportSettings`.

    Raises:
        QdebugError: a file that cannot be read or holds no result, an existing output.
    """
    from qdebug.commands.report.command import report as run

    return run(_settings(ReportSettings, runs, settings))


def view(files: Any = None, **settings: Any) -> View:
    """Show a result in a browser, with every activation that a run file keeps.

    Args:
        files: what `report` takes, and what `inspect` reads: one, or a list of several to be
            compared; or `ViewSettings`.
        settings: the fields of `ViewSettings`.

    Returns:
        The page's server, which has an address (`url`), and serves until `close()`.

    Raises:
        QdebugError: a file that cannot be read or holds nothing to show, a port that is in use.
    """
    from qdebug.commands.report.view import view as run

    return run(_settings(ViewSettings, files, settings))


def export(plan: Any = None, **settings: Any) -> ExportResult:
    """Write a precision plan, a calibration or the figures of a run for another tool.

    Args:
        plan: the file of a plan, scales or a TensorRT cache; in memory a `PrecisionPlan` (with
            `model`), a `BisectResult` or a `CalibrateResult` (each with `output`); for the targets
            that are made of a run, a run file or a `Run`; or `ExportSettings`.
        settings: the fields of `ExportSettings`.

    Raises:
        QdebugError: an unknown target, a plan that does not fit, an existing output.
    """
    from qdebug.commands.export import export_plan
    from qdebug.commands.export_run import export_run
    from qdebug.config.export import RUN_TARGETS
    from qdebug.config.objects import as_settings
    from qdebug.decide.bisect.result import BisectResult
    from qdebug.results.calibrate import CalibrateResult
    from qdebug.results.recorded import Run

    if isinstance(plan, Run) and settings.get("to") in RUN_TARGETS:
        plan = plan.path  # otherwise its plan
    if isinstance(plan, BisectResult | CalibrateResult):
        settings.setdefault("model", plan.model.path)
    if isinstance(plan, CalibrateResult):
        plan = as_settings(CompareSettings, {"calibration": plan})["calibration"]
    checked = _settings(ExportSettings, plan, settings)
    if checked.to in RUN_TARGETS:
        return export_run(checked.plan, checked.to, output=checked.output, force=checked.force)
    return export_plan(
        checked.plan,
        checked.to,
        model=checked.model,
        output=checked.output,
        force=checked.force,
        missing=checked.missing,
    )


def doctor() -> DoctorResult:
    """What this machine can run, and what to install for the rest."""
    from qdebug.backends.doctor import examine

    return examine()


def load_run(path: str | os.PathLike[str]) -> Run:
    """A run file of `compare`: its result, plan, manifest and activations.

    Raises:
        StoreError: no such file, or not a run file that is whole.
    """
    from qdebug.results.recorded import Run

    return Run(os.fspath(path))


def open_samples(
    data: Any, model: Any, *, samples: int | None = None, batch_size: int | None = None
) -> Samples:
    """Samples for a model, to be given to several functions: they are read and checked once.

    Args:
        data: as `inputs` of `compare`.
        model: a path or an `onnx.ModelProto`, whose inputs they are for; how pictures become these
            is read from it, or beside it.
        samples: use at most so many.
        batch_size: samples per execution; None takes the model's, or 1.

    Raises:
        QdebugError: the data or the model cannot be read, or do not fit.
    """
    from qdebug.config.objects import as_settings
    from qdebug.network.load import read_model
    from qdebug.network.prepare import prepare_model
    from qdebug.network.sampleaxis import sample_inputs
    from qdebug.network.samplespec import SampleSpec

    given = as_settings(CompareSettings, {"inputs": data, "model": model})
    inputs = sample_inputs(prepare_model(read_model(given["model"])).graph)
    spec = SampleSpec(given["inputs"], samples, batch_size, model=given["model"])
    return spec.open(inputs)


def _with_page(settings: Any, model: str | None, result: ResultT) -> ResultT:
    """`result`, of which the page that is asked for is written."""

    def write(page: str, found: ResultT) -> None:
        from qdebug.commands.report.attached import write_result_page

        write_result_page(settings, page, model, found)

    return _with_file(settings, "html", write, result)


def _with_text(
    settings: Any, name: str, text: Callable[[ResultT], str], result: ResultT
) -> ResultT:
    """`result`, of which `text` is written to the file that the setting `name` gives, if any."""
    from qdebug.outputfiles import write_text

    def write(path: str, found: ResultT) -> None:
        write_text(path, text(found), option(name), force=settings.force)

    return _with_file(settings, name, write, result)


def _with_model(
    settings: Any, name: str, proto: Callable[[ResultT], ModelProto], result: ResultT
) -> ResultT:
    """`result`, of which a model is written to the file that the setting `name` gives, if any."""
    from qdebug.network.weights import write_model

    def write(path: str, found: ResultT) -> None:
        write_model(proto(found), path, option(name), force=settings.force)

    return _with_file(settings, name, write, result)


def _with_file(
    settings: Any, name: str, write: Callable[[str, ResultT], None], result: ResultT
) -> ResultT:
    """`result`, after `write` of it to the file that the setting `name` gives, if any. A file that
    cannot be written is listed in its `failed`: nothing that was measured is lost."""
    from qdebug.stages import attempted

    path = getattr(settings, name)
    if not path:
        return result

    def written(found: ResultT) -> ResultT:
        write(path, found)
        return found

    return attempted(option(name), result, written, file=path)


@contextmanager
def _running(settings: Any, model: Any) -> Iterator[None]:
    """Within, a command runs on `model`, of which its errors are.

    Raises:
        UsageError: a library of custom operators cannot be loaded.
    """
    with about_model(model):
        session_settings(settings).check()
        yield


def _settings(kind: type[SettingsT], first: Any, given: Mapping[str, Any]) -> SettingsT:
    """The settings of a call, checked, and so are the files that they write.

    Args:
        kind: the settings of the command.
        first: the positional argument: what the command is about, or all settings.
        given: the keywords.

    Raises:
        UsageError: an unknown keyword, a value that cannot be, or one that is missing.
        QdebugError: an object in memory that cannot be used, or a file that cannot be written.
    """
    from qdebug.commands.preflight import check_files, planned_model
    from qdebug.config.objects import as_settings
    from qdebug.config.resolve import from_keywords

    values = dict(given)
    if isinstance(first, kind):
        if given:
            raise UsageError(
                f"{next(iter(given))} is given beside {kind.__name__}",
                "Use dataclasses.replace to change settings, or give keywords alone.",
                code="QD-USAGE-KEYWORD",
            )
        every = {setting: getattr(first, setting.name) for setting in settings_of(kind)}
        values = {s.name: value for s, value in every.items() if value is not s.default}
    elif first is not None:
        values[next(s.name for s in settings_of(kind) if s.option.positional)] = first
    settings = from_keywords(kind, as_settings(kind, values), planned_model)
    check_files(settings)
    return settings
