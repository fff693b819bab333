"""Arguments of ONNX Runtime's quantizer (onnxruntime.quantization.quantize_static) as JSON, and a
script that calls it with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qdebug.errors import PlanError
from qdebug.formats.registry import FORMAT_OF, INT8, SCALED
from qdebug.network.graph import opset_of
from qdebug.network.layers import QUANTIZABLE_OPS, Layer
from qdebug.network.prepare import QDQ_OPSET
from qdebug.plan.export.source import (
    ExportSource,
    Rendered,
    beside,
    comment,
    docstring,
    in_utf8,
    notes_on,
)
from qdebug.plan.plan import BoundPlan, Granularity
from qdebug.plan.quantize import scale_of
from qdebug.plan.rewrite.qdq import weight_axis
from qdebug.types import Precision

_SCRIPT = '''\
"""Quantizes {model} with onnxruntime.quantization in the precisions of {plan}.

    python {script} model.int8.onnx [--calib samples.npz] [--quantize-outputs]
        [--custom-op-library operators.so]

The arguments are in {arguments}. Every scale comes from there, so no calibration samples are
needed, except with --quantize-outputs: ONNX Runtime's INT8 kernels also need the outputs of their
operators quantized. Where a Relu or Clip follows that changes no value and is done; elsewhere it is
faster and less accurate than the plan, and takes ranges from samples.
"""
{notes}

import argparse
import json
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

FOLDER = Path(__file__).resolve().parent


class Samples(CalibrationDataReader):
    """Feeds, one by one."""

    def __init__(self, feeds):
        self.feeds = iter(feeds)

    def get_next(self):
        return next(self.feeds, None)


def feeds_of(model, path):
    """The samples of an .npz (arrays by input name), or one of zeros: only its shapes matter."""
    weights = {{tensor.name for tensor in model.graph.initializer}}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if path:
        arrays = np.load(path)
        count = len(arrays[inputs[0].name])
        return [{{v.name: arrays[v.name][i : i + 1] for v in inputs}} for i in range(count)]
    zeros = {{}}
    for value in inputs:
        kind = value.type.tensor_type
        shape = [axis.dim_value or 1 for axis in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        zeros[value.name] = np.zeros(shape, dtype)
    return [zeros]


def load_operators(libraries):
    """Have the sessions that the quantizer opens load libraries of custom operators."""

    class Options(onnxruntime.SessionOptions):
        def __init__(self):
            super().__init__()
            for library in libraries:
                self.register_custom_ops_library(str(Path(library).absolute()))

    onnxruntime.SessionOptions = onnxruntime.quantization.quant_utils.SessionOptions = Options


def read_as_planned(model, given):
    """Undo what the quantizer does besides the plan: whatever else reads a tensor that a quantized
    node reads would get it rounded, too. The branches of residual Adds that the plan rounds get
    pairs of their own."""
    writers = {{name: node for node in model.graph.node for name in node.output}}
    overrides = given["extra_options"]["TensorQuantOverrides"]
    branches = {{}}
    for reader, tensor in given["rounded_branches"]:
        branches.setdefault(reader, []).append(tensor)
    nodes, pairs = [], ("QuantizeLinear", "DequantizeLinear")
    for node in model.graph.node:
        if node.op_type not in pairs and node.name not in given["nodes_to_quantize"]:
            for place, name in enumerate(node.input):
                pair = [writers.get(name)]
                pair.append(pair[0] and writers.get(pair[0].input[0]))
                if [n and n.op_type for n in pair] == ["DequantizeLinear", "QuantizeLinear"]:
                    node.input[place] = pair[1].input[0]
        for tensor in branches.get(node.name, ()):
            (entry,) = overrides[tensor]
            like = next(n for n in writers.values() if n.op_type == "QuantizeLinear")
            own = f"{{tensor}}_{{node.name}}_"
            names = [own + what for what in ("scale", "zero_point", "codes", "rounded")]
            for name, value in zip(names, (entry["scale"], entry["zero_point"])):
                model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
            for operator, source, made in zip(pairs, (tensor, names[2]), names[2:]):
                inputs = [source, *names[:2]]
                nodes.append(onnx.helper.make_node(operator, inputs, [made], domain=like.domain))
            node.input[list(node.input).index(tensor)] = names[3]
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def round_before_activations(model):
    """An operator runs in INT8 only between pairs, and the plan rounds behind Relu and Clip: the
    same pair in front of them, too, changes no value, since both keep the order of values."""
    scales = {{t.name: onnx.numpy_helper.to_array(t).tobytes() for t in model.graph.initializer}}
    writers = {{name: node for node in model.graph.node for name in node.output}}
    readers = {{}}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    nodes, outputs = [], {{value.name for value in model.graph.output}}
    for node in model.graph.node:
        nodes.append(node)
        operands = [writers.get(name) for name in node.input[:2]]
        if [n and n.op_type for n in operands] != ["DequantizeLinear"] * 2:
            continue
        activation = readers.get(node.output[0], [])
        if [n.op_type for n in activation] not in (["Relu"], ["Clip"]):
            continue
        kept = {{node.output[0], activation[0].output[0]}}
        behind = readers.get(activation[0].output[0], [])
        if not behind or outputs & kept or any(n.op_type != "QuantizeLinear" for n in behind):
            continue
        if len({{scales[n.input[1]] for n in behind}}) > 1:
            continue
        like, source = behind[0], node.output[0]
        names = [source, f"{{source}}_codes", f"{{source}}_rounded"]
        for operator, read, made in zip(("QuantizeLinear", "DequantizeLinear"), names, names[1:]):
            inputs = [read, *like.input[1:]]
            nodes.append(onnx.helper.make_node(operator, inputs, [made], domain=like.domain))
        activation[0].input[0] = names[2]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("output", type=Path, help="the file to write")
    arguments.add_argument("--calib", type=Path, help=".npz, samples on the leading axis")
    arguments.add_argument("--quantize-outputs", action="store_true")
    arguments.add_argument("--custom-op-library", action="append", metavar="FILE.so")
    options = arguments.parse_args()
    if options.quantize_outputs and not options.calib:
        arguments.error("--quantize-outputs takes ranges from samples: add --calib")
    if options.custom_op_library:
        load_operators(options.custom_op_library)
    given = json.loads((FOLDER / {arguments!r}).read_text(encoding="utf-8"))
    model = onnx.load(FOLDER / given["model"])
    for index, name in given["node_names"].items():  # nodes without a unique name
        model.graph.node[int(index)].name = name
    opset = max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    if opset < 13:  # the first with scales per channel
        model = onnx.version_converter.convert_version(model, 13)
    for node in [n for n in model.graph.node if n.op_type == "Constant"]:
        if node.attribute[0].name == "value":  # else a weight would be quantized as an activation
            tensor = node.attribute[0].t
            tensor.name = node.output[0]
            model.graph.initializer.append(tensor)
            model.graph.node.remove(node)
    extra = dict(given["extra_options"])
    weights = {{tensor.name for tensor in model.graph.initializer}}
    for name, entries in extra["TensorQuantOverrides"].items():
        for entry in entries:
            entry["scale"] = np.array(entry["scale"], np.float32)
            kind = np.int8 if name in weights else np.dtype(given["activation_dtype"])
            entry["zero_point"] = np.array(entry["zero_point"], kind)
    if options.quantize_outputs:
        extra["OpTypesToExcludeOutputQuantization"] = []
    quantize_static(
        model,
        options.output,
        Samples(feeds_of(model, options.calib)),
        op_types_to_quantize=given["op_types_to_quantize"],
        nodes_to_quantize=given["nodes_to_quantize"],
        nodes_to_exclude=given["nodes_to_exclude"],
        per_channel=given["per_channel"],
        activation_type=QuantType[given["activation_type"]],
        weight_type=QuantType[given["weight_type"]],
        extra_options=extra,
    )
    if not options.quantize_outputs:
        quantized = onnx.load(options.output)
        read_as_planned(quantized, given)
        round_before_activations(quantized)
        onnx.save(quantized, options.output)


if __name__ == "__main__":
    main()
'''


def render_ort(source: ExportSource, path: Path) -> Rendered:
    """The script and its arguments.

    Raises:
        PlanError: there is nothing to quantize, or a range is not valid.
    """
    arguments = beside(path, "_ort.json", "ort")
    data, notes = quantizer_arguments(source)
    data = {"model": source.model_beside(path), **data, "notes": list(notes)}
    script = _SCRIPT.format(
        model=docstring(source.model.file.path.name),
        plan=docstring(source.name),
        script=docstring(path.name),
        arguments=docstring(arguments.name),
        notes=comment(notes),
    )
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return Rendered(
        {
            path: in_utf8(script),
            arguments: in_utf8(text),
        },
        notes,
    )


def quantizer_arguments(source: ExportSource) -> tuple[dict[str, Any], tuple[str, ...]]:
    """quantize_static's arguments by their names, and notes.

    Raises:
        PlanError: there is nothing to quantize, or a range is not valid.
    """
    bound = source.bound
    nodes = source.nodes
    layers = bound.quantized_layers()
    kinds = dict.fromkeys(bound.precisions[layer.name] for layer in layers)
    if len(kinds) > 1:
        raise PlanError(
            f"{source.name}: the plan has layers in {' and in '.join(p.upper() for p in kinds)}, "
            "and a call of ONNX Runtime's quantizer has one type for all activations",
            "The target 'onnx' can express any plan.",
            code="QD-PLAN-EXPORT-FORMAT",
        )
    form = FORMAT_OF[next(iter(kinds), Precision.INT8)]
    quantized, excluded = (
        [
            n.name
            for x in chosen
            for n in nodes.by_layer[x.name]
            if n.node.op_type in QUANTIZABLE_OPS
        ]
        for chosen in (layers, _not_quantized(bound))
    )
    if not quantized:  # to the quantizer an empty list means every node
        raise PlanError(
            f"{source.name}: no quantized layer has a node in the model file, so there is nothing "
            "for ONNX Runtime to quantize",
            "The target 'onnx' can express any plan.",
            code="QD-PLAN-NOTHING-TO-QUANTIZE",
        )
    scales = source.scales_in(form)
    overrides: dict[str, Any] = {
        tensor: [{"scale": scale, "zero_point": 0}] for tensor, scale in scales.scales.items()
    }
    overrides |= _weight_overrides(source)
    ops = sorted(QUANTIZABLE_OPS)
    data = {
        "op_types_to_quantize": ops,
        "nodes_to_quantize": quantized,
        "nodes_to_exclude": excluded,
        "per_channel": bound.plan.weights is Granularity.PER_CHANNEL,
        "activation_type": "QInt8" if form is INT8 else "QInt16",
        "activation_dtype": form.name,
        "weight_type": "QInt8",
        "extra_options": {
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,
            "DedicatedQDQPair": True,  # otherwise a pinned node reads what an INT8 node quantized
            "OpTypesToExcludeOutputQuantization": ops,
            "QDQOpTypePerChannelSupportToAxis": {"MatMul": -1},
            "TensorQuantOverrides": overrides,
        },
        "rounded_branches": [list(branch) for branch in _branches(source)],
        "node_names": {str(index): name for index, name in nodes.renamed.items()},
    }
    return data, (*scales.notes, *_notes(source))


def _not_quantized(bound: BoundPlan) -> list[Layer]:
    """Layers that could be quantized, and are not."""
    precisions = bound.precisions
    return [x for x in bound.layers if x.quantizable and precisions[x.name] not in SCALED]


def _weight_overrides(source: ExportSource) -> dict[str, Any]:
    bound, graph = source.bound, source.bound.layers.graph
    overrides = {}
    for layer in bound.quantized_layers():
        entry = bound.plan.tensors.get(layer.weight or "")
        if layer.weight is None or entry is None or layer.weight not in source.nodes.tensors:
            continue
        scale = scale_of(entry.amax, f"weight '{layer.weight}'")
        axis = weight_axis(graph.by_name[layer.name], graph, layer.weight)
        values = [{"scale": float(s), "zero_point": 0} for s in scale.reshape(-1)]
        if scale.ndim:
            values[0]["axis"] = axis or 0
        overrides[layer.weight] = values
    return overrides


def _notes(source: ExportSource) -> tuple[str, ...]:
    bound, nodes = source.bound, source.nodes
    layers = bound.quantized_layers()
    normalized = bound.plan.weights is Granularity.PER_TENSOR and any(
        n.node.op_type == "BatchNormalization" for x in layers for n in nodes.by_layer[x.name]
    )
    return notes_on(
        (
            [layer.name for layer in bound.layers_in(Precision.FP16)],
            "layer",
            "ONNX Runtime's quantizer does not support FP16: {these} that the plan has in FP16 "
            "will run in FP32 (first '{first}'). The target 'onnx' keeps FP16.",
        ),
        (
            [x.name for x in layers if x.name in nodes.absent],
            "quantized layer",
            "{these} without a node in the model file will not be quantized (first '{first}'). The "
            "target 'onnx' covers all layers.",
        ),
        (
            [x.name for x in layers if x.weight is not None and x.weight in nodes.computed],
            "layer",
            "The weights of {these} are computed in the model file (first '{first}'): ONNX Runtime "
            "quantizes them as activations. Fold constants first.",
        ),
        (
            ["opset"] * (opset_of(source.model.file.proto) < QDQ_OPSET),
            "",
            f"The model is converted to opset {QDQ_OPSET} first, as per-channel scales require.",
        ),
        (
            ["weights"] * normalized,
            "",
            "ONNX Runtime's quantizer does not fold BatchNorm into the weights as TensorRT and "
            "qdebug do, so its per-tensor scales of these weights differ.",
        ),
        (
            [t for t in source.weight_ranges if t not in nodes.tensors],
            "folded weight",
            "The ranges of {these} are not written (first '{first}').",
        ),
    )


def _branches(source: ExportSource) -> Iterator[tuple[str, str]]:
    """A residual Add of a quantized layer, as `renamed` calls it, and the branch that it rounds."""
    for layer in source.bound.quantized_layers():
        for n in source.nodes.by_layer[layer.name]:
            if n.node.op_type == "Add":
                yield from ((n.name, t) for t in layer.quantized_inputs if t in n.node.reads)
