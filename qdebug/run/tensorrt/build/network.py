"""What is changed in a parsed network before it is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qdebug.types import Skipped


def tensors_of(network: Any) -> dict[str, Any]:
    """Every `trt.ITensor` that a layer of the network computes, by name."""
    found = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        for slot in range(layer.num_outputs):
            tensor = layer.get_output(slot)
            if tensor is not None:
                found[tensor.name] = tensor
    return found


def observe(network: Any, outputs: Sequence[str], debug: Sequence[str]) -> tuple[Skipped, ...]:
    """Mark tensors as outputs and as debug tensors, by their exact names.

    (Polygraphy's ModifyNetworkOutputs takes names as wildcard patterns, and a tensor may be called
    `a[0]`; it also replaces the outputs instead of adding to them.)

    Returns:
        Those that cannot be marked, with the reason.
    """
    tensors = tensors_of(network) if outputs or debug else {}
    skipped = []
    for names, mark in ((outputs, _mark_output), (debug, _mark_debug)):
        for name in dict.fromkeys(names):
            tensor = tensors.get(name)
            if tensor is None:
                reason = "no layer of the parsed network computes it"
            else:
                reason = mark(network, tensor)
            if reason:
                skipped.append(Skipped(name, reason))
    return tuple(skipped)


def _mark_output(network: Any, tensor: Any) -> str:
    if tensor.is_network_output:
        return ""
    if tensor.is_shape_tensor:
        return "a shape tensor: it lives on the host and decides shapes"
    network.mark_output(tensor)
    return ""


def _mark_debug(network: Any, tensor: Any) -> str:
    return "" if network.mark_debug(tensor) else "TensorRT does not let it be a debug tensor"
