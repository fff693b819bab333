"""A network postprocessing script for NVIDIA's Polygraphy, and the command lines that use it."""

from __future__ import annotations

import shlex
from pathlib import Path

from qdebug.plan.export.models import dynamic_inputs, plan_script, tensorrt_models
from qdebug.plan.export.source import ExportSource, Rendered, comment, docstring, in_utf8, one_line

_SCRIPT = '''\
"""The precisions of {plan} for Polygraphy."""
# From this folder:
#
# TensorRT 10 (strongly typed), 11: the explicit model, which is what qdebug compared
#   {explicit}
# TensorRT for RTX: the same model
#   {rtx}
{implicit}#
{notes}
{functions}'''

_IMPLICIT = """\
# TensorRT 10 only: the FP32 model, constraints and ranges, as `qdebug compare --typing implicit`
#   {command}
"""

_FUNCTIONS = '''
from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any


def postprocess(network):
    """What --trt-network-postprocess-script calls with the parsed network."""
    import tensorrt as trt

    apply_plan(network, trt)


def postprocess_config(builder, network, config):
    """What --trt-config-postprocess-script calls with the builder's configuration."""
    import tensorrt as trt

    for flag in builder_flags(REQUESTED):
        config.set_flag(getattr(trt.BuilderFlag, flag))


{plan_script}'''


def render_polygraphy(source: ExportSource, path: Path) -> Rendered:
    """The script and its models; without an implicit way it holds command lines alone.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    models = tensorrt_models(source, path, "polygraphy")
    notes = models.notes
    if dynamic_inputs(source.model.graph):
        notes += (
            "The model has dynamic axes: add --trt-min-shapes, --trt-opt-shapes and "
            "--trt-max-shapes; without them Polygraphy uses 1 for each.",
        )
    implicit = functions = ""
    if models.implicit is not None and models.constraints is not None:
        told = ("--trt-network-postprocess-script", "--trt-config-postprocess-script")
        flags = (word for flag in told for word in (flag, path.name))
        implicit = _IMPLICIT.format(command=_convert(models.implicit, *flags))
        functions = _FUNCTIONS.format(plan_script=plan_script(models.constraints))
    script = _SCRIPT.format(
        plan=docstring(source.name),
        explicit=_convert(models.explicit, "--strongly-typed"),
        rtx="POLYGRAPHY_USE_TENSORRT_RTX=1 " + _convert(models.explicit, "--convert-to", "trt"),
        implicit=implicit,
        notes=comment(notes),
        functions=functions,
    )
    return Rendered({path: in_utf8(script), **models.files}, notes)


def _convert(model: Path, *flags: str) -> str:
    """Polygraphy on a model. Without --int8, which would make it calibrate: the script sets the
    builder's flags."""
    command = ["polygraphy", "convert", model.name, "-o", "model.engine", *flags]
    return one_line(shlex.join(command))
