"""A network postprocessing script for NVIDIA's Polygraphy, and the command lines that use it."""

from __future__ import annotations

import shlex
from pathlib import Path

from qdebug.plan.export.both_ways import both_ways
from qdebug.plan.export.implicit import Implicit, dynamic_inputs
from qdebug.plan.export.source import Rendered, Source, comment, one_line
from qdebug.plan.export.trt_script import CONSTRAIN, docstring, nodes_literal

SUFFIX = "_polygraphy.py"

_SCRIPT = '''\
"""The precisions of {plan} for Polygraphy."""
# From this folder:
#
# TensorRT 10 (strongly typed), 11: the explicit model, which is what qdebug compared
#   {explicit}
# TensorRT for RTX: the same model
#   {rtx}
# TensorRT 10 only: the FP32 model, constraints and ranges
#   {implicit}
#
# INT8 layers are not constrained in the last: TensorRT takes INT8 where it is fastest.
{notes}

# name in TensorRT, precision, that of its outputs (None: free), its outputs
{nodes}


def postprocess(network):
    """What --trt-network-postprocess-script calls with the parsed network."""
    import sys

    import tensorrt as trt

    left = constrain(network, trt)
    if left:
        print(f"not in the network, not constrained: {{', '.join(left)}}", file=sys.stderr)


{constrain}'''


def render_polygraphy(source: Source, path: Path) -> Rendered:
    """The script, the explicit model and, for INT8, the calibration cache.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    ways = both_ways(source, path, SUFFIX)
    notes = ways.notes
    if dynamic_inputs(source.model.graph):
        notes += (
            "The model has dynamic axes: add --trt-min-shapes, --trt-opt-shapes and "
            "--trt-max-shapes; without, Polygraphy takes 1 for each.",
        )
    model = source.model_beside(path)
    script = _SCRIPT.format(
        plan=docstring(source.name),
        explicit=one_line(explicit_command(ways.explicit)),
        rtx=one_line("POLYGRAPHY_USE_TENSORRT_RTX=1 " + rtx_command(ways.explicit)),
        implicit=one_line(implicit_command(ways.form, path, ways.cache, model)),
        notes=comment(notes),
        nodes=nodes_literal(ways.form),
        constrain=CONSTRAIN,
    )
    return Rendered({**ways.files, path: script.encode("utf-8")}, notes)


def explicit_command(explicit: Path) -> str:
    """Polygraphy on the explicit model."""
    return _convert(explicit.name, "--strongly-typed")


def rtx_command(explicit: Path) -> str:
    """Polygraphy on the explicit model with TensorRT for RTX, which knows only strong types."""
    return _convert(explicit.name, "--convert-to", "trt")


def implicit_command(form: Implicit, script: Path, cache: Path, model: str) -> str:
    """Polygraphy on the FP32 model with constraints."""
    flags: list[str] = []
    if form.int8:
        flags += ["--int8", "--calibration-cache", cache.name]
    if form.fp16:
        flags += ["--fp16"]
    if form.pins:
        flags += ["--precision-constraints", "obey", "--trt-network-postprocess-script"]
        flags += [script.name]
    return _convert(model, *flags)


def _convert(model: str, *flags: str) -> str:
    return shlex.join(["polygraphy", "convert", model, "-o", "model.engine", *flags])
