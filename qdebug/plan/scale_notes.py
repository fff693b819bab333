"""Scales of a quantized model that no quantizer should have written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdebug.network.graph import Graph
from qdebug.wording import printable


def scale_notes(graph: Graph) -> tuple[str, ...]:
    """What to say of scales that are not positive numbers: ONNX Runtime computes with them,
    TensorRT refuses the model ("Scale coefficients must all be positive")."""
    return tuple(dict.fromkeys(_notes(graph)))


def _notes(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.op_type != "DequantizeLinear" or len(node.inputs) < 2:
            continue
        scales = graph.constant(node.inputs[1])
        if scales is None:
            continue
        values = np.asarray(scales, np.float64).ravel()
        kinds = {
            "zero": int(np.sum(values == 0)),
            "negative": int(np.sum(values < 0)),
            "not finite": int(np.sum(~np.isfinite(values))),
        }
        told = " and ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        if told:
            readers = graph.consumers.get(node.outputs[0], ())
            of = f"layer '{readers[0].name}'" if readers else f"'{node.name}'"
            name = printable(node.inputs[1])
            yield (
                f"Of {values.size} scales for {printable(of)}, {told} ('{name}'): TensorRT takes "
                "only positive scales. A channel that is all 0 needs any scale above 0."
            )
