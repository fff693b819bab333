"""A shell script that builds the engine with NVIDIA's command-line tools.

These are trtexec of TensorRT 10 and 11, and tensorrt_rtx of TensorRT for RTX. For the implicit way
trtexec is told constraints by the names of layers, before the model is parsed:

- --layerPrecisions and --layerOutputTypes are parsed by trtexec's sampleOptions.cpp: entries are
  split at ",", name and type at the last ":", "'" quotes, and "*" is a wildcard.
- Layers are named by onnx-tensorrt (ImporterContext::registerLayer): a constant after its
  initializer, the first layer of a node after the node. Any other layer, and one whose name is
  taken, gets a number that cannot be known beforehand. The single output of a layer that is not
  an output of the node is named after the layer, with "_output".
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from qdebug.formats.registry import INT8
from qdebug.network.graph import Graph, Node
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.plan.constraints import Constraints
from qdebug.plan.export.models import dynamic_inputs, tensorrt_models
from qdebug.plan.export.source import (
    ExportSource,
    Rendered,
    beside,
    comment,
    notes_on,
    one_line,
)
from qdebug.plan.export.trt_cache import cache_of
from qdebug.types import Precision

_NO_CHOICE = frozenset({"Cast", "Shape", "Constant"})  # their data decide their precision
_LONGEST_ARGUMENT_BYTES = 128 * 1024  # MAX_ARG_STRLEN of Linux

_SCRIPT = """\
#!/usr/bin/env bash
# Builds an engine in the precisions of {plan} with NVIDIA's command-line tools.
#
#   {script} explicit [flags]   TensorRT 10 or 11: the explicit model, strongly typed
#   {script} rtx [flags]        TensorRT for RTX: the same model{implicit_line}
#
# Flags are passed to the tool: --saveEngine=FILE, --skipInference, --noTF32 (otherwise FP32 is
# computed in TF32 on GPUs that support it), {shapes}--minShapes=, --optShapes=, --maxShapes= for
# dynamic axes. "explicit" is what qdebug compares, and all that TensorRT 11 takes.{implicit_note}
{notes}
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
{told}
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
{implicit_case}*)
    echo "usage: $0 explicit|rtx{implicit_word} [flags of the tool]" >&2
    exit 2
    ;;
esac
"""


_TOLD = """
join() {{ local IFS=,; printf '%s' "$*"; }}

precisions=({precisions}
)
output_types=({types}
)
"""

_IMPLICIT_CASE = """\
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
"""


def render_trtexec(source: ExportSource, path: Path) -> Rendered:
    """The script, its models and, for INT8, the cache of the implicit one.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    models = tensorrt_models(source, path, "trtexec")
    files, notes = dict(models.files), models.notes
    names = ("implicit_line", "implicit_note", "told", "implicit_case", "implicit_word")
    parts = dict.fromkeys(names, "")
    if models.implicit is not None and models.constraints is not None:
        graph, flags = source.bound.layers.graph, ["--precisionConstraints=obey"]
        if "INT8" in models.flags:
            cache = beside(path, ".implicit.cache", "trtexec")
            ranges = _nameable_ranges(graph, models.constraints)
            scales = {name: amax / INT8.largest for name, amax in ranges.items()}
            files[cache], cache_notes = cache_of(source, scales)
            notes += cache_notes
            flags += ["--int8", f'--calib="$here"/{shlex.quote(cache.name)}']
        flags += ["--fp16"] * ("FP16" in models.flags)
        precisions, types, untold = _told(graph, models.constraints)
        notes += untold
        parts = {
            "implicit_line": f"\n#   {one_line(path.name)} implicit [flags]   "
            "TensorRT 10 only: the FP32 model, constraints and ranges",
            "implicit_note": " In the\n# implicit way, a node that becomes several layers is "
            "constrained in the layer of its name.",
            "told": _TOLD.format(precisions=_array(precisions), types=_array(types)),
            "implicit_case": _IMPLICIT_CASE.format(
                flags=" ".join(flags), implicit=shlex.quote(models.implicit.name)
            ),
            "implicit_word": "|implicit",
        }
    dynamic = dynamic_inputs(source.model.graph)
    if dynamic:
        shapes = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in dynamic.items())
        notes += (
            "The model has dynamic axes: without --minShapes, --optShapes and --maxShapes trtexec "
            f"uses 1 for each ({shapes}).",
        )
    script = _SCRIPT.format(
        plan=one_line(source.name),
        script=one_line(path.name),
        shapes="and " if dynamic else "",
        notes=comment(notes),
        explicit=shlex.quote(models.explicit.name),
        **parts,
    )
    return Rendered({path: script.encode("utf-8", "surrogateescape"), **files}, notes)


def _array(entries: Mapping[str, Precision]) -> str:
    return "".join(f"\n    {shlex.quote(f'{name}:{kind}')}" for name, kind in entries.items())


def _told(
    graph: Graph, constraints: Constraints
) -> tuple[dict[str, Precision], dict[str, Precision], tuple[str, ...]]:
    """The constraints of the layers that are named after a node, as --layerPrecisions and
    --layerOutputTypes take them, and notes on those that trtexec cannot be told."""
    precisions: dict[str, Precision] = {}
    types: dict[str, Precision] = {}
    untold: dict[str, list[str]] = {reason: [] for reason in _UNTOLD}
    for node in graph.nodes:
        written = [t for t in node.outputs if t and graph.is_float(t)]
        precision = constraints.precisions.get(node.name)
        if precision is None or not written or node.op_type in _NO_CHOICE:
            continue
        product = node.op_type in QUANTIZABLE_OPS
        if set(node.name) & set(",'*") or node.name in graph.initializers:
            untold["name"].append(node.name)
            continue
        if precision is Precision.INT8 and product and not _has_all_ranges(graph, node):
            untold["weights"].append(node.name)
            continue
        if product or precision is not Precision.INT8:
            precisions[node.name] = precision
        if len(node.outputs) > 1:
            untold["outputs"].append(node.name)
            continue
        inside = node.op_type == "Gemm"  # the layer of its name writes the product, less the bias
        untold["bias"] += [node.name] * inside
        stored = _stored(constraints, precision, "" if inside else written[0])
        if stored is not None:
            types[node.name] = stored
    facts = ((untold[reason], *told) for reason, told in _UNTOLD.items())
    notes = list(notes_on(*facts))
    longest = sum(len(f"{name}:{kind},".encode()) for name, kind in precisions.items())
    if longest > _LONGEST_ARGUMENT_BYTES:
        notes.append(
            f"--layerPrecisions is {longest // 1024} KiB long, but Linux takes 128 KiB in one "
            "argument: build the explicit model, or export to 'polygraphy' or 'python'."
        )
    return precisions, types, tuple(notes)


_UNTOLD: Mapping[str, tuple[str, str]] = {
    "name": (
        "layer",
        "trtexec cannot be told the precision of {these} by name (first '{first}'), which contains "
        "a comma, quote or asterisk, or is also a constant's. The explicit model and the targets "
        "'polygraphy' and 'python' cover all layers.",
    ),
    "weights": (
        "MatMul",
        "A calibration cache cannot name the weights of {these} that TensorRT broadcasts (first "
        "'{first}'). Without a range TensorRT runs these in higher precision, so the implicit way "
        "does not constrain them to INT8. The targets 'polygraphy' and 'python' set those ranges "
        "as well.",
    ),
    "outputs": (
        "layer",
        "trtexec is not told the output types of {these} with several outputs (first '{first}').",
    ),
    "bias": (
        "Gemm",
        "In the implicit way trtexec constrains the matrix product of {these}, but not the "
        "addition of the bias, whose layer TensorRT names itself (first '{first}').",
    ),
}
"""What trtexec cannot be told of some layers: what they are, and why."""


def _stored(constraints: Constraints, precision: Precision, tensor: str) -> Precision | None:
    """The element type of an output, as `parsed_network.pin` sets it; None leaves it open."""
    if tensor in constraints.stored:
        return constraints.stored[tensor]
    fixed = precision is Precision.INT8 and tensor not in constraints.free
    return constraints.fallback if fixed else None


def _nameable_ranges(graph: Graph, constraints: Constraints) -> dict[str, float]:
    """amax of all tensors whose names are known before the model is parsed: all that
    `parsed_network.ranges_in` finds, except constants that the parser broadcasts."""
    ranges = dict(constraints.ranges)
    for node in graph.nodes:
        if node.name not in constraints.others:
            continue
        other = constraints.others[node.name]
        for tensor in (*node.inputs, *node.outputs):
            if tensor and tensor not in graph.initializers and graph.is_float(tensor):
                ranges.setdefault(tensor, other)
        if node.op_type == "Gemm":
            ranges.setdefault(f"{node.name}_output", other)
        if node.op_type in ("Gemm", "MatMul") and _has_all_ranges(graph, node):
            weights = [t for t in node.inputs[:2] if t in graph.initializers]
            amax = constraints.weights.get(node.name, other)
            ranges |= {f"{t}_output": ranges.get(f"{t}_output", amax) for t in weights}
    return ranges


def _has_all_ranges(graph: Graph, node: Node) -> bool:
    """Whether `_nameable_ranges` has everything that a product reads: the parser broadcasts the
    operand of lower rank, under a name that cannot be known."""
    if node.op_type != "MatMul":
        return True
    one, other = (
        graph.shapes.get(t, getattr(graph.constant(t), "shape", None)) for t in node.inputs[:2]
    )
    return one is not None and other is not None and len(one) == len(other)
