"""A TensorRT 10 or 11 whose builder and parser record, for use in a process of its own.

The Python module is NVIDIA's; the shared objects under it are stubs, so nothing is ever built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from recording import Fake, Memory, Recorder

from qdebug.backends.tensorrt.build import build, settings
from qdebug.backends.tensorrt.execute.device import Device
from qdebug.backends.tensorrt.library import Library, LibraryKind, load_library

_LAYER_TYPES = {
    "Conv": "CONVOLUTION",
    "ConvTranspose": "DECONVOLUTION",
    "MatMul": "MATRIX_MULTIPLY",
    "Gemm": "MATRIX_MULTIPLY",
    "QuantizeLinear": "QUANTIZE",
    "DequantizeLinear": "DEQUANTIZE",
    "Cast": "CAST",
}
_DATA_TYPES = {1: "FLOAT", 10: "HALF", 3: "INT8", 6: "INT32", 7: "INT64", 9: "BOOL"}


def recorded_library() -> tuple[Library, Recorder]:
    """The library, with a builder that gives b"engine", and what is done to it. The machine is
    taken to have a GPU."""
    library = load_library(LibraryKind.CLASSIC)
    trt = library.module
    recorder = Recorder(trt)
    network = recorder.fake("INetworkDefinition", num_layers=0, get_flag=lambda flag: False)
    trt.Builder = lambda logger: _builder(recorder, network, logger)
    trt.OnnxParser = lambda network, logger: _parser(recorder, network, logger)
    for module in (build, settings):
        vars(module)["find_device"] = lambda: Device("a GPU", (8, 9), 1)
    return library, recorder


def _builder(recorder: Recorder, network: Fake, logger: Any) -> Fake:
    assert isinstance(logger, recorder.trt.ILogger)
    config = _config(recorder)
    profile = recorder.fake(
        "IOptimizationProfile",
        set_shape=None,
        get_shape=lambda name: [(1,), (1,), (1,)],
        get_shape_input=lambda name: [],
    )
    return recorder.fake(
        "Builder",
        create_network=lambda flags=0: network,
        create_builder_config=lambda: config,
        create_optimization_profile=lambda: profile,
        build_serialized_network=lambda network, config: _run(recorder, config),
        num_DLA_cores=0,
    )


def _run(recorder: Recorder, config: Fake) -> Memory:
    """As a build does: log, report progress."""
    monitor = config.progress_monitor
    assert isinstance(monitor, recorder.trt.IProgressMonitor)
    monitor.phase_start("Building engine", None, 1)
    assert monitor.step_complete("Building engine", 0)
    monitor.phase_finish("Building engine")
    return Memory(b"engine")


def _config(recorder: Recorder) -> Fake:
    flags: set[Any] = {recorder.trt.BuilderFlag.TF32}
    cache = recorder.fake(
        "ITimingCache",
        serialize=lambda: Memory(b"timings"),
        combine=lambda other, ignore_mismatch: True,
    )
    values: dict[str, Any] = {
        "set_flag": flags.add,
        "clear_flag": flags.discard,
        "get_flag": lambda flag: flag in flags,
        "create_timing_cache": lambda data: cache,
        "get_timing_cache": lambda: cache,
        "set_timing_cache": lambda cache, ignore_mismatch: True,
        "add_optimization_profile": lambda profile: 0,
        "get_tactic_sources": lambda: 0,
        "get_memory_pool_limit": lambda pool: 0,
        "get_preview_feature": lambda feature: False,
        "num_optimization_profiles": 1,
        "engine_capability": recorder.trt.EngineCapability.STANDARD,
        "profiling_verbosity": None,
        "DLA_core": -1,
        "default_device_type": recorder.trt.DeviceType.GPU,
    }
    if hasattr(recorder.trt.IBuilderConfig, "int8_calibrator"):
        values |= {"int8_calibrator": None, "get_calibration_profile": lambda: None}
        values |= {"quantization_flags": 0, "get_quantization_flag": lambda flag: False}
    return recorder.fake("IBuilderConfig", **values)


def _parser(recorder: Recorder, network: Fake, logger: Any) -> Fake:
    assert isinstance(logger, recorder.trt.ILogger)
    return recorder.fake(
        "OnnxParser",
        num_errors=0,
        parse_from_file=lambda path: _fill(recorder, network, onnx.load(path)),
        parse=lambda model, path=None: _fill(recorder, network, onnx.ModelProto.FromString(model)),
    )


def _fill(recorder: Recorder, network: Fake, proto: onnx.ModelProto) -> bool:
    """The layers that the parser makes: one per constant and node, named and noted as it does."""
    proto = onnx.shape_inference.infer_shapes(proto)
    graph = proto.graph
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    ends = {v.name for v in graph.output}
    inputs = [_tensor(recorder, v.name, 1, is_shape=False) for v in graph.input]
    layers = [
        _layer(recorder, i.name, "CONSTANT", "", [_tensor(recorder, i.name + "_output", 1)])
        for i in graph.initializer
    ]
    tensors = {t.name: t for t in inputs}
    for layer in layers:
        tensors[layer.get_output(0).name] = layer.get_output(0)
    for node in graph.node:
        made = [_tensor(recorder, t, kinds.get(t, 1), is_end=t in ends) for t in node.output]
        kind = _LAYER_TYPES.get(node.op_type, "ELEMENTWISE")
        # The kernel of a convolution is no tensor; other constants are, under a name of their own.
        reads = node.input[:1] if node.op_type in ("Conv", "ConvTranspose") else node.input
        read = [tensors.get(t) or tensors.get(t + "_output") for t in reads if t]
        metadata = f"[ONNX Layer: {node.name}]"
        layers.append(_layer(recorder, node.name, kind, metadata, made, read))
        tensors.update(zip(node.output, made, strict=True))
    recorder.parsed, recorder.network, recorder.parsed_at = proto, network, len(recorder.calls)
    network._members.update(
        num_layers=len(layers),
        get_layer=lambda index: layers[index],
        num_inputs=len(inputs),
        get_input=lambda index: inputs[index],
        mark_output=None,
        mark_debug=lambda tensor: True,
    )
    return True


def _tensor(
    recorder: Recorder, name: str, kind: int, *, is_end: bool = False, is_shape: bool = False
) -> Fake:
    values: dict[str, Any] = {
        "name": name,
        "dtype": recorder.trt.DataType.__members__[_DATA_TYPES.get(kind, "FLOAT")],
        "shape": (1, 1, 8, 8),
        "is_network_output": is_end,
        "is_shape_tensor": is_shape,
    }
    if hasattr(recorder.trt.ITensor, "set_dynamic_range"):
        values["set_dynamic_range"] = lambda *_: True
    return recorder.fake("ITensor", name, **values)


def _layer(
    recorder: Recorder,
    name: str,
    kind: str,
    metadata: str,
    outputs: list[Fake],
    inputs: Sequence[Fake | None] = (),
) -> Fake:
    values: dict[str, Any] = {
        "name": name,
        "type": recorder.trt.LayerType.__members__[kind],
        "metadata": metadata,
        "num_outputs": len(outputs),
        "get_output": lambda index: outputs[index],
        "num_inputs": len(inputs),
        "get_input": lambda index: inputs[index],
    }
    if hasattr(recorder.trt.ILayer, "precision"):
        values |= {"precision_is_set": False}
    return recorder.fake("ILayer", name, **values)
