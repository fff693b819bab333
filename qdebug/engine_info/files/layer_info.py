"""An engine's layers from the inspector's JSON, which `trtexec --exportLayerInfo` writes too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qdebug.engine_info.files.metadata import nodes_in_name, nodes_of_layer, nodes_of_named
from qdebug.engine_info.files.optimization_profiles import first_profile
from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource
from qdebug.engine_info.tensors import EngineTensor, canonical_dtype, dtype_in
from qdebug.engine_info.work import WEIGHTS, with_macs
from qdebug.errors import UsageError

NAMES_ONLY = (
    "The file holds only the names of the layers: no precision, format or tactic. Build with "
    "--profilingVerbosity=detailed (trtexec) or config.profiling_verbosity = "
    "trt.ProfilingVerbosity.DETAILED, then export again."
)
NO_METADATA = (
    "The file does not say which ONNX nodes a layer computes (TensorRT before 8.6, or a profiling "
    "verbosity below DETAILED); they are taken from the layers' names, which do not tell all."
)
BRIEF = f"{NO_METADATA} A build with --profilingVerbosity=detailed tells more."


def is_layer_info(document: object) -> bool:
    """Whether a JSON document is an inspector's, of one engine or of one layer."""
    if not isinstance(document, Mapping):
        return False
    layers = document.get("Layers")
    if isinstance(layers, list):
        return all(isinstance(x, str) or (isinstance(x, Mapping) and "Name" in x) for x in layers)
    return "Name" in document and "LayerType" in document


def read_layer_info(document: Mapping[str, Any], name: str) -> EngineInfo:
    """The engine of an inspector's JSON as TensorRT 8, 10, 11 and TensorRT for RTX write it.

    Args:
        document: the parsed JSON.
        name: of the file, for errors.

    Raises:
        UsageError: the document is something else, or a layer is malformed.
    """
    if not is_layer_info(document):
        raise UsageError(
            f"{name} is not the layer information of an engine",
            "trtexec --exportLayerInfo=FILE --profilingVerbosity=detailed writes it.",
            code="QD-USAGE-ENGINE-FILE",
        )
    entries = document.get("Layers", [document])
    listed = [_layer(entry, f"{name}, layer {i}") for i, entry in enumerate(entries)]
    layers, told = first_profile(listed)
    detailed = any(layer.layer_type for layer in layers)
    notes = [*told, *([NAMES_ONLY] if layers and not detailed else [])]
    if detailed and any(layer.named_only for layer in layers):
        notes.append(NO_METADATA)
    return EngineInfo(
        layers, InfoSource.LAYER_INFO, _io(document, name), detailed, notes=tuple(notes)
    )


def layer_info_json(info: EngineInfo) -> str:
    """An engine as an inspector's JSON, which `read_layer_info` reads: for runtimes that have no
    such file of their own."""
    return json.dumps(
        {
            "Layers": [_layer_fields(layer) for layer in info.layers],
            "I/O Tensors": [_tensor_fields(tensor) for tensor in info.io],
        },
        indent=1,
        ensure_ascii=False,
    )


def _layer_fields(layer: EngineLayer) -> dict[str, Any]:
    return {
        "Name": layer.name,
        "LayerType": layer.layer_type,
        "Inputs": [_tensor_fields(t) for t in layer.inputs],
        "Outputs": [_tensor_fields(t) for t in layer.outputs],
        "Constants": [_tensor_fields(t) for t in layer.constants],
        "TacticName": layer.tactic,
        "Metadata": "\x1f".join(f"[ONNX Layer: {node}]" for node in layer.onnx_nodes),
    }


def _tensor_fields(tensor: EngineTensor) -> dict[str, Any]:
    fields = {"Name": tensor.name, "Datatype": tensor.dtype, "Format": tensor.format}
    return fields if tensor.dims is None else {**fields, "Dimensions": list(tensor.dims)}


def tensor_of(fields: Mapping[str, Any], where: str) -> EngineTensor:
    """An operand from its fields: TensorRT 8 and 10 write one "Format/Datatype", later ones two.

    Raises:
        UsageError: a field is of the wrong kind.
    """
    both = _text(fields, "Format/Datatype", where)
    dtype = _text(fields, "Datatype", where) or _text(fields, "DataType", where) or both
    return EngineTensor(
        name=_text(fields, "Name", where),
        dtype=dtype_in(dtype),
        format=_text(fields, "Format", where) or both,
        dims=_dims(fields, where),
    )


def _dims(fields: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
    dims = fields.get("Dimensions")
    if dims is not None and not (
        isinstance(dims, list) and all(isinstance(d, int) and abs(d) < _MOST for d in dims)
    ):
        raise _damaged(f"{where}: 'Dimensions' is {dims!r}, not a list of whole numbers")
    return None if dims is None else tuple(dims)


_MOST = 2**63
"""Larger whole numbers are no sizes."""


def _layer(entry: object, where: str) -> EngineLayer:
    if isinstance(entry, str):
        return EngineLayer(entry, onnx_nodes=nodes_in_name(entry), named_only=True)
    if not isinstance(entry, Mapping):
        raise _damaged(f"{where} is {type(entry).__name__}, not an object")
    name = _text(entry, "Name", where)
    told = "Metadata" in entry
    metadata = _text(entry, "Metadata", where)
    sparse = entry.get("HasSparseWeights")
    kind = _text(entry, "LayerType", where)
    layer = EngineLayer(
        name=name,
        layer_type=kind,
        inputs=_tensors(entry, "Inputs", where),
        outputs=_tensors(entry, "Outputs", where),
        constants=(*_tensors(entry, "Constants", where), *_weights(entry)),
        tactic=_text(entry, "TacticName", where) or _text(entry, "TacticValue", where),
        onnx_nodes=nodes_of_layer(metadata) if told else nodes_of_named(name, kind),
        named_only=not told,
        sparse=None if sparse is None else bool(sparse),
        origin=_text(entry, "Origin", where),
    )
    return with_macs(layer)


def _weights(entry: Mapping[str, Any]) -> tuple[EngineTensor, ...]:
    """The weights of a layer whose constants are not listed."""
    found = entry.get("Weights")
    kind = found.get("Type") if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or not kind:
        return ()
    count = found.get("Count")
    dims = (count,) if isinstance(count, int) and 0 <= count < _MOST else None
    return (EngineTensor(WEIGHTS, canonical_dtype(str(kind)), dims=dims),)


def _tensors(entry: Mapping[str, Any], key: str, where: str) -> tuple[EngineTensor, ...]:
    found = entry.get(key, [])
    if not isinstance(found, list) or not all(isinstance(x, Mapping) for x in found):
        raise _damaged(f"{where}: '{key}' is not a list of tensors")
    return tuple(tensor_of(fields, where) for fields in found)


def _io(document: Mapping[str, Any], name: str) -> tuple[EngineTensor, ...]:
    bindings = document.get("Bindings") or document.get("I/O Tensors") or []
    if not isinstance(bindings, list):
        raise _damaged(f"{name}: the inputs and outputs are {type(bindings).__name__}, not a list")
    tensors = []
    for entry in bindings:
        if isinstance(entry, str):
            tensors.append(EngineTensor(entry))
        elif isinstance(entry, Mapping):
            tensors.append(tensor_of(entry, f"{name}, I/O tensors"))
        else:
            raise _damaged(f"{name}: an input or output is {type(entry).__name__}, not an object")
    return tuple(tensors)


def _text(fields: Mapping[str, Any], key: str, where: str) -> str:
    value = fields.get(key, "")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _damaged(f"{where}: '{key}' is {value!r}, not text")
    return value


def _damaged(how: str) -> UsageError:
    return UsageError(how, code="QD-USAGE-ENGINE-FILE-DAMAGED")
