"""A model that some tool has quantized: what qdebug says of it against plain float64."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import float64_graph as f64
import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

ROOT = Path(__file__).parents[2]
TOOLS = ("nncf", "aimet", "modelopt", "torch_pt2e", "torch_fake_quantize")
"""Those that tests/producers has a model of."""
ONNX_RUNTIME: dict[str, dict[str, Any] | None] = {
    "default": {},  # activations signed, asymmetric
    "unsigned": {"activation_type": QuantType.QUInt8},
    "symmetric": {
        "activation_type": QuantType.QInt8,
        "extra_options": {"ActivationSymmetric": True},
    },
    "per channel": {"per_channel": True},
    "inputs only": {
        "extra_options": {"OpTypesToExcludeOutputQuantization": ["Conv", "Gemm", "Add"]}
    },
    "qoperator": {"quant_format": QuantFormat.QOperator},
    "dynamic": None,
}
"""Settings of quantize_static by name; None for quantize_dynamic."""
CLIPS = {"after Relu": (0, None), "after Relu6": (0, 6)}


class _Reader(CalibrationDataReader):
    def __init__(self, name: str) -> None:
        images = np.load(ROOT / "calib_data" / "digits_calib.npz")["input"][:16]
        self._feeds = iter([{name: images[i : i + 1]} for i in range(len(images))])

    def get_next(self) -> Any:
        return next(self._feeds, None)


def small_network(folder: Path) -> Path:
    """The FP32 network of five layers that the tools quantized, for batches of any size."""
    model = onnx.load(ROOT / "tests" / "producers" / "fp32.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    del model.graph.value_info[:]  # of batches of one
    path = folder / "small.onnx"
    onnx.save(model, path)
    return path


def quantized_by_onnx_runtime(way: str, fp32: Path, folder: Path) -> Path:
    """`fp32` quantized in one of the ways of ONNX_RUNTIME, calibrated on 16 digits."""
    source = shutil.copy(fp32, folder)  # it writes beside the model that it reads
    quantized = folder / f"{way}.onnx"
    settings = copy.deepcopy(ONNX_RUNTIME[way])
    if settings is None:
        # Weights of 7 bits: products of 8 bits saturate on x86 without VNNI.
        quantize_dynamic(source, quantized, reduce_range=True)
    else:
        quantize_static(source, quantized, _Reader("input"), **settings)
    return quantized


@dataclass(frozen=True)
class Verdict:
    """One comparison, judged.

    Attributes:
        tensors: how many were compared, of `of` that the FP32 model computes.
        proven: of them, that are proven to be the same quantity.
        worst_db: the largest difference of a tensor's SQNR from that of float64; tensors beyond
            60 dB are left out.
        judged: causes of layers' own errors that were judged.
        wrong: those that float64 contradicts, with why.
    """

    tensors: int
    of: int
    proven: int
    worst_db: float
    judged: int
    wrong: tuple[str, ...]


def db(reference: Any, values: Any) -> float:
    noise = float(np.square(reference - values).sum())
    signal = float(np.square(reference).sum())
    return float("inf") if noise == 0 else 10 * float(np.log10(signal / noise))


def _fed(proto: onnx.ModelProto, images: Any) -> Iterator[Any]:
    """The samples, one by one where the model takes one."""
    first = proto.graph.input[0].type.tensor_type.shape.dim[0]
    step = 1 if first.dim_value == 1 else len(images)
    for start in range(0, len(images), step):
        yield images[start : start + step]


def run(proto: onnx.ModelProto, images: Any, **how: Any) -> dict[str, Any]:
    """Every float tensor over all samples."""
    name = proto.graph.input[0].name
    forced = how.pop("forced", {})
    parts = []
    start = 0
    for part in _fed(proto, images):
        some = {n: v[start : start + len(part)] for n, v in forced.items()}
        parts.append(f64.evaluate(proto, {name: part}, forced=some, **how))
        start += len(part)
    outputs = [t for n in proto.graph.node if n.op_type != "Constant" for t in n.output if t]
    made = [t for t in parts[0] if t in outputs or t.endswith(("_values", "_dequantized"))]
    return {
        t: np.concatenate([np.asarray(p[t]) for p in parts])
        for t in made
        if np.ndim(parts[0][t]) and len(parts[0][t]) in (1, len(images))
    }


def judge(
    reference: onnx.ModelProto, quantized: onnx.ModelProto, images: Any, result: Mapping[str, Any]
) -> Verdict:
    """Compare the JSON of `qdebug compare` on `images` with float64 arithmetic on both graphs."""
    plain, rounded = run(reference, images), run(quantized, images)
    errors = {t["name"]: t["sqnr_db"] for t in result["tensors"]}
    matches = {m["tensor"]: m for m in result["correspondence"]["matches"]}
    worst = 0.0
    for tensor, found in errors.items():
        match = matches[tensor]
        values = rounded[match["candidate"]]
        if match["transformation"]:
            low, high = CLIPS[match["transformation"]]
            values = np.clip(values, low, high)
        expected = db(plain[tensor], values.reshape(plain[tensor].shape))
        if found is not None and min(found, expected) < 60:
            worst = max(worst, abs(found - expected))
    wrong, judged = _judged_causes(quantized, images, plain, matches, result)
    return Verdict(
        tensors=len(errors),
        of=sum(n.op_type != "Constant" for n in reference.graph.node),
        proven=sum(m["proven"] for m in matches.values()),
        worst_db=worst,
        judged=judged,
        wrong=tuple(wrong),
    )


def _judged_causes(
    quantized: onnx.ModelProto,
    images: Any,
    plain: Mapping[str, Any],
    matches: Mapping[str, Any],
    result: Mapping[str, Any],
) -> tuple[list[str], int]:
    """Causes of layers' own errors that float64 contradicts, and how many there are.

    Each layer reads the FP32 model's activations. What its weights add is its error without any
    rounding of activations; a cause that says `clipping` needs values beyond a range.
    """
    if any(n.op_type.startswith(("QLinear", "QGemm")) or "Integer" in n.op_type
           for n in quantized.graph.node):  # fmt: skip
        return [], 0  # they round within: the Q/DQ form of the same scales is judged
    finals = {x["tensor"] for x in result["layers"]}
    forced = {
        m["candidate"]: plain[t]
        for t, m in matches.items()
        if t in finals and m["candidate"] not in {o.name for o in quantized.graph.output}
    }
    quantizers = [
        n for n in quantized.graph.node if n.op_type in ("QuantizeLinear", "DynamicQuantizeLinear")
    ]
    constants = {t.name for t in quantized.graph.initializer}
    everything = [n.input[0] for n in quantizers if n.input[0] not in constants]
    local = run(quantized, images, forced=forced)
    bare = run(quantized, images, forced=forced, exact=everything)
    wrong, judged = [], 0
    for layer in result["layers"]:
        own = [c for c in layer["causes"] if c["label"] not in ("accumulation", "amplification")]
        match = matches[layer["tensor"]]
        if not own or match["candidate"] not in local or layer["local_sqnr_db"] is None:
            continue
        judged += len(own)
        truth = plain[layer["tensor"]]
        clip = CLIPS.get(match["transformation"])
        noise = []
        for found in (local, bare):
            values = found[match["candidate"]].reshape(truth.shape)
            values = np.clip(values, *clip) if clip else values
            noise.append(float(np.square(truth - values).sum()))
        if abs(db(truth, truth) if not noise[0] else 0) > 60:
            wrong.append(f"{layer['name']}: no error at all")
        weights = sum(c["share"] for c in own if "its weight" in c["evidence"] or "its bias" in
                      c["evidence"])  # fmt: skip
        truly = min(1.0, noise[1] / noise[0]) if noise[0] else 0.0
        if abs(weights - truly) > 0.15 and not (weights == 0 and truly < 0.25):
            wrong.append(f"{layer['name']}: weights {weights:.2f}, float64 {truly:.2f}")
    return wrong, judged


def parts(
    reference: onnx.ModelProto, quantized: onnx.ModelProto, images: Any, result: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """What the error of each layer that has `error_parts` consists of, in float64: noise powers by
    layer and name, the interaction and the total among them."""
    plain, rounded = run(reference, images), run(quantized, images)
    matches = {x["tensor"]: (x["tensor"], None) for x in result["layers"]}
    for m in (result["correspondence"] or {"matches": ()})["matches"]:
        matches[m["tensor"]] = m["candidate"], CLIPS.get(m["transformation"])

    def of(found: Mapping[str, Any], tensor: str) -> Any:
        name, clip = matches[tensor]
        values = found[name].reshape(plain[tensor].shape)
        return np.clip(values, *clip) if clip else values

    layers = [x for x in result["layers"] if x["error_parts"]]
    last = {o.name for o in quantized.graph.output}
    inner = [x["tensor"] for x in layers if matches[x["tensor"]][0] not in last]
    truth = {matches[t][0]: plain[t] for t in inner}
    given = {matches[t][0]: of(rounded, t) for t in inner}
    constants = {t.name for t in quantized.graph.initializer}
    every = [n.input[0] for n in quantized.graph.node if n.op_type.endswith("QuantizeLinear")]
    bare = [t for t in every if t not in constants]
    weights = run(quantized, images, forced=truth, exact=bare)
    exact = run(quantized, images, forced=given, exact=bare)
    clipped = run(quantized, images, forced=given, exact=bare, clips=True)
    whole = run(quantized, images, forced=given)
    shown = {}
    for layer in layers:
        t = layer["tensor"]
        steps = [plain[t], *(of(f, t) for f in (weights, exact, clipped, whole, rounded))]
        signal = np.square(plain[t]).sum()
        found = [float(np.square(b - a).sum() / signal) for a, b in pairwise(steps)]
        names = ("weights", "inherited", "clipping", "rounding", "unexplained")
        powers = dict(zip(names, found, strict=True))
        total = float(np.square(steps[-1] - steps[0]).sum() / signal)
        interaction = total - sum(found)
        shown[layer["name"]] = {**powers, "total": total, "interaction": interaction}
    return shown
