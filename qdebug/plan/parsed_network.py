"""Apply a plan's constraints to a network that TensorRT 10 parsed.

They set layer precisions, element types and dynamic ranges. qdebug's own builds call these
functions, and exported scripts contain their source (`script_source`), so they use nothing but
Python. They were checked against NVIDIA's Python bindings, but never executed by TensorRT 10, which
takes a GPU and its library.

In all of them `trt` is the TensorRT module, `network` a parsed trt.INetworkDefinition, and
`requested` has the attributes of `constraints.Constraints`, with precisions "fp32", "fp16", "int8".
"""

from __future__ import annotations

import inspect
from typing import Any


def constrain(network: Any, trt: Any, requested: Any) -> list[str]:
    """Set the precision of layers and the types of their outputs. Returns the nodes that no layer
    was made for."""
    found: set[str] = set()
    for layer in layers_of(network):
        nodes = nodes_of(layer)
        found.update(nodes)
        precision = next(
            (requested.precisions[n] for n in nodes if n in requested.precisions), None
        )
        if precision is not None and has_choice(layer):
            pin(layer, trt, precision, requested)
    return [node for node in requested.precisions if node not in found]


def pin(layer: Any, trt: Any, precision: str, requested: Any) -> None:
    """Constrain one layer. In an INT8 layer that is the product; the activation function after it
    is fused, or TensorRT's choice."""
    types = {"fp32": trt.DataType.FLOAT, "fp16": trt.DataType.HALF, "int8": trt.DataType.INT8}
    written = [(i, t.name) for i, t in enumerate(outputs_of(layer)) if is_float(t, trt)]
    products = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY")
    if written and (precision != "int8" or layer.type.name in products):
        layer.precision = types[precision]
    for index, tensor in written:
        stored = requested.stored.get(tensor)
        if stored is None and precision == "int8" and tensor not in requested.free:
            stored = requested.fallback
        if stored is not None:
            layer.set_output_type(index, types[stored])


def ranges_in(network: Any, trt: Any, requested: Any) -> dict[str, float]:
    """amax of the plan's tensors, and of all others that the layers of an INT8 node read or write,
    by name in the network: the parser makes more layers and tensors than there are nodes."""
    layers = layers_of(network)
    made = {t.name: layer for layer in layers for t in outputs_of(layer) if t is not None}
    ranges = dict(requested.ranges)
    for layer in layers:
        node = next((n for n in nodes_of(layer) if n in requested.others), None)
        if node is None or not has_choice(layer):
            continue
        other = requested.others[node]
        inputs = [layer.get_input(i) for i in range(layer.num_inputs)]
        for tensor in inputs + outputs_of(layer):
            if is_float(tensor, trt):
                weight = is_constant(tensor.name, made)
                ranges.setdefault(
                    tensor.name, requested.weights.get(node, other) if weight else other
                )
    return ranges


def set_ranges(network: Any, ranges: dict[str, float]) -> list[str]:
    """Set dynamic ranges. Returns the tensors that the network does not have, or that refuse."""
    tensors = [network.get_input(i) for i in range(network.num_inputs)]
    tensors += [t for layer in layers_of(network) for t in outputs_of(layer) if t is not None]
    named = {tensor.name: tensor for tensor in tensors}
    return [
        name
        for name, amax in ranges.items()
        if name not in named or not named[name].set_dynamic_range(-amax, amax)
    ]


def builder_flags(requested: Any) -> list[str]:
    """Names of trt.BuilderFlag."""
    used = {*requested.precisions.values(), *requested.stored.values()}
    flags = ["FP16"] * ("fp16" in used) + ["INT8"] * ("int8" in used)
    return ["OBEY_PRECISION_CONSTRAINTS", *flags]


def nodes_of(layer: Any) -> tuple[str, ...]:
    """The ONNX nodes that a layer was made for, by its metadata or else its name."""
    return nodes_in_metadata(layer.metadata or "") or (layer.name,)


def nodes_in_metadata(text: str) -> tuple[str, ...]:
    """Node names in "[ONNX Layer: a][ONNX Layer: b]". TensorRT 10.0 writes U+001E between entries,
    later ones U+001F or, in a log, nothing."""
    entry = "[ONNX Layer: "
    names: list[str] = []
    for part in text.replace("\x1e", "\x1f").split("\x1f"):
        stripped = part.strip()
        if stripped.startswith(entry):
            names += stripped[len(entry) :].removesuffix("]").split("]" + entry)
    return tuple(dict.fromkeys(name for name in names if name))


def has_choice(layer: Any) -> bool:
    """Whether a layer's precision is a choice, rather than given by its data."""
    given = ("CONSTANT", "SHAPE", "ASSERTION", "CAST", "QUANTIZE", "DEQUANTIZE")
    return layer.type.name not in given


def is_constant(name: str, made: dict[str, Any]) -> bool:
    """Whether a tensor is a constant, in the shape that the parser gave it for broadcasting."""
    while name in made and made[name].type.name == "SHUFFLE":
        name = made[name].get_input(0).name
    return name in made and made[name].type.name == "CONSTANT"


def is_float(tensor: Any, trt: Any) -> bool:
    """Whether a tensor holds floating point; None, an output that is left out, does not."""
    return tensor is not None and tensor.dtype in (trt.DataType.FLOAT, trt.DataType.HALF)


def layers_of(network: Any) -> list[Any]:
    """Its layers, in order."""
    return [network.get_layer(i) for i in range(network.num_layers)]


def outputs_of(layer: Any) -> list[Any]:
    """What a layer writes; None for an output that is left out."""
    return [layer.get_output(i) for i in range(layer.num_outputs)]


def script_source() -> str:
    """The source of these functions, for a Python script."""
    parts = (
        *(constrain, pin, ranges_in, set_ranges, builder_flags, nodes_of, nodes_in_metadata),
        *(has_choice, is_constant, is_float, layers_of, outputs_of),
    )
    return "\n\n".join(inspect.getsource(part) for part in parts)
