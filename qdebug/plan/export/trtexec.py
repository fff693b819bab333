"""A shell script that builds the engine with NVIDIA's command-line tools: trtexec of TensorRT 10
and 11, tensorrt_rtx of TensorRT for RTX.

The names in --layerPrecisions are read by trtexec's sampleOptions.cpp: entries are split at ",",
name and type at the last ":", "'" quotes, and "*" is a wildcard. Layers are named by onnx-tensorrt:
the node's name, node_of_<output> for a node without one, and with an unforeseeable number for a
name that is taken (ImporterContext::registerLayer).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from qdebug.plan.export.both_ways import BothWays, both_ways
from qdebug.plan.export.implicit import Implicit, Pin, dynamic_inputs
from qdebug.plan.export.source import Rendered, Source, comment, one_line
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
# "explicit" is what qdebug compared, and what TensorRT 11 still takes. INT8 layers are not
# constrained in the implicit way: TensorRT takes INT8 where it is fastest.
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
        constraints+=(--precisionConstraints=obey --layerPrecisions="$(join "${{precisions[@]}}")")
    fi
    if [ ${{#output_types[@]}} -gt 0 ]; then
        constraints+=(--layerOutputTypes="$(join "${{output_types[@]}}")")
    fi
    exec trtexec --onnx="$here"/{model} \\
        ${{constraints[@]+"${{constraints[@]}}"}} "$@"
    ;;
*)
    echo "usage: $0 explicit|rtx|implicit [flags of the tool]" >&2
    exit 2
    ;;
esac
"""


def render_trtexec(source: Source, path: Path) -> Rendered:
    """The script, the explicit model and, for INT8, the calibration cache.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    ways = both_ways(source, path, SUFFIX)
    said, unsaid = _sayable(ways.form, source)
    notes = (*ways.notes, *_naming_notes(said, unsaid), *_shape_notes(source))
    script = _SCRIPT.format(
        plan=one_line(source.name),
        script=one_line(path.name),
        shapes="and " if dynamic_inputs(source.model.graph) else "",
        notes=comment(notes),
        precisions=_array(f"{pin.trt_name}:{pin.precision}" for pin in said),
        types=_array(f"{pin.trt_name}:{_named_output(pin)}" for pin in said if pin.stored),
        explicit=shlex.quote(ways.explicit.name),
        model=shlex.quote(source.model_beside(path)),
        flags=" ".join(_flags(ways)),
    )
    return Rendered({**ways.files, path: script.encode("utf-8")}, notes)


def _flags(ways: BothWays) -> list[str]:
    calib = f'--calib="$here"/{shlex.quote(ways.cache.name)}'
    flags = ["--int8", calib] if ways.form.int8 else []
    return [*flags, "--fp16"] if ways.form.fp16 else flags


def _sayable(form: Implicit, source: Source) -> tuple[list[Pin], list[Pin]]:
    """Pins whose layer trtexec can be told by name, and the others."""
    # Constants become layers too, before the nodes that read them.
    taken = {t.name for t in source.model.file.proto.graph.initializer}
    first: dict[str, int] = {}
    for index, node in enumerate(source.model.file.proto.graph.node):
        first.setdefault(node.name, index)
    said: list[Pin] = []
    unsaid: list[Pin] = []
    for pin in form.pins:
        name = pin.trt_name
        readable = not set(name) & set(",'*") and name not in taken
        is_first = first.get(name, pin.node.index) == pin.node.index
        (said if readable and is_first else unsaid).append(pin)
    return said, unsaid


def _naming_notes(said: list[Pin], unsaid: list[Pin]) -> tuple[str, ...]:
    notes: list[str] = []
    if unsaid:
        names = ", ".join(repr(pin.trt_name) for pin in unsaid[:3])
        notes.append(
            f"trtexec cannot be told {len(unsaid)} of {len(said) + len(unsaid)} constraints by "
            f"layer name: {names}{', …' if len(unsaid) > 3 else ''} (a comma, quote or asterisk in "
            "the name, or a name that is taken). The explicit way and --to polygraphy or python "
            "have them all."
        )
    split = [pin for pin in said if pin.node.op_type == "Gemm"]
    if split:
        notes.append(
            "In the implicit way trtexec constrains the matrix product of a Gemm, not the addition "
            f"of its bias, which TensorRT names itself (first '{split[0].trt_name}')."
        )
    longest = sum(len(f"{pin.trt_name}:{pin.precision},".encode()) for pin in said)
    if longest > _LONGEST_ARGUMENT_BYTES:
        notes.append(
            f"--layerPrecisions is {longest // 1024} KiB long, but Linux takes 128 KiB in one "
            "argument: use the explicit way, or --to polygraphy or python."
        )
    return tuple(notes)


def _shape_notes(source: Source) -> tuple[str, ...]:
    dynamic = dynamic_inputs(source.model.graph)
    if not dynamic:
        return ()
    shapes = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in dynamic.items())
    return (
        "The model has dynamic axes: without --minShapes, --optShapes and --maxShapes trtexec "
        f"takes 1 for each ({shapes}).",
    )


def _named_output(pin: Pin) -> Precision | None:
    """The type of what the layer of that name writes; a Gemm's is inside, before its bias."""
    return pin.precision if pin.node.op_type == "Gemm" else pin.stored


def _array(entries: Iterable[str]) -> str:
    return "".join(f"\n    {shlex.quote(entry)}" for entry in entries)
