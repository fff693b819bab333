"""A TensorRT 10 or 11 that does what it is told, for use in a process of its own.

As `library`, but its engines compute: ONNX's reference evaluator executes, in the host's memory,
what the calls to the builder say (layer precisions, dynamic ranges, a calibrator's cache), or what
the Q/DQ and Casts of a strongly typed network do. As with TensorRT, a layer runs in INT8 only where
all that it reads and writes has a range. Its build log lists the layers in those
precisions.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import library as stand_in
import onnx
from recording import Fake, Memory, Recorder

from qdebug.backends.tensorrt import backend, process
from qdebug.backends.tensorrt.build.settings import BuildSettings, ShapeRange
from qdebug.backends.tensorrt.execute import runtime
from qdebug.backends.tensorrt.execute.device import Device
from qdebug.backends.tensorrt.library import Library, LibraryKind
from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.lower import lower
from qdebug.plan.plan import PrecisionPlan, TensorRange, bind_plan
from qdebug.plan.trtcache import read_cache
from qdebug.testing.cuda import FakeCuda
from qdebug.testing.tensorrt import fake_build, fake_library
from qdebug.types import Precision

_PRECISIONS = {"FLOAT": Precision.FP32, "HALF": Precision.FP16, "INT8": Precision.INT8}
_KINDS = {"Conv": "Convolution", "Gemm": "MatrixMultiply", "MatMul": "MatrixMultiply"}
_recorded_run = stand_in._run


def obedient_library() -> tuple[Library, Recorder]:
    """The library, loaded, on a machine that is taken to have a GPU."""
    library, recorder = stand_in.recorded_library()
    for name, value in vars(fake_library().module).items():
        setattr(library.module, name, value)
    cuda = FakeCuda()
    for module in (runtime, backend):
        vars(module)["open_cuda"] = lambda: cuda
    vars(backend)["find_device"] = lambda: Device("a GPU", (8, 9), 1)
    vars(process)["open_classic"] = _open_here
    stand_in._run = lambda recorder, config: _run(library, recorder, config)
    return library, recorder


def _open_here(**settings: Any) -> Any:
    """Where the stand-in is, in the place of a process of its own."""
    settings.pop("build_timeout", None)
    return backend.open_runtime(LibraryKind.CLASSIC, **settings)


def _run(library: Library, recorder: Recorder, config: Fake) -> Memory:
    _recorded_run(recorder, config)
    flags = {f.name for (f,) in recorder.of("set_flag")}
    assert "INT8" in flags or not recorder.of("set_dynamic_range")
    typed = recorder.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    asked_typed = recorder.of("create_network")[-1][0] == 1 << int(typed)
    strong = asked_typed or not library.implicit
    proto = recorder.parsed if strong else _explicit(recorder, config)
    _log_layers(library, recorder.parsed, Graph(proto))
    shapes = {name: ShapeRange(*ends) for name, *ends in recorder.of("set_shape")}
    outputs = [tensor.name for (tensor,) in _since(recorder, "mark_output")]
    debug = [tensor.name for (tensor,) in _since(recorder, "mark_debug")]
    profile = {v.name: shapes[v.name] for v in proto.graph.input if v.name in shapes}
    settings = BuildSettings(profile=profile)
    return Memory(fake_build(library, proto, settings, outputs=outputs, debug=debug).engine)


def _explicit(recorder: Recorder, config: Fake) -> onnx.ModelProto:
    """What implicit quantization computes, with Q/DQ and Casts: weights by output channel."""
    told = recorder.calls[recorder.parsed_at :]
    precisions = {name: _PRECISIONS[a[0].name] for name, what, a in told if what == "precision"}
    ranges = {name: TensorRange(a[1]) for name, what, a in told if what == "set_dynamic_range"}
    types = {a[1].name for _, what, a in told if what == "set_output_type"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        if config.int8_calibrator is not None:
            path.write_bytes(config.int8_calibrator.read_calibration_cache())
            ranges = {name: TensorRange(amax) for name, amax in read_cache(path).amax.items()}
        onnx.save(recorder.parsed, path)
        model = prepare_model(read_model(path))
    for layer in recorder.network:
        if precisions.get(layer.name) is Precision.INT8:
            reads = [layer.get_input(i) for i in range(layer.num_inputs)]
            tensors = [*reads, *(layer.get_output(i) for i in range(layer.num_outputs))]
            if any(t.name not in ranges for t in tensors):  # then TensorRT has no INT8 kernel
                precisions[layer.name] = Precision.FP32
    layers = find_layers(model.graph)
    rest = Precision.FP16 if "HALF" in types else Precision.FP32
    asked = {x.name: precisions[x.name] for x in layers if x.name in precisions}
    known = {**model.graph.producers, **{i.name: i for i in model.graph.inputs}}
    ranges = {name: amax for name, amax in ranges.items() if name in known}
    plan = PrecisionPlan(Precision.FP32, rest, layers=asked, tensors=ranges)
    return lower(bind_plan(plan, model, layers)).graph.proto


def _since(recorder: Recorder, member: str) -> list[tuple[Any, ...]]:
    """Calls of this build."""
    return [a for _, name, a in recorder.calls[recorder.parsed_at :] if name == member]


def _log_layers(library: Library, parsed: onnx.ModelProto, computed: Graph) -> None:
    lines = ["Layers:"]
    for node in parsed.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear", "Cast"):
            found = computed.by_name[node.name]
            word = _word(computed, found.inputs, found.outputs)
            tensor = "{{ Name: {}, Dimensions: [1,1], Format/Datatype: {} }}"
            reads = ", ".join(tensor.format(t, word) for t in node.input[:1])
            writes = ", ".join(tensor.format(t, word) for t in node.output)
            kind = _KINDS.get(node.op_type, "PointWise")
            weights = f', Weights: {{"Type": "{word}", "Count": 1}}'
            lines.append(
                f"Name: {node.name}, LayerType: {kind}, Inputs: [{reads}], Outputs: [{writes}]"
                f"{weights if kind != 'PointWise' else ''}, TacticName: obedient, StreamId: 0, "
                f"Metadata: [ONNX Layer: {node.name}]"
            )
    library.logs.add("VERBOSE", "\n".join([*lines, "", "Bindings:"]))


def _word(graph: Graph, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str:
    producers = [graph.producers.get(t) for t in inputs]
    if any(p is not None and p.op_type == "DequantizeLinear" for p in producers):
        return "Int8"
    half = graph.types.get(outputs[0]) == onnx.TensorProto.FLOAT16
    return "Half" if half else "Float"
