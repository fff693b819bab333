"""An engine's layers from the text of `polygraphy inspect model ENGINE --show layers`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from qdebug.engine_info.files.layer_info import NAMES_ONLY, NO_METADATA
from qdebug.engine_info.files.metadata import nodes_of_named
from qdebug.engine_info.files.optimization_profiles import first_profile
from qdebug.engine_info.files.text_form import parse_dims
from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource
from qdebug.engine_info.tensors import EngineTensor, canonical_dtype
from qdebug.errors import UsageError

_TITLE = "==== TensorRT Engine ===="
_LAYER = re.compile(r"\s*Layer \d+\s*\| (?P<name>.*) \[Op: (?P<kind>[^\]]*)\]\s*$")
_TENSOR = re.compile(
    r"(?P<name>[^{\s,].*?) \[(?P<fields>[^\[\]]*\([^)]*\)[^\[\]]*)\](?=,?\s*$|, |\})"
)
_ATTRIBUTE = re.compile(
    r"\s*(?P<key>Origin|Tactic|TacticName|TacticValue|Metadata) = (?P<value>.*)$"
)


def is_polygraphy_text(text: str) -> bool:
    """Whether a text is what Polygraphy prints of an engine."""
    return _TITLE in text


def read_polygraphy_text(text: str, name: str) -> EngineInfo:
    """The engine that Polygraphy describes.

    Args:
        text: what it printed.
        name: of the file, for errors.

    Raises:
        UsageError: it lists no layers.
    """
    lines = text[text.index(_TITLE) :].split("\n")
    starts = [i for i, line in enumerate(lines) if _LAYER.match(line)]
    ends = [*starts[1:], len(lines)][: len(starts)]
    listed = [_layer(lines[a:b]) for a, b in zip(starts, ends, strict=True)]
    if not listed:
        raise UsageError(
            f"{name} lists no layers of the engine",
            "Print them: polygraphy inspect model ENGINE --show layers attrs.",
            code="QD-USAGE-ENGINE-FILE",
        )
    layers, notes = first_profile(listed)
    typed = any(t.dtype for layer in layers for t in (*layer.inputs, *layer.outputs))
    return EngineInfo(
        layers,
        InfoSource.BUILD_LOG,
        tuple(_bindings(lines)),
        detailed=typed,
        notes=(*notes, NO_METADATA if typed else NAMES_ONLY),
    )


def _layer(lines: Sequence[str]) -> EngineLayer:
    head = _LAYER.match(lines[0])
    name, kind = (head["name"], head["kind"]) if head else ("", "")
    reads: list[EngineTensor] = []
    writes: list[EngineTensor] = []
    attributes: dict[str, str] = {}
    found = reads
    for line in lines[1:]:
        if not line.strip() or line.lstrip().startswith("- Profile"):
            break
        attribute = _ATTRIBUTE.match(line)
        if attribute:
            attributes[attribute["key"]] = attribute["value"].strip()
        elif "----" not in line and not attributes:
            before, arrow, after = line.partition("-> ")
            found.extend(_tensors(before))
            found = writes if arrow else found
            found.extend(_tensors(after))
    return EngineLayer(
        name=name,
        layer_type=kind,
        inputs=tuple(reads),
        outputs=tuple(writes),
        tactic=attributes.get("TacticName") or attributes.get("Tactic", ""),
        onnx_nodes=nodes_of_named(name, kind),
        named_only=True,
        origin=attributes.get("Origin", ""),
    )


def _tensors(text: str) -> Iterator[EngineTensor]:
    for found in _TENSOR.finditer(text.strip().lstrip("{").rstrip("}")):
        shape = re.search(r"shape=\(([^)]*)\)", found["fields"])
        kind = re.sub(r"shape=\([^)]*\)", "", found["fields"])
        dims = parse_dims(shape[1]) if shape else None
        yield EngineTensor(found["name"], canonical_dtype(kind), kind.strip(" ,"), dims)


def _bindings(lines: Sequence[str]) -> Iterator[EngineTensor]:
    """The tensors below "---- 1 Engine Input(s) ----" and the same of outputs."""
    inside = False
    for line in lines:
        if "----" in line:
            inside = "Engine Input" in line or "Engine Output" in line
        elif inside:
            yield from _tensors(line)
