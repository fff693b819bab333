"""A self-contained script that builds the engine with `tensorrt` 10 or 11, or `tensorrt_rtx`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qdebug.plan.export.models import TensorRTModels, dynamic_inputs, plan_script, tensorrt_models
from qdebug.plan.export.source import ExportSource, Rendered, comment, docstring, in_utf8

_SCRIPT = '''\
"""Builds a TensorRT engine in the precisions of {plan}.

    python {script} model.engine             tensorrt 10 or 11: the explicit model
    python {script} model.engine --rtx       tensorrt_rtx: the same model
{implicit_line}
The explicit model, with Q/DQ and Cast nodes, is what qdebug compares{implicit_note}.
"""
{notes}

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FOLDER = Path(__file__).resolve().parent
EXPLICIT = FOLDER / {explicit!r}
IMPLICIT = {implicit}

# Inputs with dynamic axes: their minimum, optimum and maximum shape.
SHAPES = {{{shapes}}}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("engine", type=Path, help="the file to write")
    arguments.add_argument("--rtx", action="store_true", help="TensorRT for RTX")
    arguments.add_argument("--implicit", action="store_true", help="TensorRT 10's old way")
    arguments.add_argument("--compute-capability", help="with --rtx: build for 8.9, for example")
    arguments.add_argument("--no-tf32", action="store_true", help="compute FP32 in FP32")
    arguments.add_argument("--verbose", action="store_true")
    options = arguments.parse_args()
    if options.implicit and IMPLICIT is None:
        arguments.error("the plan has no implicit way: see the notes above")
    if options.rtx and options.implicit:
        arguments.error("--rtx builds the explicit model only")
    trt = importlib.import_module("tensorrt_rtx" if options.rtx else "tensorrt")
    options.engine.write_bytes(build(trt, options))


def build(trt, options):
    """The serialized engine."""
    logger = trt.Logger(trt.Logger.VERBOSE if options.verbose else trt.Logger.WARNING)
    builder = trt.Builder(logger)
    strongly_typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    flags = 0 if options.implicit or strongly_typed is None else 1 << int(strongly_typed)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(IMPLICIT if options.implicit else EXPLICIT)):
        sys.exit("\\n".join(parser.get_error(i).desc() for i in range(parser.num_errors)))
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # for qdebug inspect, trtexec
    if options.no_tf32:
        config.clear_flag(trt.BuilderFlag.TF32)
    if options.compute_capability:
        name = "SM" + options.compute_capability.replace(".", "")
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, name), 0)
    if SHAPES:
        profile = builder.create_optimization_profile()
        for name, (minimum, optimum, maximum) in SHAPES.items():
            profile.set_shape(name, minimum, optimum, maximum)
        config.add_optimization_profile(profile)
    if options.implicit:
        if not hasattr(trt.BuilderFlag, "OBEY_PRECISION_CONSTRAINTS"):
            sys.exit(f"TensorRT {{trt.__version__}} has no implicit way: drop --implicit.")
        for flag in builder_flags(REQUESTED):
            config.set_flag(getattr(trt.BuilderFlag, flag))
        apply_plan(network, trt)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        sys.exit("TensorRT built no engine; its messages above say why.")
    return bytes(engine)


{plan_script}

if __name__ == "__main__":
    main()
'''


def render_python(source: ExportSource, path: Path) -> Rendered:
    """The script and both models.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    models = tensorrt_models(source, path, "python")
    dynamic, notes = dynamic_inputs(source.model.graph), models.notes
    if dynamic:
        notes += (f"The model has dynamic axes: edit SHAPES in {path.name}, where each is 1.",)
    script = _SCRIPT.format(
        plan=docstring(source.name),
        script=docstring(path.name),
        notes=comment(notes),
        explicit=models.explicit.name,
        shapes=_entries({name: (shape,) * 3 for name, shape in dynamic.items()}),
        **_implicit(models, path),
    )
    return Rendered({path: in_utf8(script), **models.files}, notes)


def _implicit(models: TensorRTModels, path: Path) -> dict[str, str]:
    """The parts of the script for the implicit way, which says that there is none without it."""
    if models.implicit is None or models.constraints is None:
        return {"implicit": "None", "implicit_line": "", "implicit_note": "", "plan_script": ""}
    name = docstring(path.name)
    return {
        "implicit": f"FOLDER / {models.implicit.name!r}",
        "implicit_line": f"    python {name} model.engine --implicit  "
        "tensorrt 10 only: constraints and ranges\n",
        "implicit_note": "; the implicit way is that of\n`qdebug compare --typing implicit`",
        "plan_script": plan_script(models.constraints),
    }


def _entries(mapping: Mapping[str, object]) -> str:
    lines = (f"\n    {key!r}: {value!r}," for key, value in mapping.items())
    return "".join(lines) + "\n" * bool(mapping)
