"""Other tools that quantize an ONNX model, each told what TensorRT takes: INT8, symmetric, weights
per channel or tensor, one scale per activation tensor, only what products read.

`bench_repair.py` runs this file once for each model and tool, with the interpreter of an
environment that has the tool. It prints one line of JSON.

    python scripts/bench/rivals.py TOOL MODEL CALIB.npz OUT.onnx --samples 64 --weights per-channel
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime as ort

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
MOVES = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Flatten")
Feeds = list[dict[str, Any]]
ADAROUND_ITERATIONS = 500


@dataclass(frozen=True)
class Tool:
    """A tool with its settings: `quantize(model, feeds, out, by_channel)` writes a Q/DQ model to
    `out`, whose weights have a scale per channel, or one."""

    package: str
    quantize: Callable[[Path, Feeds, Path, bool], None]


# --- ONNX Runtime ---------------------------------------------------------------------------


class Reader:
    """The samples one by one, as quantize_static and Model Optimizer want them."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self.rewind()

    def rewind(self) -> None:
        """Start anew (Model Optimizer)."""
        self._rest: Iterator[dict[str, Any]] = iter(self._feeds)

    def get_first(self) -> dict[str, Any]:
        """The first sample (Model Optimizer)."""
        return self._feeds[0]

    def get_next(self) -> Any:
        """The next sample, None at the end."""
        return next(self._rest, None)


def prepared(model: Path) -> Path:
    """The model with BatchNormalization folded, as ONNX Runtime advises before quantizing."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    out = Path(tempfile.mkdtemp()) / "prepared.onnx"
    quant_pre_process(str(model), str(out), skip_symbolic_shape=True)
    return out


def by_onnx_runtime(method: str, model: Path, feeds: Feeds, out: Path, by_channel: bool) -> None:
    """quantize_static; its calibrators minmax, entropy and percentile (99.999)."""
    from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static

    quantize_static(
        str(prepared(model)),
        str(out),
        Reader(feeds),  # type: ignore[arg-type]
        per_channel=by_channel,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod[method],
        op_types_to_quantize=[*PRODUCTS],
        extra_options={
            "ActivationSymmetric": True,
            "QDQKeepRemovableActivations": True,
            "OpTypesToExcludeOutputQuantization": [*PRODUCTS],
        },
    )


# --- NNCF -----------------------------------------------------------------------------------


def by_nncf(
    model: Path,
    feeds: Feeds,
    out: Path,
    by_channel: bool,
    *,
    correct: bool = True,
    fast: bool = True,
    smooth: bool = False,
    per_tensor: bool = True,
) -> None:
    """nncf.quantize. `smooth` says that the model is a transformer, which is what turns SmoothQuant
    on; without `per_tensor` depthwise convolutions get a scale for each channel, its default."""
    import nncf
    from nncf.quantization.advanced_parameters import (
        AdvancedQuantizationParameters,
        AdvancedSmoothQuantParameters,
    )

    _set_hardware(per_tensor, by_channel)
    proto = onnx.load(model)
    others = {node.op_type for node in proto.graph.node} - {*PRODUCTS}
    off = AdvancedSmoothQuantParameters(convolution=-1, matmul=-1)
    on = AdvancedSmoothQuantParameters()
    quantized = nncf.quantize(
        proto,
        nncf.Dataset(feeds),
        preset=nncf.QuantizationPreset.PERFORMANCE,
        model_type=nncf.ModelType.TRANSFORMER if smooth else None,
        subset_size=len(feeds),
        fast_bias_correction=fast,
        ignored_scope=nncf.IgnoredScope(types=sorted(others), validate=False),
        advanced_parameters=AdvancedQuantizationParameters(
            disable_bias_correction=not correct,
            smooth_quant_alphas=on if smooth else off,
        ),
    )
    onnx.save(quantized, out)


def _set_hardware(per_tensor: bool, by_channel: bool) -> None:
    """Activations symmetric and signed, also those that are never negative: its description of a
    CPU has them unsigned, which TensorRT does not take, and no setting says otherwise. Without
    `by_channel`, weights with one scale."""
    from dataclasses import replace

    from nncf.common.hardware import config
    from nncf.common.hardware.defines import Granularity
    from nncf.common.quantization.structs import QuantizationScheme

    def signed(space: Any) -> Any:
        only = (Granularity.PER_TENSOR,) if per_tensor else space.granularity
        return replace(
            space,
            mode=(QuantizationScheme.SYMMETRIC,),
            granularity=only,
            signedness_to_force=True,
        )

    def whole(space: Any) -> Any:
        return space if by_channel else replace(space, granularity=(Granularity.PER_TENSOR,))

    config.CPU_SETUP = tuple(
        replace(
            op,
            activations=tuple(signed(space) for space in op.activations),
            weights=tuple(whole(space) for space in op.weights),
        )
        for op in config.CPU_SETUP
    )


# --- AIMET ----------------------------------------------------------------------------------


def by_aimet(
    model: Path,
    feeds: Feeds,
    out: Path,
    by_channel: bool,
    *,
    scheme: str = "min_max",
    step: str = "",
) -> None:
    """QuantizationSimModel; `step` is one of its further steps: cle, adaround, seq_mse."""
    from aimet_onnx.adaround.adaround_weight import Adaround
    from aimet_onnx.cross_layer_equalization import equalize_model
    from aimet_onnx.quantsim import QuantizationSimModel
    from aimet_onnx.sequential_mse.seq_mse import apply_seq_mse

    proto = onnx.load(prepared(model))
    if step == "cle":
        equalize_model(proto)
    simulated = QuantizationSimModel(
        proto,
        param_type="int8",
        activation_type="int8",
        quant_scheme=scheme,
        config_file="default" if by_channel else "default_config.json",
        providers=["CPUExecutionProvider"],
    )
    _only_products(simulated)
    if step == "adaround":
        Adaround.apply_adaround(simulated, feeds, ADAROUND_ITERATIONS)
    if step == "seq_mse":
        apply_seq_mse(simulated, feeds)
    simulated.compute_encodings(feeds)
    onnx.save(simulated.to_onnx_qdq(force_activation_as="signed"), out)


def _only_products(simulated: Any) -> None:
    """Quantize what products read, symmetrically, and nothing else: by default it quantizes what
    every operator writes, but nothing that only moves data."""
    quantizers = simulated.qc_quantize_op_dict
    nodes = [node for node in simulated.model.nodes() if node.op_type != "QcQuantizeOp"]
    made = {name: node for node in simulated.model.nodes() for name in node.output}
    read = set()
    for name in (name for node in nodes if node.op_type in PRODUCTS for name in node.input):
        while name in made and name not in quantizers:  # through its quantizers and moves of data
            if made[name].op_type not in ("QcQuantizeOp", *MOVES):
                break
            name = made[name].input[0]
        read.add(name)
    for name, quantizer in quantizers.items():
        if name in simulated.param_names:
            quantizer.enabled = quantizer.enabled and name in read
        else:
            quantizer.enabled = name in read
            quantizer.use_symmetric_encodings = True


# --- Model Optimizer ------------------------------------------------------------------------


def by_modelopt(method: str, model: Path, feeds: Feeds, out: Path, by_channel: bool) -> None:
    """modelopt.onnx.quantization; its calibrators max and entropy."""
    from modelopt.onnx.quantization import quantize

    if not by_channel:
        raise NotImplementedError("weights per channel only")
    given = Path(tempfile.mkdtemp()) / "given.onnx"  # it writes beside the file it is given
    proto = onnx.load(model)
    onnx.save(proto, given)
    quantize(
        str(given),
        quantize_mode="int8",
        calibration_data_reader=Reader(feeds),
        calibration_method=method,
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        op_types_to_quantize=[*PRODUCTS],
        output_path=str(out),
    )
    shutil.rmtree(given.parent)


# --- onnxsim ----------------------------------------------------------------------------------


def by_onnxsim(
    method: str,
    model: Path,
    feeds: Feeds,
    out: Path,
    by_channel: bool,
    *,
    symmetric: bool = True,
    correct: bool = False,
) -> None:
    """quantize_static with one of its ways to find ranges, made symmetric about 0 before they are
    applied, as it has no setting for that; its codes stay unsigned, with a zero point of 128.
    `correct` applies its bias correction."""
    import onnxsim
    from onnxsim.bias_correction import correct_bias
    from onnxsim.calibration import _StaticPlan, calibrate

    if not by_channel:
        raise NotImplementedError("weights per channel only")
    proto, _ = onnxsim.simplify(onnx.load(model))
    plan = _StaticPlan(proto)
    ranges = calibrate(proto, feeds, method=method, tensor_names=plan.tensor_names)
    if symmetric:
        largest = {name: max(-low, high) for name, (low, high) in ranges.items()}
        ranges = {name: (-amax, amax) for name, amax in largest.items()}
    quantized = plan.apply(ranges)
    onnx.save(correct_bias(proto, quantized, feeds) if correct else quantized, out)


TOOLS: dict[str, Tool] = {
    "ort-minmax": Tool("onnxruntime", partial(by_onnx_runtime, "MinMax")),
    "ort-entropy": Tool("onnxruntime", partial(by_onnx_runtime, "Entropy")),
    "ort-percentile": Tool("onnxruntime", partial(by_onnx_runtime, "Percentile")),
    "nncf-ranges": Tool("nncf", partial(by_nncf, correct=False)),
    "nncf-fast": Tool("nncf", by_nncf),
    "nncf-full": Tool("nncf", partial(by_nncf, fast=False)),
    "nncf-fast-smooth": Tool("nncf", partial(by_nncf, smooth=True)),
    "nncf-full-smooth": Tool("nncf", partial(by_nncf, fast=False, smooth=True)),
    "nncf-per-channel": Tool("nncf", partial(by_nncf, per_tensor=False)),
    "aimet-minmax": Tool("aimet-onnx", by_aimet),
    "aimet-tf-enhanced": Tool("aimet-onnx", partial(by_aimet, scheme="tf_enhanced")),
    "aimet-cle": Tool("aimet-onnx", partial(by_aimet, step="cle")),
    "aimet-seq-mse": Tool("aimet-onnx", partial(by_aimet, step="seq_mse")),
    "aimet-adaround": Tool("aimet-onnx", partial(by_aimet, step="adaround")),
    "modelopt-max": Tool("nvidia-modelopt", partial(by_modelopt, "max")),
    "modelopt-entropy": Tool("nvidia-modelopt", partial(by_modelopt, "entropy")),
    "onnxsim-minmax": Tool("onnxsim", partial(by_onnxsim, "minmax")),
    "onnxsim-percentile": Tool("onnxsim", partial(by_onnxsim, "percentile")),
    "onnxsim-mse": Tool("onnxsim", partial(by_onnxsim, "mse")),
    "onnxsim-mse-bias": Tool("onnxsim", partial(by_onnxsim, "mse", correct=True)),
    "onnxsim-asymmetric": Tool("onnxsim", partial(by_onnxsim, "mse", symmetric=False)),
}
ILLEGAL = ("nncf-per-channel", "onnxsim-asymmetric")
"""What TensorRT does not take: a scale for each channel of an activation, or a zero point."""


def modern(model: Path) -> Path:
    """The model for tools that do not read old files: weights inside and no inputs, opset 13 or
    later."""
    proto = onnx.load(model)
    weights = {w.name for w in proto.graph.initializer}
    inputs = [i for i in proto.graph.input if i.name not in weights]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    proto.ir_version = max(proto.ir_version, 7)
    if proto.opset_import[0].version < 13:
        proto = onnx.version_converter.convert_version(proto, 13)
    out = Path(tempfile.mkdtemp()) / "modern.onnx"
    onnx.save(proto, out)
    return out


def feeds_of(model: Path, data: Path, samples: int) -> Feeds:
    """The first samples of a file, one by one."""
    arrays = np.load(data)
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    inputs = {i.name: arrays[i.name][:samples].astype(types[i.type]) for i in session.get_inputs()}
    count = len(next(iter(inputs.values())))
    return [{name: a[k : k + 1] for name, a in inputs.items()} for k in range(count)]


def main() -> None:
    """Quantize one model with one tool; say which version took how many CPU seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("model", type=Path)
    parser.add_argument("calib", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--samples", type=int, default=64)
    weights = ("per-channel", "per-tensor")
    parser.add_argument("--weights", choices=weights, default=weights[0])
    arguments = parser.parse_args()
    tool = TOOLS[arguments.tool]
    model = modern(arguments.model)
    feeds = feeds_of(model, arguments.calib, arguments.samples)
    _imported(tool.package)
    before = time.process_time()
    tool.quantize(model, feeds, arguments.out, arguments.weights == weights[0])
    seconds = time.process_time() - before
    version = importlib.metadata.version(tool.package)
    print(json.dumps({"package": tool.package, "version": version, "seconds": round(seconds, 2)}))


def _imported(package: str) -> None:
    """Import it now, which is not to be counted."""
    modules = {
        "onnxruntime": "onnxruntime.quantization",
        "nncf": "nncf.onnx.quantization.quantize_model",
        "aimet-onnx": "aimet_onnx.quantsim",
        "nvidia-modelopt": "modelopt.onnx.quantization",
        "onnxsim": "onnxsim",
    }
    importlib.import_module(modules[package])


if __name__ == "__main__":
    main()
