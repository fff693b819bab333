"""Layers as TensorRT writes them into a log, one to a line, in the three forms it has had."""

from __future__ import annotations

import re

from qdebug.engine_info.files.metadata import nodes_of_layer, nodes_of_named
from qdebug.engine_info.layers import EngineLayer
from qdebug.engine_info.tensors import EngineTensor, canonical_dtype, dtype_in
from qdebug.engine_info.work import WEIGHTS, with_macs

# A list is empty or ends with a tensor's brace: its dimensions hold brackets of their own.
_DETAILED = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<kind>[^,]*)"
    r"(?:, Inputs: \[(?P<inputs>|.*?\})\])?(?:, Constants: \[(?P<constants>|.*?\})\])?"
    r"(?:, Outputs: \[(?P<outputs>|.*?\})\])?"
    r"(?P<rest>(?:, .*?)?)(?:, Metadata:(?P<metadata>.*))?$"
)
_TENSOR = re.compile(
    r"\{ Name: (?P<name>.*?)(?:, Location: \w+)?, Dimensions: \[(?P<dims>[^\]]*)\]"
    r"(?P<rest>.*?) ?\}(?=, \{ Name: |$)"
)
_BRIEF = re.compile(
    r"Layer\((?P<kind>[^)]*)\): (?P<name>.*), Tactic: (?P<tactic>[^,]*),(?P<io>.*)$"
)
# "a[Int8(1,3,512,768)]" until TensorRT 8.4, then "a (Int8[1,64:32,56,56])": 32 channels a vector.
_BRIEF_TENSOR = re.compile(
    r"(?P<name>.+?)(?:\[(?P<old>\w+)\((?P<sizes>[-\d:,]*)\)\]"
    r"| \((?P<dtype>\w+)\[(?P<dims>[-\d:,]*)\]\))(?:, |$)"
)


def parse_layer(line: str) -> EngineLayer | None:
    """The layer that a line of a log describes; None when it describes none.

    Known are the lines of profiling verbosity DETAILED (TensorRT 8.2 and later, TensorRT for RTX)
    and the "Layer(kind): name, Tactic: …" of other verbosities and of older versions.
    """
    found = _DETAILED.match(line)
    if found:
        return _detailed(found)
    found = _BRIEF.match(line)
    return _brief(found) if found else None


def parse_io_tensor(line: str) -> EngineTensor | None:
    """The input or output of an engine that a line of a log describes."""
    found = re.match(r"Name: (.*?), IOMode: \w+, DataType: (\w+), Dimensions: \[([^\]]*)\]", line)
    if not found:
        return None
    return EngineTensor(found[1], canonical_dtype(found[2]), dims=parse_dims(found[3]))


def _detailed(found: re.Match[str]) -> EngineLayer:
    rest, metadata, name, kind = found["rest"], found["metadata"], found["name"], found["kind"]
    weights = re.search(r', Weights: \{"Type": "(\w+)"(?:, "Count": (\d+))?', rest)
    sparse = re.search(r", HasSparseWeights: (\d)", rest)
    constants = _tensors(found["constants"])
    if weights:
        dims = (int(weights[2]),) if weights[2] else None
        constants += (EngineTensor(WEIGHTS, canonical_dtype(weights[1]), dims=dims),)
    layer = EngineLayer(
        name=name,
        layer_type=kind,
        inputs=_tensors(found["inputs"]),
        outputs=_tensors(found["outputs"]),
        constants=constants,
        tactic=_field(rest, "TacticName") or _field(rest, "TacticValue"),
        onnx_nodes=nodes_of_named(name, kind) if metadata is None else nodes_of_layer(metadata),
        named_only=metadata is None,
        sparse=None if sparse is None else sparse[1] != "0",
        origin=_field(rest, "Origin"),
    )
    return with_macs(layer)


def _field(text: str, key: str) -> str:
    found = re.search(rf", {key}: ([^,]*)", text)
    return found[1].strip() if found else ""


def _tensors(text: str | None) -> tuple[EngineTensor, ...]:
    found = []
    for match in _TENSOR.finditer((text or "").strip()):
        rest = match["rest"]
        both = re.search(r", Format/Datatype: (.*)", rest)
        dtype = re.search(r", Datatype: (\w+)", rest)
        layout = re.search(r", Format: (.*)", rest)
        word = dtype[1] if dtype else both[1] if both else ""
        found.append(
            EngineTensor(
                name=match["name"],
                dtype=dtype_in(word),
                format=layout[1] if layout else both[1] if both else "",
                dims=parse_dims(match["dims"]),
            )
        )
    return tuple(found)


def _brief(found: re.Match[str]) -> EngineLayer:
    reads, arrow, writes = f"{found['io']} ".rpartition(" -> ")
    if not arrow:
        reads, writes = found["io"], ""
    return EngineLayer(
        name=found["name"],
        layer_type=found["kind"],
        inputs=_brief_tensors(reads),
        outputs=_brief_tensors(writes),
        tactic=found["tactic"].strip(),
        onnx_nodes=nodes_of_named(found["name"], found["kind"]),
        named_only=True,
    )


def _brief_tensors(text: str) -> tuple[EngineTensor, ...]:
    return tuple(_brief_tensor(found) for found in _BRIEF_TENSOR.finditer(text.strip()))


def _brief_tensor(found: re.Match[str]) -> EngineTensor:
    dtype, sizes = found["dtype"] or found["old"], found["dims"] or found["sizes"] or ""
    vectors = re.search(r":(\d+)", sizes)
    layout = f"{dtype}, {vectors[1]} channels a vector" if vectors else dtype
    dims = parse_dims(re.sub(r":\d+", "", sizes))
    if dims is not None:  # dynamic axes have any negative number in TensorRT 8
        dims = tuple(max(size, -1) for size in dims)
    return EngineTensor(found["name"], canonical_dtype(dtype), layout, dims)


def parse_dims(text: str) -> tuple[int, ...] | None:
    """The sizes in a list such as "1, 3, 224, 224"; None where they are none."""
    words = text.replace(" ", "").split(",")
    try:
        return tuple(int(word) for word in words if word)
    except ValueError:
        return None
