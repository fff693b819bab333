"""The ONNX nodes of an engine's layer, from its metadata, or where a file has none, its name."""

from __future__ import annotations

import re

from qdebug.plan.parsed_network import nodes_in_metadata

# TensorRT for RTX 1.7.1 writes "[ONNX Layer: a]__gemm_from_conv1x1" where it replaced an operation.
_REPLACED = re.compile(r"\]__\w+(?=\[ONNX Layer: |[\x1e\x1f]|$)")


def nodes_of_layer(metadata: str) -> tuple[str, ...]:
    """The nodes that an engine's layer computes, whatever the builder replaced them by."""
    return nodes_in_metadata(_REPLACED.sub("]", metadata.strip()))


def nodes_in_name(name: str) -> tuple[str, ...]:
    """Node names in the name of a layer of TensorRT 8 ("Conv_0 + PWN(Relu_1)"), as far as it tells.

    Layers that TensorRT added, reformatting copies and compiled kernels name no node; of a
    {ForeignNode[first...last]} the nodes between are not told, so none is given.
    """
    if name.startswith(("Reformatting CopyNode", "{ForeignNode[", "__my", "copied_")):
        return ()
    stem = re.sub(r"_myl\d+_\d+$", "", name)
    names = []
    for part in re.split(r" \+ | \|\| ", stem):
        inner = part.strip()
        while inner.startswith("PWN("):
            inner = inner[4:].removesuffix(")")
            if " + " not in inner and "," in inner:
                names += [_bare(p) for p in inner.split(",")]
                inner = ""
        bare = _bare(inner)
        if bare and not bare.startswith("(Unnamed Layer*"):
            names.append(bare)
    return tuple(dict.fromkeys(n for n in names if n))


def _bare(part: str) -> str:
    """A name without the brackets of a PWN(a, PWN(b)) that was split."""
    text = part.strip()
    while text.startswith("PWN("):
        text = text[4:]
    while text.endswith(")") and text.count(")") > text.count("("):
        text = text[:-1]
    return text
