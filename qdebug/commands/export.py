"""`qdebug export`: a plan or a calibration, checked against its model, written for another tool."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from qdebug.commands.preflight import check_suffix
from qdebug.config.report import RUN_TARGETS, ExportSettings
from qdebug.display.tables import rendered
from qdebug.errors import PlanError, UsageError, given_by
from qdebug.execute.model_pair import bind_user_plan, check_not_quantized, ranges_for
from qdebug.inmemory import InMemory, path_in
from qdebug.network.load import ModelFile, read_model
from qdebug.network.prepare import Model, prepare_model, with_taken
from qdebug.outputfiles import (
    Content,
    check_distinct,
    check_new,
    check_writable,
    output_exists,
    write_all,
)
from qdebug.plan.export import EXPORT_TARGETS, ExportResult
from qdebug.plan.export.source import ExportSource
from qdebug.plan.lower import required_opset
from qdebug.plan.plan import BoundPlan, PrecisionPlan, bind_plan
from qdebug.plan.planfile import model_for, read_plan
from qdebug.plan.rangesfile import Ranges, read_ranges
from qdebug.results.recorded import Run, is_run, is_run_file
from qdebug.wording import counted, option


def export_run(source: str, target: str, *, output: str | None, force: bool) -> ExportResult:
    """Write the figures of a comparison for `target`, one of RUN_TARGETS.

    Args:
        source: its run file.
        target: what to write.
        output: a name that those of the files begin with, less its suffix; None takes that of the
            run file.
        force: replace existing files.

    Raises:
        UsageError: `source` is no run file.
        StoreError: it cannot be read, or a file exists or cannot be written.
    """
    if not is_run(source):
        raise UsageError(
            f"{source}: not a run file, which {option('to', target)} is made of",
            "Give the run file that `qdebug compare` wrote.",
            code="QD-USAGE-EXPORT-SOURCE",
        )
    with Run(source) as run:
        contents = rendered(target, run.result)
    stem = str(Path(output or source).with_suffix(""))
    files = {Path(f"{stem}{end}"): data for end, data in contents.items()}
    check_distinct({option("output"): str(next(iter(files)))}, {"the run": source})
    for path in files:
        check_new(str(path), option("output"), force=force)
    write_all(files, option("output"), force=force)
    return ExportResult(target, tuple(files), ())


def export(settings: ExportSettings) -> ExportResult:
    """Write what the settings ask for.

    Raises:
        QdebugError: a plan that does not fit, a file that is no run, an existing output.
    """
    s = settings
    if s.to in RUN_TARGETS:
        return export_run(s.plan, s.to, output=s.output, force=s.force)
    return _export_plan(
        s.plan, s.to, model=s.model, output=s.output, force=s.force, missing=s.missing
    )


def _export_plan(
    source: str,
    target: str,
    *,
    model: str | None,
    output: str | None,
    force: bool,
    missing: str = "refuse",
) -> ExportResult:
    """Write the plan or the calibration in the file `source`, or `InMemory`, for `target`.

    A calibration (scales.yaml, a TensorRT cache) stands for INT8, or what it was calibrated for, in
    every layer that has that form.

    Raises:
        UsageError: no output is given for a plan in memory, or it is a file that is read.
        QdebugError: a plan that does not fit, an existing output.
    """
    if output is None and isinstance(source, InMemory):
        raise UsageError(
            f"{option('output')} is missing: {source} has no file to write beside",
            "Give the path of the file to write.",
            code="QD-USAGE-REQUIRED",
        )
    if is_run_file(source):
        error = _run_given(source, target)
        raise error
    suffix = EXPORT_TARGETS[target].suffix
    if output is not None:
        check_suffix(option("output"), output, (f".{suffix.rpartition('.')[2]}",))
    ranges = read_ranges(source)
    path = Path(output or f"{Path(source).with_suffix('')}{suffix}")
    _check_free([path], force)
    model_path = model_for(source, ranges.model_path, model)
    inputs = {"the model": path_in(model_path), "the plan": path_in(source)}
    check_distinct({option("output"): str(path)}, inputs)
    check_writable(str(path), option("output"))
    with given_by("model") if model else nullcontext():
        file = read_model(model_path)
    bound, prepared, notes = _bind(source, ranges, file, missing)
    notes += _control_flow_notes(source, prepared, target)
    rendered = EXPORT_TARGETS[target].render(ExportSource(prepared, bound, Path(source).name), path)
    parts = {f"{option('output')}, of which {p.name} is a part": str(p) for p in rendered.files}
    check_distinct(parts, inputs)
    # What is there at `path` by now is another command's, even where it is the same.
    changed = {p: data for p, data in rendered.files.items() if p == path or not _holds(p, data)}
    _check_free(list(changed), force)
    if changed:
        write_all(changed, option("output"), force=force)
    return ExportResult(target, tuple(rendered.files), (*notes, *rendered.notes))


def _run_given(source: str, target: str) -> UsageError:
    return UsageError(
        f"{source} is a run file, and {option('to', target)} needs a precision plan or ranges",
        "Give the file that one of these writes: 'qdebug compare … --save-plan precision.yaml' "
        "(the plan of such a run), 'qdebug bisect … -o precision.yaml', or 'qdebug calibrate … -o "
        f"scales.yaml'. Of a run file itself: {', '.join(RUN_TARGETS)}.",
        code="QD-USAGE-EXPORT-SOURCE",
    )


def _bind(
    source: str, ranges: Ranges, file: ModelFile, missing: str
) -> tuple[BoundPlan, Model, tuple[str, ...]]:
    if ranges.partial:
        plan = PrecisionPlan(ranges.precision, control_flow=ranges.control_flow)
    else:
        plan = read_plan(source)
    prepared = with_taken(prepare_model(file, required_opset(plan)), plan.control_flow)
    check_not_quantized(prepared, "a plan is for an FP32 model")
    if ranges.partial:
        plan = plan.with_ranges(ranges_for(source, prepared), f"from {Path(source).name}")
    bound = bind_user_plan(plan, prepared, source, "")
    lacking = [
        layer.name
        for layer in bound.quantized_layers()
        if any(t not in plan.tensors for t in bound.quantized_inputs(layer))
    ]
    if not lacking:
        return bound, prepared, ()
    if missing == "refuse":
        raise _missing_ranges(source, bound, lacking)
    kept = {**plan.layers, **dict.fromkeys(lacking, plan.fallback_precision)}
    note = (
        f"Left in {plan.fallback_precision}: {counted(lacking, 'layer')}, first '{lacking[0]}', "
        "whose inputs have no range."
    )
    return bind_plan(replace(plan, layers=kept), prepared, bound.layers), prepared, (note,)


def _control_flow_notes(source: str, model: Model, target: str) -> tuple[str, ...]:
    """What to note of branches that stand in the place of an If.

    Raises:
        PlanError: the target works on the file, in which they do not.
    """
    if not model.taken:
        return ()
    shown = ", ".join(f"'{name}'" for name in list(model.taken)[:3])
    if EXPORT_TARGETS[target].on_file:
        raise PlanError(
            f"{source}: the plan was made with {shown} replaced by the branch that the "
            f"samples took, and {option('to', target)} works on {model.file.path}, which "
            "still has it",
            f"Export the model itself with {option('to', 'onnx')}, or take another target.",
            code="QD-PLAN-CONTROL-FLOW",
        )
    return (
        f"In the models that are written, {shown} is replaced by the branch that the samples "
        "took: for inputs that take another, these models are wrong.",
    )


def _missing_ranges(source: str, bound: BoundPlan, lacking: list[str]) -> PlanError:
    tensors = bound.missing_ranges()
    shown = ", ".join(f"'{t}'" for t in tensors[:3]) + (", …" if len(tensors) > 3 else "")
    count = f"tensor {shown} has" if len(tensors) == 1 else f"{len(tensors)} tensors have"
    named = "" if len(tensors) == 1 else f": {shown}"
    formats = " and ".join(sorted({bound.precisions[name].upper() for name in lacking}))
    return PlanError(
        f"{source}: {count} no amax, but {formats} layers read {'them' if named else 'it'}{named}",
        "Calibrate the model (qdebug calibrate), or leave "
        f"{counted(lacking, 'layer')} in {bound.plan.fallback_precision} with "
        f"{option('missing', 'float')}.",
        code="QD-PLAN-RANGE-MISSING",
    )


def _check_free(paths: list[Path], force: bool) -> None:
    for path in paths:
        if path.exists() and not force:
            raise output_exists(str(path), option("output"))


def _holds(path: Path, data: Content) -> bool:
    """Whether a file is there and is the same: the model that two targets write beside theirs."""
    if not isinstance(data, bytes):
        return False  # too large to be told
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False
