"""The ONNX nodes of an engine's layer, from its metadata, or where a file has none, its name."""

from __future__ import annotations

import re

from qdebug.engine_info.layers import is_quantizer
from qdebug.plan.parsed_network import nodes_in_metadata

# TensorRT for RTX 1.7.1 writes "[ONNX Layer: a]__gemm_from_conv1x1" where it replaced an operation.
_REPLACED = re.compile(r"\]__\w+(?=\[ONNX Layer: |[\x1e\x1f]|$)")
_CONSTANT = re.compile(
    r"[./_](?:weight|bias|kernel)s?$"
    r"|ReadVariableOp(?::\d+)?$|^onnx::\w+$"
)
# Layers that TensorRT adds beside those of the nodes.
_ADDED = (
    *("Reformatting CopyNode", "{ForeignNode[", "__my", "copied_", "(Unnamed Layer*", "ONNXTRT_"),
    *("reshape_after_", "reshape_before_", "squeeze_after_", "unsqueeze_node_after_"),
    *("transpose_before_", "transpose_after_"),
    "shuffle_between_",
)


def without_profile(name: str) -> str:
    """A name without the "[profile 1]" of layers and tensors of another optimization profile."""
    return re.sub(r" \[profile \d+\]", "", name)


def nodes_of_layer(metadata: str) -> tuple[str, ...]:
    """The nodes that an engine's layer computes, whatever the builder replaced them by."""
    return nodes_in_metadata(_REPLACED.sub("]", metadata.strip()))


def nodes_in_name(name: str, layer_type: str = "") -> tuple[str, ...]:
    """Node names in the name of a layer of TensorRT 8 ("Conv_0 + PWN(Relu_1)"), as far as it tells.

    Layers that TensorRT added, reformatting copies, compiled kernels and constants name no node; of
    a {ForeignNode[first...last]} the nodes between are not told, so none is given. The weights and
    the QuantizeLinear in "conv1.weight + QuantizeLinear_7 + Conv_9" are none either.
    """
    if layer_type == "Constant" or name.startswith(_ADDED):
        return ()
    names: dict[str, None] = {}
    for side in re.sub(r"_myl\d+_\d+$", "", name).split(" || "):
        parts = [bare for part in side.split(" + ") for bare in map(_bare, _listed(part))]
        parts = [part for part in parts if part and not part.startswith(_ADDED)]
        # What is quantized first inside a layer are its weights, whatever their name.
        weights = parts[:1] if len(parts) > 2 and is_quantizer(parts[1]) else []
        for part in parts:
            constant = part in weights or (len(parts) > 1 and _CONSTANT.search(part))
            if not constant and not is_quantizer(part):
                names[part] = None
    return tuple(names)


def _listed(part: str) -> list[str]:
    return part.split(",") if part.lstrip().startswith("PWN(") else [part]


def _bare(part: str) -> str:
    """A name without the brackets of a PWN(a, PWN(b)) that was split."""
    text = re.sub(r"^(?:PWN\()+", "", part.strip())
    while text.endswith(")") and text.count(")") > text.count("("):
        text = text[:-1]
    return text
