"""The models that targets build from, and what TensorRT 10 is told about the second of them.

- The explicit model: Q/DQ for INT8, Cast for FP16. For ONNX Runtime, TensorRT 10 (strongly typed)
  and 11, and TensorRT for RTX.
- The FP32 model of TensorRT 10's implicit way, with constraints and ranges. It is byte for byte
  what `qdebug compare` builds with implicit typing, constraints in its metadata included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from qdebug.network.graph import Graph
from qdebug.network.weights import model_files
from qdebug.outputfiles import Content
from qdebug.plan.constraints import (
    Constraints,
    constrained_graph,
    constraints_of,
    lost_in_constraints,
)
from qdebug.plan.export.source import ExportSource, Rendered, beside
from qdebug.plan.lower import lower
from qdebug.plan.parsed_network import builder_flags, script_source
from qdebug.types import Precision

_SCRIPT = '''\
# What TensorRT 10 is told about the FP32 model, as by `qdebug compare` with implicit typing:
# `precisions` by ONNX node; by tensor the types that are fixed (`stored`) and the largest
# magnitudes (`ranges`); `fallback` is the type of everything else that INT8 layers write, except
# what is `free`; `others` and `weights` are the largest magnitudes, by node of the INT8 layers, of
# whatever else they read or write and of their weights.
REQUESTED = {requested}


def apply_plan(network, trt):
    """Constrain a parsed network."""
    lost = constrain(network, trt, REQUESTED)
    lost += set_ranges(network, ranges_in(network, trt, REQUESTED))
    if lost:
        sys.exit(f"TensorRT parsed another network: nothing to constrain for {{', '.join(lost)}}")


{functions}'''


def render_onnx(source: ExportSource, path: Path) -> Rendered:
    """The lowered model.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    return Rendered(model_files(lower(source.bound).graph.proto, path))


@dataclass(frozen=True)
class TensorRTModels:
    """The two models that a script for TensorRT builds from.

    Attributes:
        explicit: the path of the Q/DQ + Cast model.
        implicit: the path of the FP32 model that the constraints are for; None for a plan that
            TensorRT 10's implicit way does not express.
        files: the contents of both, by path.
        constraints: what TensorRT 10 is told about the FP32 model.
        notes: what of the plan the constraints cannot express.
    """

    explicit: Path
    implicit: Path | None
    files: Mapping[Path, Content]
    constraints: Constraints | None
    notes: tuple[str, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        """Names of trt.BuilderFlag that the constraints need."""
        return tuple(builder_flags(self.constraints)) if self.constraints else ()


def tensorrt_models(source: ExportSource, script: Path, target: str) -> TensorRTModels:
    """The models beside `script`, the main file of an export target.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    explicit, implicit = (beside(script, f".{k}.onnx", target) for k in ("explicit", "implicit"))
    bound = source.bound
    files = model_files(lower(bound).graph.proto, explicit)
    others = sorted(set(bound.precisions.values()) - _IMPLICIT)
    if others:
        note = (
            f"There is no implicit way for {' and '.join(p.upper() for p in others)}: a "
            "calibration cache is for INT8, and what TensorRT 10 makes of such layers by flags is "
            "not known."
        )
        return TensorRTModels(explicit, None, files, None, (note,))
    files = {**files, **model_files(constrained_graph(bound).proto, implicit)}
    constraints, notes = constraints_of(bound), lost_in_constraints(bound)
    return TensorRTModels(explicit, implicit, files, constraints, notes)


_IMPLICIT = {Precision.INT8, Precision.FP16, Precision.FP32}
"""What TensorRT 10's implicit way is told here."""


def dynamic_inputs(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Inputs with dynamic axes -> their shape, with 1 for each dynamic axis."""
    return {
        spec.name: tuple(d if isinstance(d, int) else 1 for d in spec.shape)
        for spec in graph.inputs
        if not all(isinstance(d, int) for d in spec.shape)
    }


def plan_script(constraints: Constraints) -> str:
    """Python that tells TensorRT 10 the constraints of a plan.

    It defines `apply_plan(network, trt)` and `builder_flags(REQUESTED)`. The script around it has
    `from __future__ import annotations`, `sys`, `SimpleNamespace` and `Any`.
    """
    told = {name: value for name, value in asdict(constraints).items() if name != "by_cache"}
    requested = f"SimpleNamespace(**{json.dumps(told, indent=4, ensure_ascii=False)})"
    return _SCRIPT.format(requested=requested, functions=script_source())
