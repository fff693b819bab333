"""The files that both of TensorRT's ways need: the explicit model, and the FP32 one of the implicit
way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdebug.plan.export.implicit import Implicit, implicit_form
from qdebug.plan.export.onnx_model import explicit_model
from qdebug.plan.export.source import Source, beside


@dataclass(frozen=True)
class BothWays:
    """What stands beside a script.

    Attributes:
        explicit: the Q/DQ + Cast model.
        implicit: the FP32 model that constraints are of.
        form: the plan as constraints.
        files: contents by path; the script's is to be filled in.
    """

    explicit: Path
    implicit: Path
    form: Implicit
    files: dict[Path, bytes]


def both_ways(source: Source, script: Path, suffix: str) -> BothWays:
    """The files beside `script`, whose name ends in `suffix`.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    explicit, implicit = (beside(script, f".{k}.onnx", suffix) for k in ("explicit", "implicit"))
    form = implicit_form(source)
    files = {script: b"", explicit: explicit_model(source), implicit: form.model}
    return BothWays(explicit, implicit, form, files)
