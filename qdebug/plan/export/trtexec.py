"""A shell script that builds the engine with NVIDIA's command-line tools: trtexec of TensorRT 10
and 11, tensorrt_rtx of TensorRT for RTX."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from qdebug.plan.export.both_ways import both_ways
from qdebug.plan.export.implicit import Implicit, dynamic_inputs
from qdebug.plan.export.source import Rendered, Source, beside, comment, one_line
from qdebug.plan.export.trt_cache import cache_of
from qdebug.plan.export.trtexec_layers import LayersTold, layers_told, nameable_ranges
from qdebug.plan.quantize import QMAX
from qdebug.types import Precision

SUFFIX = "_trtexec.sh"
_LONGEST_ARGUMENT_BYTES = 128 * 1024  # MAX_ARG_STRLEN of Linux

_SCRIPT = """\
#!/usr/bin/env bash
# Builds an engine in the precisions of {plan} with NVIDIA's command-line tools.
#
#   {script} explicit [flags]   TensorRT 10 or 11: the explicit model, strongly typed
#   {script} rtx [flags]        TensorRT for RTX: the same model
#   {script} implicit [flags]   TensorRT 10 only: the FP32 model, constraints and ranges
#
# Flags go to the tool: --saveEngine=FILE, --skipInference, --noTF32 (else FP32 is computed in TF32
# where the GPU has it), {shapes}--minShapes=, --optShapes=, --maxShapes= for dynamic axes.
# "explicit" is what qdebug compares, and what TensorRT 11 still takes. In the implicit way a node
# that becomes several layers is constrained in the one that has its name.
{notes}
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)

join() {{ local IFS=,; printf '%s' "$*"; }}

precisions=({precisions}
)
output_types=({types}
)

way=${{1:-}}
[ $# -eq 0 ] || shift
case $way in
explicit)
    # TensorRT 10 needs the flag; 11 is always strongly typed.
    typed=()
    help=$(trtexec --help 2>&1 || true)
    [[ $help != *--stronglyTyped* ]] || typed=(--stronglyTyped)
    exec trtexec --onnx="$here"/{explicit} ${{typed[@]+"${{typed[@]}}"}} "$@"
    ;;
rtx)
    exec tensorrt_rtx --onnx="$here"/{explicit} "$@"
    ;;
implicit)
    constraints=({flags})
    if [ ${{#precisions[@]}} -gt 0 ]; then
        constraints+=(--layerPrecisions="$(join "${{precisions[@]}}")")
    fi
    if [ ${{#output_types[@]}} -gt 0 ]; then
        constraints+=(--layerOutputTypes="$(join "${{output_types[@]}}")")
    fi
    exec trtexec --onnx="$here"/{implicit} \\
        "${{constraints[@]}}" "$@"
    ;;
*)
    echo "usage: $0 explicit|rtx|implicit [flags of the tool]" >&2
    exit 2
    ;;
esac
"""


def render_trtexec(source: Source, path: Path) -> Rendered:
    """The script, the explicit model, the one of the implicit way and, for INT8, its cache.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    ways = both_ways(source, path, SUFFIX)
    cache = beside(path, ".implicit.cache", SUFFIX)
    graph, files, notes = source.bound.layers.graph, dict(ways.files), ways.form.notes
    if ways.form.int8:
        ranges = nameable_ranges(graph, ways.form.asked)
        scales = {name: amax / QMAX for name, amax in ranges.items()}
        files[cache], cache_notes = cache_of(source, scales)
        notes += cache_notes
    told = layers_told(graph, ways.form.asked)
    notes = (*notes, *told.notes, *_length_note(told), *_shape_notes(source))
    script = _SCRIPT.format(
        plan=one_line(source.name),
        script=one_line(path.name),
        shapes="and " if dynamic_inputs(source.model.graph) else "",
        notes=comment(notes),
        precisions=_array(told.precisions),
        types=_array(told.types),
        explicit=shlex.quote(ways.explicit.name),
        implicit=shlex.quote(ways.implicit.name),
        flags=" ".join(_flags(ways.form, cache)),
    )
    return Rendered({**files, path: script.encode("utf-8")}, notes)


def _flags(form: Implicit, cache: Path) -> list[str]:
    calib = f'--calib="$here"/{shlex.quote(cache.name)}'
    flags = ["--int8", calib] if form.int8 else []
    return ["--precisionConstraints=obey", *flags, *(["--fp16"] if "FP16" in form.flags else [])]


def _length_note(told: LayersTold) -> tuple[str, ...]:
    longest = sum(len(f"{name}:{kind},".encode()) for name, kind in told.precisions.items())
    if longest <= _LONGEST_ARGUMENT_BYTES:
        return ()
    return (
        f"--layerPrecisions is {longest // 1024} KiB long, but Linux takes 128 KiB in one "
        "argument: use the explicit way, or --to polygraphy or python.",
    )


def _shape_notes(source: Source) -> tuple[str, ...]:
    dynamic = dynamic_inputs(source.model.graph)
    if not dynamic:
        return ()
    shapes = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in dynamic.items())
    return (
        "The model has dynamic axes: without --minShapes, --optShapes and --maxShapes trtexec "
        f"takes 1 for each ({shapes}).",
    )


def _array(entries: Mapping[str, Precision]) -> str:
    return "".join(f"\n    {shlex.quote(f'{name}:{kind}')}" for name, kind in entries.items())
