"""An engine's layers from the fields of TensorRT's inspector, which `trtexec --exportLayerInfo`
writes as JSON and logs hold as text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from qdebug.engine_info.files.node_names import nodes_in_name, nodes_of_layer, without_profile
from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource, Role
from qdebug.engine_info.tensors import EngineTensor, dtype_in, size_of
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
WEIGHTS = "Weights"
"""The name of the constant that stands for a layer's weights where the file only counts them."""
_MOST = 2**63
"""Larger whole numbers are no sizes."""

T = TypeVar("T", str, list[Any])


def is_layer_info(document: object) -> bool:
    """Whether a JSON document is an inspector's, of one engine or of one layer."""
    if not isinstance(document, Mapping):
        return False
    layers = document.get("Layers")
    if isinstance(layers, list):
        return all(isinstance(x, str) or (isinstance(x, Mapping) and "Name" in x) for x in layers)
    return "Name" in document and "LayerType" in document


def read_layer_info(document: Any, name: str) -> EngineInfo:
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
    layers = [layer_of(entry, f"{name}, layer {i}") for i, entry in enumerate(entries)]
    key = "Bindings" if document.get("Bindings") else "I/O Tensors"
    bindings = _get(document, key, list, name)
    io = [
        tensor_of({"Name": x} if isinstance(x, str) else x, f"{name}, {key}[{i}]")
        for i, x in enumerate(bindings)
    ]
    return engine_of(layers, InfoSource.LAYER_INFO, io)


def engine_of(
    listed: Sequence[EngineLayer], source: InfoSource, io: Sequence[EngineTensor]
) -> EngineInfo:
    """The engine of the layers that a file lists, and what it does not say of them."""
    layers, notes = _first_profile(listed)
    detailed = any(t.dtype or t.format for x in layers for t in (*x.inputs, *x.outputs))
    if layers and not detailed:
        notes += (NAMES_ONLY,)
    elif any(layer.named_only for layer in layers):
        notes += (NO_METADATA,)
    return EngineInfo(layers, source, tuple(io), detailed, notes=notes)


def layer_of(fields: object, where: str) -> EngineLayer:
    """The layer of an inspector's fields, or of a name alone.

    Args:
        where: it stands, for errors.

    Raises:
        UsageError: a field is of the wrong kind.
    """
    if isinstance(fields, str):
        return EngineLayer(fields, onnx_nodes=nodes_in_name(fields), named_only=True)
    fields = _object(fields, where)
    name, kind = _get(fields, "Name", str, where), _get(fields, "LayerType", str, where)
    inputs, outputs, constants = (
        tuple(tensor_of(t, f"{where}: '{key}'") for t in _get(fields, key, list, where))
        for key in ("Inputs", "Outputs", "Constants")
    )
    told, sparse = "Metadata" in fields, fields.get("HasSparseWeights")
    metadata = _get(fields, "Metadata", str, where)
    layer = EngineLayer(
        name=name,
        layer_type=kind,
        inputs=inputs,
        outputs=outputs,
        constants=constants + _weights(fields),
        tactic=_get(fields, "TacticName", str, where) or _get(fields, "TacticValue", str, where),
        onnx_nodes=nodes_of_layer(metadata) if told else nodes_in_name(name, kind),
        named_only=not told,
        sparse=None if sparse is None else sparse not in (0, "0"),
        origin=_get(fields, "Origin", str, where),
    )
    return with_macs(layer, _before_pooling(fields, layer))


def tensor_of(fields: object, where: str) -> EngineTensor:
    """An operand from its fields: TensorRT 8 and 10 write one "Format/Datatype", later ones two.

    Raises:
        UsageError: a field is of the wrong kind.
    """
    fields = _object(fields, where)
    both, *types = (
        _get(fields, key, str, where) for key in ("Format/Datatype", "Datatype", "DataType")
    )
    dims = fields.get("Dimensions")
    if dims is not None and not _is_sizes(dims):
        damaged(f"{where}: 'Dimensions' is {dims!r}, not a list of whole numbers")
    return EngineTensor(
        name=_get(fields, "Name", str, where),
        dtype=dtype_in(next(filter(None, types), both)),
        format=_get(fields, "Format", str, where) or both,
        dims=None if dims is None else tuple(dims),
    )


def damaged(how: str) -> NoReturn:
    """Refuse a file whose fields are not those of its kind."""
    raise UsageError(how, code="QD-USAGE-ENGINE-FILE-DAMAGED")


def layer_info_json(info: EngineInfo) -> str:
    """An engine as an inspector's JSON, which `read_layer_info` reads: for runtimes that have no
    such file of their own."""
    layers = [
        {
            "Name": layer.name,
            "LayerType": layer.layer_type,
            "Inputs": [_tensor_fields(t) for t in layer.inputs],
            "Outputs": [_tensor_fields(t) for t in layer.outputs],
            "Constants": [_tensor_fields(t) for t in layer.constants],
            "TacticName": layer.tactic,
            "Metadata": "\x1f".join(f"[ONNX Layer: {node}]" for node in layer.onnx_nodes),
        }
        for layer in info.layers
    ]
    document = {"Layers": layers, "I/O Tensors": [_tensor_fields(tensor) for tensor in info.io]}
    return json.dumps(document, indent=1, ensure_ascii=False)


def _tensor_fields(tensor: EngineTensor) -> dict[str, Any]:
    fields = {"Name": tensor.name, "Datatype": tensor.dtype, "Format": tensor.format}
    return fields if tensor.dims is None else {**fields, "Dimensions": list(tensor.dims)}


def _weights(fields: Mapping[str, Any]) -> tuple[EngineTensor, ...]:
    """The weights of a layer whose constants are not listed; of one that pools what it convolves,
    the convolution's."""
    found = fields.get("Weights") or fields.get("ConvWeights")
    if not isinstance(found, Mapping) or not found.get("Type"):
        return ()
    count: Any = [found.get("Count")]
    dims = tuple(count) if _is_sizes(count) and count[0] >= 0 else None
    return (EngineTensor(WEIGHTS, dtype_in(str(found["Type"])), dims=dims),)


def _before_pooling(fields: Mapping[str, Any], layer: EngineLayer) -> tuple[int, ...] | None:
    """The size of what a layer convolves and then pools (ConvActPool), which it does not write;
    None for any other layer."""
    keys = ("Kernel", "Stride", "PrePadding", "PostPadding", "Dilation")
    found: list[Any] = [fields.get(f"Conv{key}") for key in keys]
    dims = layer.inputs[0].dims if layer.inputs else None
    if dims is None or not all(map(_is_sizes, found)) or 0 in found[1]:
        return None
    return tuple(
        (size + before + after - dilation * (kernel - 1) - 1) // stride + 1
        for size, (kernel, stride, before, after, dilation) in zip(
            dims[2:], zip(*found, strict=False), strict=False
        )
    )


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(x, int) and abs(x) < _MOST for x in value)


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        damaged(f"{where} is {type(value).__name__}, not an object")
    return value


def _get(fields: Mapping[str, Any], key: str, kind: type[T], where: str) -> T:
    value = fields.get(key)
    if value is not None and not isinstance(value, kind):
        damaged(f"{where}: '{key}' is {value!r}, not {'text' if kind is str else 'a list'}")
    return kind() if value is None else value


# ---- optimization profiles


_PROFILE = re.compile(r" \[profile (\d+)\]")
_COMPILED = re.compile(r"_myl(\d+)_\d+$")


def _first_profile(
    listed: Sequence[EngineLayer],
) -> tuple[tuple[EngineLayer, ...], tuple[str, ...]]:
    """The layers of the first optimization profile, and a note on the others, for each of which an
    engine lists its layers again.

    Those of others bear "[profile 1]" in their own name or in that of a tensor. A compiled kernel
    without belongs to the profile of the others of its number.
    """
    names = [(x.name, *(t.name for t in (*x.inputs, *x.outputs))) for x in listed]
    marks = [max(map(int, _PROFILE.findall("\n".join(found))), default=0) for found in names]
    if not any(marks):
        return tuple(listed), ()
    numbers = [next(iter(_COMPILED.findall(layer.name)), "") for layer in listed]
    graphs = {number: mark for number, mark in zip(numbers, marks, strict=True) if number and mark}
    found: dict[int, list[EngineLayer]] = {}
    for layer, mark, number in zip(listed, marks, numbers, strict=True):
        found.setdefault(mark or graphs.get(number, 0), []).append(_unmarked(layer))
    first, *others = ([*map(_likeness, layers)] for _, layers in sorted(found.items()))
    differing = sum(first != other for other in others)
    told = f"{differing} of the others differ" if differing else "all are alike"
    return tuple(found[min(found)]), (
        f"The engine has {len(found)} optimization profiles; the layers are those of the first "
        f"({told}).",
    )


def _likeness(layer: EngineLayer) -> tuple[str, ...]:
    types = (t.dtype for t in (*layer.inputs, *layer.outputs))
    return (_COMPILED.sub("", layer.name), layer.layer_type, layer.tactic, *types)


def _unmarked(layer: EngineLayer) -> EngineLayer:
    inputs, outputs = (
        tuple(replace(t, name=without_profile(t.name)) for t in tensors)
        for tensors in (layer.inputs, layer.outputs)
    )
    return replace(layer, name=without_profile(layer.name), inputs=inputs, outputs=outputs)


# ---- work


def with_macs(layer: EngineLayer, convolved: Sequence[int] | None = None) -> EngineLayer:
    """`layer` with its multiply-accumulates of one execution, where its operands tell them.

    Args:
        convolved: the size of what a convolution computes, where the layer pools it.
    """
    found = _macs(layer, convolved) if layer.role is Role.MATRIX else None
    return layer if found is None else replace(layer, macs=found)


def _macs(layer: EngineLayer, convolved: Sequence[int] | None) -> float | None:
    data, out = (tensors[0].dims if tensors else None for tensors in (layer.inputs, layer.outputs))
    if data is None or out is None or any(d < 0 for d in (*data, *out)):
        return None
    kind = layer.layer_type.lower()
    if "conv" not in kind and "correlation" not in kind:
        return _of_gemm(data, [t.dims for t in (*layer.constants, *layer.inputs[1:])], out)
    # Each weight is used once at each place of the output, or of the input of a transposed one.
    count = next((size_of(t.dims) for t in layer.constants if t.name == WEIGHTS), None)
    dims = data if "deconv" in kind else out
    if count is None or len(dims) < 3:
        return None
    return count * dims[0] * math.prod(convolved or dims[2:])


def _of_gemm(
    data: Sequence[int], others: Sequence[tuple[int, ...] | None], out: Sequence[int]
) -> float | None:
    """Of [batch, M, K] × [batch, K, N], either of which may be transposed or without a batch: with
    A, B and Y the numbers of elements, √(A·B·Y) is M·K·N of all batches, or that times √batch
    where both have one. Weights that are not listed are taken to be K × N."""
    result = math.prod(out)
    if not data or not result:
        return None
    batch = math.prod(out[:-2])
    for other in others:
        if other is None or len(other) < 2 or -1 in other:
            continue
        both = batch if math.prod(data[:-2]) == batch == math.prod(other[:-2]) else 1
        found = math.sqrt(math.prod(data) * math.prod(other) * result / both)
        if found / result in data[-2:]:
            return found
    counted = next((x[0] for x in others if x is not None and len(x) == 1), None)
    if counted is not None and counted / out[-1] in data[-2:]:
        return float(result * counted / out[-1])
    alone = not any(x is None or len(x) > 1 for x in others)
    return float(result * data[-1]) if alone and data[:-1] == out[:-1] else None
