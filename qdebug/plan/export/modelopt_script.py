"""Exclude lists for NVIDIA's Model Optimizer, as a script that calls it and as its command line.

As of nvidia-modelopt 0.47: node names are regular expressions that match from the start (re.match),
so each is escaped and anchored at its end; the model file given is rewritten in place (shape
inference), so it gets a copy.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

from qdebug.formats.registry import CAST
from qdebug.plan.export.source import (
    ExportSource,
    Rendered,
    beside,
    comment,
    docstring,
    in_utf8,
    notes_on,
    one_line,
)
from qdebug.plan.export.trt_cache import calibration_cache
from qdebug.plan.plan import Granularity
from qdebug.types import Precision

_COPY = "import onnx, sys; onnx.save(onnx.load(sys.argv[1]), sys.argv[2])"
_COPIED = "model.fp32.onnx"

_SCRIPT = '''\
"""Quantizes {model} with NVIDIA's Model Optimizer in the precisions of {plan}.

    python {script} model.int8.onnx [samples.npz]      (pip install "nvidia-modelopt[onnx]")

The ranges are the plan's, but Model Optimizer still runs the model: on random numbers, or on the
samples given (arrays by input name), which inputs that are indices need.
"""
# The same on random numbers with its command line, from this folder. It gets a copy of the model,
# because it rewrites its input:
#
#   {copy}
#   {command}
#
{notes}

import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

# Regular expressions, one for each node that stays in high precision.
NODES_TO_EXCLUDE = [{nodes}]

# Operators that the plan never runs in INT8.
OP_TYPES_TO_EXCLUDE = {ops!r}

# Names for nodes of the model that have no unique one, by position.
NODE_NAMES = {renamed!r}


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    import numpy as np
    import onnx
    from modelopt.onnx.quantization import quantize

    model = onnx.load(FOLDER / {path!r})
    for index, name in NODE_NAMES.items():
        model.graph.node[index].name = name
    with tempfile.TemporaryDirectory() as folder:
        copy = str(Path(folder) / "model.onnx")
        onnx.save(model, copy)
        quantize(
            onnx_path=copy,
            quantize_mode="int8",
            calibration_data=dict(np.load(sys.argv[2])) if sys.argv[2:] else None,
            calibration_cache_path=str(FOLDER / {cache!r}),
            calibration_eps=["cpu"],
            nodes_to_exclude=NODES_TO_EXCLUDE,
            op_types_to_exclude=OP_TYPES_TO_EXCLUDE,
            high_precision_dtype={high!r},
            output_path=sys.argv[1],
        )


if __name__ == "__main__":
    main()
'''


def render_modelopt(source: ExportSource, path: Path) -> Rendered:
    """The script and the plan's ranges as a calibration cache.

    Raises:
        PlanError: the plan has no ranges.
    """
    cache = beside(path, ".calibration.cache", "modelopt")
    data, _ = calibration_cache(source)
    nodes, lost = _excluded(source)
    ops = _excluded_ops(source)
    high = _high_precision(source)
    notes = (*source.scales.notes, *_notes(source, lost, high))
    beside_model = source.model_beside(path)
    script = _SCRIPT.format(
        model=docstring(source.model.file.path.name),
        plan=docstring(source.name),
        script=docstring(path.name),
        copy=one_line(shlex.join(["python", "-c", _COPY, beside_model, _COPIED])),
        command=one_line(command_line(_COPIED, cache.name, nodes, ops, high)),
        notes=comment(notes),
        nodes="".join(f"\n    {node!r}," for node in nodes) + "\n" * bool(nodes),
        ops=ops,
        path=beside_model,
        cache=cache.name,
        high=str(high),
        renamed=source.nodes.renamed,
    )
    return Rendered({path: in_utf8(script), cache: data}, notes)


def command_line(model: str, cache: str, nodes: list[str], ops: list[str], high: str) -> str:
    """`python -m modelopt.onnx.quantization` with the arguments of the script."""
    words = ["python", "-m", "modelopt.onnx.quantization", "--onnx_path", model]
    words += ["--quantize_mode", "int8", "--calibration_cache_path", cache]
    words += ["--calibration_eps", "cpu", "--high_precision_dtype", high]
    words += ["--nodes_to_exclude", *nodes] if nodes else []
    words += ["--op_types_to_exclude", *ops] if ops else []
    return shlex.join([*words, "--output_path", "model.int8.onnx"])


def _excluded(source: ExportSource) -> tuple[list[str], list[str]]:
    """Patterns of the nodes that stay in high precision; layers that have no node in the file."""
    nodes, precisions = source.nodes, source.bound.precisions
    pinned = [
        x.name
        for x in source.bound.layers
        if x.quantizable and precisions[x.name] is not Precision.INT8
    ]
    patterns = [re.escape(n.name) + r"\Z" for name in pinned for n in nodes.by_layer[name]]
    return patterns, [name for name in pinned if name in nodes.absent]


def _excluded_ops(source: ExportSource) -> list[str]:
    """Operators that Model Optimizer quantizes by default and qdebug does not."""
    present = {layer.op_type for layer in source.bound.layers}
    quantizable = {layer.op_type for layer in source.bound.layers if layer.quantizable}
    return sorted(present - quantizable - {"Add"})


def _high_precision(source: ExportSource) -> Precision:
    """Model Optimizer has one high precision: that of most layers that are not INT8."""
    others = [p for p in source.bound.precisions.values() if p is not Precision.INT8]
    narrow = Counter(p for p in others if p in CAST).most_common(1)
    most = [p for p, count in narrow if count > len(others) / 2]
    return most[0] if most else Precision.FP32


def _notes(source: ExportSource, lost: list[str], high: Precision) -> tuple[str, ...]:
    bound = source.bound
    others = [p for p in (*CAST, Precision.FP32) if p is not high and bound.layers_in(p)]
    per_tensor = bound.plan.weights is Granularity.PER_TENSOR
    return notes_on(
        (
            [x.name for p in others for x in bound.layers_in(p)],
            "layer",
            f"Model Optimizer has one high precision for the whole model, here {high}. {{these}} "
            f"that the plan has in {' and '.join(others)} (first '{{first}}') will run in {high} "
            "as well. The target 'onnx' keeps them.",
        ),
        (
            lost,
            "layer",
            "{these} in higher precision without a node in the model file cannot be excluded "
            "(first '{first}'). The target 'onnx' covers all layers.",
        ),
        (
            [str(index) for index in source.nodes.renamed],
            "node",
            "{these} of the model without a unique name: the script names them, the command line "
            "cannot exclude them.",
        ),
        (
            ["weights"] * per_tensor,
            "",
            "Model Optimizer always uses one scale per output channel of a weight.",
        ),
        (
            [t for t in source.scales.scales if "_scale" in t or ": " in t],
            "tensor",
            "Model Optimizer cannot read the ranges of {these} with '_scale' or ': ' in the name "
            "(first '{first}').",
        ),
    )
