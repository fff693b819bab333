"""One function per command: check its settings, run it, return its result.

Each takes the options of its command as keywords, under the names of the flags (`--calib-data` is
`calib_data`), or one settings object. The command line calls these functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from qdebug.config.calibrate import CalibrateSettings
from qdebug.config.compare import CompareSettings
from qdebug.config.flag import settings_of
from qdebug.config.look import CheckSettings, InitSettings, InspectSettings, RangesSettings
from qdebug.config.report import (
    RUN_TARGETS,
    DiffSettings,
    ExportSettings,
    ReportSettings,
    ViewSettings,
)
from qdebug.config.search import BisectSettings, RepairSettings
from qdebug.config.sweep import SweepSettings
from qdebug.config.validate import settled
from qdebug.errors import UsageError, about_model
from qdebug.types import ProgressCallback, ignore_progress

if TYPE_CHECKING:
    from qdebug.backends.doctor import DoctorResult
    from qdebug.commands.report.view import View
    from qdebug.decide.bisect.result import BisectResult
    from qdebug.decide.remedies.result import RepairResult
    from qdebug.network.samples import Samples
    from qdebug.network.samplespec import SampleSpec
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

__all__ = [  # what `import qdebug` shows to editors; see there
    "BisectSettings",
    "CalibrateSettings",
    "CheckSettings",
    "CompareSettings",
    "DiffSettings",
    "ExportSettings",
    "InitSettings",
    "InspectSettings",
    "RangesSettings",
    "RepairSettings",
    "ReportSettings",
    "SweepSettings",
    "ViewSettings",
    "bisect",
    "calibrate",
    "check",
    "compare",
    "diff",
    "doctor",
    "export",
    "init",
    "inspect",
    "load_run",
    "open_samples",
    "ranges",
    "repair",
    "report",
    "sweep",
    "view",
]

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

    return _run(run, _settings(CheckSettings, model, settings), progress)


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
    from qdebug.commands.outputs import with_file

    checked = _settings(InitSettings, model, settings)
    with about_model(checked.model):
        result = run(checked, progress or ignore_progress)
    return with_file(checked, "output", lambda r: r.config_yaml(), result)


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
    from qdebug.commands.report.attached import compare_with_page as run

    return _run(run, _settings(CompareSettings, model, settings), progress)


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
    from qdebug.commands.outputs import with_file, with_page

    checked = _settings(CalibrateSettings, model, settings)
    result = _run(run, checked, progress, checked.calibrates_on, checked.held_out)
    result = with_file(checked, "output", lambda r: r.scales_yaml(), result)
    result = with_file(checked, "trt_cache", lambda r: r.trt_cache(), result)
    return with_page(checked, checked.model, result)


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
    from qdebug.commands.ranges import ranges as run

    return _run(run, _settings(RangesSettings, source, settings), progress)


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
    from qdebug.commands.outputs import with_file, with_page

    checked = _settings(BisectSettings, model, settings)
    result = _run(run, checked, progress, *checked.quantization.samples, checked.held_out)
    if result.found:
        result = with_file(checked, "output", lambda r: r.plan_yaml(), result)
    return with_page(checked, checked.model, result)


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
    from qdebug.commands.outputs import write_files
    from qdebug.commands.repair import repair as run

    checked = _settings(RepairSettings, model, settings)
    result = _run(run, checked, progress, checked.calibrates_on, checked.held_out)
    return write_files(checked, result)


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
    from qdebug.commands.outputs import with_file, with_page
    from qdebug.display.inspect import layers_to_csv

    checked = _settings(InspectSettings, file, settings)
    result = with_file(checked, "csv", layers_to_csv, run(checked))
    return with_page(checked, checked.model, result)


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
    from qdebug.commands.outputs import with_file, with_page
    from qdebug.commands.sweep.command import sweep as run
    from qdebug.display.sweep import sweep_to_csv

    checked = _settings(SweepSettings, model, settings)
    result = _run(run, checked, progress, checked.compared, checked.calibrates_on)
    result = with_file(checked, "output", sweep_to_csv, result)
    return with_page(checked, checked.model, result)


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
    from qdebug.commands.export import export as run
    from qdebug.decide.bisect.result import BisectResult
    from qdebug.results.calibrate import CalibrateResult
    from qdebug.results.recorded import Run

    if isinstance(plan, Run) and settings.get("to") in RUN_TARGETS:
        plan = plan.path  # otherwise its plan
    if isinstance(plan, BisectResult | CalibrateResult):
        settings.setdefault("model", plan.model.path)
    return run(_settings(ExportSettings, plan, settings))


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
    from qdebug.network.load import read_model
    from qdebug.network.prepare import prepare_model
    from qdebug.network.sampleaxis import sample_inputs

    given = _settings(CompareSettings, model, {"inputs": data})
    inputs = sample_inputs(prepare_model(read_model(given.model)).graph)
    return given.sample_spec(given.inputs, samples, batch_size).open(inputs)


def _run(
    run: Callable[[Any, ProgressCallback], ResultT],
    settings: Any,
    progress: ProgressCallback | None,
    *samples: SampleSpec | None,
) -> ResultT:
    """What a command gives, with what its samples are, as far as they are given here; errors of its
    model name it.

    Raises:
        UsageError: a library of custom operators cannot be loaded.
    """
    from qdebug.commands.reading import read_data
    from qdebug.execute.context import session_settings

    with about_model(getattr(settings, "model", None) or getattr(settings, "source", None)):
        session_settings(settings).check()
        data = read_data(*samples)
        result = run(settings, progress or ignore_progress)
    return replace(result, data=data) if samples else result  # type: ignore[type-var]


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
    from qdebug.commands.preflight import check_files

    if isinstance(first, kind):
        if given:
            raise UsageError(
                f"{next(iter(given))} is given beside {kind.__name__}",
                "Use dataclasses.replace to change settings, or give keywords alone.",
                code="QD-USAGE-KEYWORD",
            )
        settings = first
    else:
        name = next(s.name for s in settings_of(kind) if s.positional)
        settings = settled(kind, {**given, **({} if first is None else {name: first})})
    check_files(settings)
    return settings
