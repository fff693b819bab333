"""`qdebug export`: a plan, checked against its model, written for another tool."""

from __future__ import annotations

from pathlib import Path

from qdebug.errors import PlanError, StoreError, UsageError
from qdebug.model.layers import find_layers
from qdebug.model.load import read_model
from qdebug.model.prepare import prepare_model
from qdebug.plan.export import TARGETS
from qdebug.plan.lower import required_opset
from qdebug.plan.plan import bind_plan
from qdebug.plan.planfile import named_model, read_plan
from qdebug.report.files import check_distinct, check_writable


def export_plan(
    plan_file: str, target: str, *, model: str | None, output: str | None, force: bool
) -> Path:
    """Write the plan in `plan_file` for `target`; return the path written.

    Raises:
        QdebugError: an unknown target, a plan that does not fit, an existing output.
    """
    if target not in TARGETS:
        raise UsageError(f"--to: unknown target '{target}'", f"Known: {', '.join(TARGETS)}.")
    path = Path(output) if output else Path(plan_file).with_suffix(".onnx")
    if path.exists() and not force:
        raise StoreError(f"{path} exists", "Give another file with -o, or --force to replace it.")
    plan = read_plan(plan_file)
    model_path = model or named_model(plan_file)
    check_distinct({"-o": str(path)}, {"the model": model_path, "the plan": plan_file})
    check_writable(str(path), "-o")
    if not model_path:
        raise PlanError(f"{plan_file} names no model", "Give it with --model.")
    prepared = prepare_model(read_model(model_path), required_opset(plan))
    if prepared.quantized:
        raise PlanError(
            f"{model_path} carries Q/DQ nodes already", "Give the FP32 model that the plan is for."
        )
    TARGETS[target](bind_plan(plan, prepared, find_layers(prepared.graph)), path)
    return path
