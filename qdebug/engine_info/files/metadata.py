"""The ONNX nodes of an engine's layer, from its metadata, or where a file has none, its name."""

from __future__ import annotations

import re

from qdebug.plan.parsed_network import nodes_in_metadata

# TensorRT for RTX 1.7.1 writes "[ONNX Layer: a]__gemm_from_conv1x1" where it replaced an operation.
_REPLACED = re.compile(r"\]__\w+(?=\[ONNX Layer: |[\x1e\x1f]|$)")
_QUANTIZER = re.compile(r"quant(?:ize)?_?linear", re.IGNORECASE)
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


def nodes_of_layer(metadata: str) -> tuple[str, ...]:
    """The nodes that an engine's layer computes, whatever the builder replaced them by."""
    return nodes_in_metadata(_REPLACED.sub("]", metadata.strip()))


def is_quantizer(name: str) -> bool:
    """Whether exporters name a QuantizeLinear or DequantizeLinear node so."""
    return bool(_QUANTIZER.search(name.rpartition("/")[2]))


def nodes_in_name(name: str) -> tuple[str, ...]:
    """Node names in the name of a layer of TensorRT 8 ("Conv_0 + PWN(Relu_1)"), as far as it tells.

    Layers that TensorRT added, reformatting copies and compiled kernels name no node; of a
    {ForeignNode[first...last]} the nodes between are not told, so none is given. The weights and
    the QuantizeLinear in "conv1.weight + QuantizeLinear_7 + Conv_9" are none either.
    """
    if name.startswith(_ADDED):
        return ()
    stem = re.sub(r"_myl\d+_\d+$", "", name)
    names: list[str] = []
    for side in stem.split(" || "):
        parts = _parts(side)
        names += [
            part
            for part, after in zip(parts, [*parts[1:], ""], strict=True)
            # What is quantized first inside a layer are its weights, whatever their name.
            if not (is_quantizer(part) or _weights(part, after, parts))
            if len(parts) == 1 or not _CONSTANT.search(part)
        ]
    return tuple(dict.fromkeys(names))


def nodes_of_named(name: str, layer_type: str) -> tuple[str, ...]:
    """`nodes_in_name` of a layer of that type: one that holds a constant computes none."""
    return () if layer_type == "Constant" else nodes_in_name(name)


def _weights(part: str, after: str, parts: list[str]) -> bool:
    return part is parts[0] and len(parts) > 2 and is_quantizer(after)


def _parts(side: str) -> list[str]:
    """The names in "a + PWN(b, PWN(c))", without those that TensorRT added."""
    names = []
    for part in side.split(" + "):
        inner = part.strip()
        while inner.startswith("PWN("):
            inner = inner[4:].removesuffix(")")
            if " + " not in inner and "," in inner:
                names += [_bare(p) for p in inner.split(",")]
                inner = ""
        names.append(_bare(inner))
    return [name for name in names if name and not name.startswith(_ADDED)]


def _bare(part: str) -> str:
    """A name without the brackets of a PWN(a, PWN(b)) that was split."""
    text = part.strip()
    while text.startswith("PWN("):
        text = text[4:]
    while text.endswith(")") and text.count(")") > text.count("("):
        text = text[:-1]
    return text
