"""Layers as text: one to a line of a log, in the three forms that TensorRT has written, and as
Polygraphy prints them (`polygraphy inspect model ENGINE --show layers`)."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from qdebug.engine_info.files.layer_info import engine_of, layer_of, tensor_of
from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource
from qdebug.engine_info.tensors import EngineTensor
from qdebug.errors import UsageError

LISTED = re.compile(r"Layer\(\w+\): .*, Tactic: |Name: .*, LayerType: ")
"""How a line begins that describes a layer."""

# A list is empty or ends with a tensor's brace: its dimensions hold brackets of their own.
_DETAILED = re.compile(
    r"Name: (?P<Name>.*?), LayerType: (?P<LayerType>[^,]*)"
    r"(?:, Inputs: \[(?P<Inputs>|.*?\})\])?(?:, Constants: \[(?P<Constants>|.*?\})\])?"
    r"(?:, Outputs: \[(?P<Outputs>|.*?\})\])?"
    r"(?P<rest>(?:, .*?)?)(?:, Metadata:(?P<Metadata>.*))?$"
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


def layer_in_line(line: str) -> EngineLayer | None:
    """The layer that a line of a log describes; None when it describes none.

    Known are the lines of profiling verbosity DETAILED (TensorRT 8.2 and later, TensorRT for RTX)
    and the "Layer(kind): name, Tactic: …" of other verbosities and of older versions.
    """
    found = _DETAILED.match(line)
    if found:
        told = {key: value for key, value in found.groupdict().items() if value is not None}
        fields = {**_fields(told.pop("rest")), **told}
        for key in {"Inputs", "Constants", "Outputs"} & told.keys():
            fields[key] = [
                {"Name": m["name"], "Dimensions": dims_in(m["dims"]), **_fields(m["rest"])}
                for m in _TENSOR.finditer(told[key].strip())
            ]
        return layer_of(fields, line)
    found = _BRIEF.match(line)
    if not found:
        return None
    reads, _, writes = found["io"].partition(" ->")
    fields = {"Name": found["name"], "LayerType": found["kind"], "TacticName": found["tactic"]}
    ends = {"Inputs": _brief_tensors(reads), "Outputs": _brief_tensors(writes)}
    return layer_of({**fields, **ends}, line)


def io_tensor_in_line(line: str) -> EngineTensor | None:
    """The input or output of an engine that a line of a log describes."""
    found = re.match(r"Name: (.*?), IOMode: \w+, DataType: (\w+), Dimensions: \[([^\]]*)\]", line)
    if not found:
        return None
    fields = {"Name": found[1], "DataType": found[2], "Dimensions": dims_in(found[3])}
    return tensor_of(fields, line)


def dims_in(text: str) -> list[int] | None:
    """The sizes in a list such as "1, 3, 224, 224"; None where they are none."""
    words = text.replace(" ", "").split(",")
    try:
        return [int(word) for word in words if word]
    except ValueError:
        return None


def _fields(text: str) -> dict[str, Any]:
    """Those of ", Kernel: [3,3], Weights: {"Type": "Int8", "Count": 9}, TacticName: a"."""
    found: dict[str, Any] = {}
    for part in re.split(r", (?=[\w/]+: )", text):
        key, _, value = part.partition(": ")
        found[key] = value.strip()
        if value.startswith(("[", "{")):
            with suppress(ValueError):
                found[key] = json.loads(value)
    return found


def _brief_tensors(text: str) -> list[dict[str, Any]]:
    found = []
    for tensor in _BRIEF_TENSOR.finditer(text.strip()):
        dtype, sizes = tensor["dtype"] or tensor["old"], tensor["dims"] or tensor["sizes"] or ""
        vectors = re.search(r":(\d+)", sizes)
        dims = dims_in(re.sub(r":\d+", "", sizes))
        fields = {
            "Name": tensor["name"],
            "Datatype": dtype,
            "Format": f"{dtype}, {vectors[1]} channels a vector" if vectors else dtype,
            # Dynamic axes have any negative number in TensorRT 8.
            "Dimensions": None if dims is None else [max(size, -1) for size in dims],
        }
        found.append(fields)
    return found


# ---- Polygraphy


_TITLE = "==== TensorRT Engine ===="
_LAYER = re.compile(r"^\s*Layer \d+\s*\| (.*) \[Op: ([^\]]*)\]\s*$", re.MULTILINE)
_ENDS = re.compile(r"-{4} \d+ Engine (?:Input|Output)\(s\) -{4}\n(.*?)(?=\n\s*-{4}|\Z)", re.DOTALL)
_PRINTED_TENSOR = re.compile(
    r"(?P<name>[^{\s,].*?) \[(?P<fields>[^\[\]]*\([^)]*\)[^\[\]]*)\](?=,?\s*$|, |\})", re.MULTILINE
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
    head, *listed = _LAYER.split(text[text.index(_TITLE) :].replace("\r\n", "\n"))
    if not listed:
        raise UsageError(
            f"{name} lists no layers of the engine",
            "Print them: polygraphy inspect model ENGINE --show layers attrs.",
            code="QD-USAGE-ENGINE-FILE",
        )
    layers = []
    for layer, kind, rest in zip(listed[::3], listed[1::3], listed[2::3], strict=True):
        body = re.split(r"\n\s*\n|\n\s*- Profile", rest, maxsplit=1)[0]
        operands, _, attributes = body.partition("---- Attributes ----")
        reads, _, writes = operands.partition("-> ")
        told: dict[str, Any] = dict(re.findall(r"^\s*(\w+) = (.*?)\s*$", attributes, re.MULTILINE))
        told.setdefault("TacticName", told.get("Tactic", ""))
        ends = {"Inputs": _printed_tensors(reads), "Outputs": _printed_tensors(writes)}
        layers.append(layer_of({**told, "Name": layer, "LayerType": kind, **ends}, name))
    io = [tensor_of(t, name) for block in _ENDS.findall(head) for t in _printed_tensors(block)]
    return engine_of(layers, InfoSource.POLYGRAPHY, io)


def _printed_tensors(text: str) -> list[dict[str, Any]]:
    found = []
    for tensor in _PRINTED_TENSOR.finditer(text):
        shape = re.search(r"shape=\(([^)]*)\)", tensor["fields"])
        kind = re.sub(r"shape=\([^)]*\)", "", tensor["fields"]).strip(" ,")
        dims = dims_in(shape[1]) if shape else None
        found.append({"Name": tensor["name"], "Format/Datatype": kind, "Dimensions": dims})
    return found
