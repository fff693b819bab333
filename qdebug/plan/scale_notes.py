"""Scales of a quantized model that no quantizer should have written."""

from __future__ import annotations

import numpy as np

from qdebug.network.graph import Graph
from qdebug.wording import printable


def invalid_scales(graph: Graph) -> dict[str, str]:
    """Scales that are not positive numbers, for people, by the node that reads what they dequantize
    (the DequantizeLinear where none does): "of 8 scales, 1 zero ('s')". Of blocks ONNX Runtime's
    quantizer writes negative ones, so that the code −8 stands for the value that is largest by
    magnitude, and 0 where a block is all 0."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.op_type != "DequantizeLinear" or len(node.inputs) < 2:
            continue
        scales = graph.constant(node.inputs[1])
        if scales is None:
            continue
        values = np.asarray(scales, np.float64).ravel()
        kinds = {"not finite": int(np.sum(~np.isfinite(values)))}
        if "block_size" not in graph.attributes(node):
            kinds |= {"zero": int(np.sum(values == 0)), "negative": int(np.sum(values < 0))}
        told = " and ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        if told:
            readers = graph.consumers.get(node.outputs[0], ()) or (node,)
            name = printable(repr(node.inputs[1]))
            what = f"of {values.size} scales, {told} ({name})"
            if values.size == 1:
                what = f"its scale is {told.removeprefix('1 ')} ({name})"
            found |= {reader.name: what for reader in readers}
    return found


def scale_notes(graph: Graph) -> tuple[str, ...]:
    """What to say of them: ONNX Runtime computes with them, TensorRT refuses the model ("Scale
    coefficients must all be positive")."""
    return tuple(
        f"Layer {printable(repr(reader))}: {what}. TensorRT takes only positive scales; what "
        "is all 0 needs any scale above 0."
        for reader, what in invalid_scales(graph).items()
    )
