"""A model with Q/DQ pairs on ONNX Runtime's INT8 kernels: two to three times as fast as literally.

Two rewrites, of a model into a model that an ordinary session executes. Products become
MatMulIntegerToFloat: sums in INT32, scaled to FP32 at once, which differ from those of literal Q/DQ
by the rounding of FP32 alone. Convolutions become QLinearConv where only pairs of one scale read
what they give, which rounds sums to the codes that the pair would make; elsewhere their windows are
gathered as rows of such a product. Both take unsigned activations: x86 has fast kernels for these
times signed weights only.

ONNX Runtime's own fusions of Q/DQ are of no use: where pairs are as TensorRT places them, or as its
own quantizer does behind the activation, a pass of a ResNet-18, a MobileNetV2 and an encoder took
1.2, 1.5 and 1.5 times that of FP32, literally 1.1, 1.6 and 1.1, and so 0.37, 0.53 and 0.41.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from qdebug.network.graph import Graph, Node
from qdebug.network.subgraphs import needed
from qdebug.network.weights import renamed, tensor_of
from qdebug.plan.plan import BoundPlan
from qdebug.plan.rewrite.edit import Editor, copy_node, make_node
from qdebug.types import Array, Precision

_CONTRIB = "com.microsoft"
_TO_LAST, _TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
_LARGEST_BIAS = 2.0**30
_SMALLEST_STEP = 1e-30
"""Products of two scales below this lose bits in FP32: such layers keep their Q/DQ pairs."""
_FEWEST_CHANNELS = 8
"""Gathering the windows of an input with fewer channels costs more than the FP32 convolution."""
_LARGEST_ROWS = 64 << 20
"""Bytes of one sample: windows that take more are not gathered."""


@dataclass(frozen=True)
class _Pair:
    """A Q/DQ pair of one scale: the tensor that it reads, its scale and its codes, as named."""

    source: str
    scale: str
    codes: str
    value: float


@dataclass(frozen=True)
class _Weight:
    """A constant in codes: their name and values, and that of the scale."""

    name: str
    codes: Array
    scale: str
    values: npt.NDArray[np.float32]


def has_kernels(bound: BoundPlan) -> bool:
    """Whether layers of a plan may be on kernels: in INT8, beside FP32."""
    beside = bound.plan.fallback_precision
    return beside is Precision.FP32 and Precision.INT8 in bound.precisions.values()


class Int8Kernels:
    """Rewrites candidates of one plan; from several threads if need be."""

    def __init__(self) -> None:
        self._made: dict[str, TensorProto] = {}

    def __reduce__(self) -> tuple[type[Int8Kernels], tuple[()]]:
        return Int8Kernels, ()  # other processes do not see this one's files

    def rewrite(self, graph: Graph) -> onnx.ModelProto:
        """The model with its INT8 layers on kernels, as far as there are any."""
        return _Rewriting(graph, self._made).model()


class _Rewriting:
    """A model under construction. Tensors keep their names: what was replaced and is not read any
    more is left out at the end."""

    def __init__(self, graph: Graph, made: dict[str, TensorProto]) -> None:
        self._graph, self._made = graph, made
        self._edit = Editor(graph)
        self._codes: dict[tuple[str, float, bool], str] = {}
        self._scales: dict[float, str] = {}
        self._zero = self._edit.initializer(np.array(128, np.uint8), "zero_u8")

    def model(self) -> onnx.ModelProto:
        """All nodes in order, on kernels where there are any."""
        for written in self._graph.proto.graph.node:
            node = self._graph.by_name[written.name]
            if not (self._convolution(node) or self._product(node) or self._recoded(node)):
                self._edit.emit(copy_node(written))
        proto = self._edit.proto
        proto.graph.node.extend(needed(self._edit.nodes, self._graph.outputs))
        if all(opset.domain != _CONTRIB for opset in proto.opset_import):
            proto.opset_import.append(helper.make_opsetid(_CONTRIB, 1))
        return proto

    # ---- what nodes read

    def _pair(self, tensor: str) -> _Pair | None:
        """The pair that gives a tensor; None where none does, or of another kind."""
        dequantizes = self._graph.producers.get(tensor)
        if dequantizes is None or dequantizes.op_type != "DequantizeLinear":
            return None
        quantizes = self._graph.producers.get(dequantizes.inputs[0])
        if quantizes is None or quantizes.inputs[1:] != dequantizes.inputs[1:]:
            return None
        value = self._step(quantizes)
        if value is None:
            return None
        return _Pair(quantizes.inputs[0], self._scales[value], dequantizes.inputs[0], value)

    def _step(self, node: Node) -> float | None:
        """The one scale of a QuantizeLinear to INT8; None for another node."""
        if node.op_type != "QuantizeLinear" or not self._signed(node.inputs[2:]):
            return None
        scale = self._graph.constant(node.inputs[1])
        if scale is None or scale.dtype != np.float32 or scale.size != 1:
            return None
        value = float(scale.reshape(()))
        self._scales.setdefault(value, node.inputs[1])
        return value

    def _weight(self, tensor: str, axis: int) -> _Weight | None:
        """The constant that gives a tensor, with a scale for all or one each along `axis`."""
        graph = self._graph
        node = graph.producers.get(tensor)
        if node is None or node.op_type != "DequantizeLinear":
            return None
        codes, scale, *zero = node.inputs
        values, scales = graph.constant(codes), graph.constant(scale)
        if values is None or scales is None or scales.dtype != np.float32 or scales.ndim > 1:
            return None
        attributes = graph.attributes(node)
        along = attributes.get("axis", 1) % max(1, values.ndim)
        fits = scales.size == 1 or along == axis
        if not fits or attributes.get("block_size") or not self._signed(zero):
            return None
        return _Weight(codes, values, scale, scales) if values.dtype == np.int8 else None

    def _signed(self, zero: Sequence[str]) -> bool:
        """Whether codes are of INT8 around 0."""
        values = self._graph.constant(zero[0]) if zero else None
        return values is not None and values.dtype == np.int8 and not values.any()

    def _read(self, source: str, scale: float, *, last: bool) -> str:
        """The codes of a tensor, unsigned; `last`: with the channels last."""
        key, turned = (source, scale, last), (source, scale, not last)
        if key not in self._codes:
            if turned in self._codes or last:
                start = self._codes.get(turned) or self._read(source, scale, last=False)
                perm = _TO_LAST if last else _TO_FIRST
                self._codes[key] = self._edit.add("Transpose", start, name="turned", perm=perm)
            else:
                operands = self._scales[scale], self._zero
                self._codes[key] = self._edit.add(
                    "QuantizeLinear", source, *operands, name=f"{source}_u8"
                )
        return self._codes[key]

    def _constant(self, key: str, make: Any) -> str:
        """A constant that is made once for all candidates."""
        if key not in self._made:
            self._made[key] = tensor_of(make(), key)
        name = self._edit.tensor_name(key)
        self._edit.proto.graph.initializer.append(renamed(self._made[key], name))
        return name

    # ---- products

    def _product(self, node: Node) -> bool:
        """Whether a MatMul or Gemm was put on a kernel."""
        graph = self._graph
        if node.domain or node.op_type not in ("MatMul", "Gemm"):
            return False
        given = graph.attributes(node)
        plain = given.get("alpha", 1.0) == given.get("beta", 1.0) == 1.0
        left = self._pair(node.inputs[0])
        if left is None or not plain or given.get("transA") or self._rank(left.source) < 2:
            return False
        turned = bool(given.get("transB"))
        weight = self._weight(node.inputs[1], 0 if turned else 1)
        bias: str | None = ""
        if weight is None:
            other = self._pair(node.inputs[1])
            if other is None or node.op_type != "MatMul" or self._rank(other.source) < 2:
                return False
            right, scale, least = other.codes, other.scale, other.value
        else:
            right, scale, least = weight.name, weight.scale, float(weight.values.min())
            codes = weight.codes
            bias = self._row(node, codes.shape[not turned]) if codes.ndim == 2 else None
            if turned:
                right = self._constant(f"{weight.name}_turned", lambda: codes.T.copy())
        if bias is None:
            return False
        if left.value * least < _SMALLEST_STEP:
            return False
        rows = self._read(left.source, left.value, last=False)
        self._multiply(rows, right, (left.scale, scale), bias, node.outputs[0])
        return True

    def _multiply(
        self, codes: str, matrix: str, scales: tuple[str, str], bias: str, output: str
    ) -> None:
        """(codes − zero) · matrix · scales + bias."""
        inputs = [codes, matrix, *scales, self._zero, "", bias]
        self._edit.emit(make_node("MatMulIntegerToFloat", inputs, output, domain=_CONTRIB))

    def _rank(self, tensor: str) -> int:
        return len(self._graph.shapes.get(tensor, ()))

    def _row(self, node: Node, width: int) -> str | None:
        """The bias of a Gemm as one row, "" where there is none; None where it is anything else."""
        if len(node.inputs) < 3 or not node.inputs[2]:
            return ""
        values = self._graph.constant(node.inputs[2])
        if values is None or values.dtype != np.float32 or values.size not in (1, width):
            return None
        if values.size > 1 and values.shape[-1] != width:
            return None
        row = np.array(np.broadcast_to(values.reshape(-1), (width,)))
        return self._edit.initializer(row, f"{node.name}_bias")

    # ---- convolutions

    def _convolution(self, node: Node) -> bool:
        """Whether a two-dimensional Conv was put on a kernel."""
        if node.op_type != "Conv" or node.domain:
            return False
        source, weight = self._pair(node.inputs[0]), self._weight(node.inputs[1], 0)
        bias: Array | None = np.zeros(1, np.float32)
        if len(node.inputs) > 2 and node.inputs[2]:
            bias = self._graph.constant(node.inputs[2])
        if source is None or weight is None or weight.codes.ndim != 4 or bias is None:
            return False
        steps = source.value * weight.values.astype(np.float64)
        if np.any(steps < _SMALLEST_STEP):
            return False
        written = self._written(node.outputs[0])
        sums = np.rint(np.broadcast_to(bias / steps, len(weight.codes)))
        if written is not None and np.all(np.abs(sums) < _LARGEST_BIAS):
            self._to_codes(node, source, weight, sums.astype(np.int32), written)
            return True
        return self._to_float(node, source, weight)

    def _written(self, tensor: str) -> float | None:
        """The scale of the pairs that alone read a tensor, behind a Relu, a Clip or a MaxPool or
        not; None where anything else does."""
        found = set()
        for reader in self._graph.consumers.get(tensor, ()):
            if reader.op_type == "QuantizeLinear":
                pairs = [
                    self._pair(t)
                    for r in self._graph.consumers.get(reader.outputs[0], ())
                    for t in r.outputs
                ]
                found |= {None if pair is None else pair.value for pair in pairs}
            elif reader.op_type in ("Relu", "MaxPool") or self._is_clip(reader):
                found.add(self._written(reader.outputs[0]) if len(reader.outputs) == 1 else None)
            else:
                return None
        return found.pop() if len(found) == 1 and tensor not in self._graph.outputs else None

    def _is_clip(self, node: Node) -> bool:
        limits = [self._graph.constant(t) for t in node.inputs[1:] if t]
        return node.op_type == "Clip" and all(limit is not None for limit in limits)

    def _to_codes(
        self, node: Node, source: _Pair, weight: _Weight, bias: Array, scale: float
    ) -> None:
        edit, name = self._edit, node.name
        zeros = np.zeros(weight.values.shape, np.int8)
        inputs = [
            self._read(source.source, source.value, last=True),
            *(source.scale, self._zero),
            *(weight.name, weight.scale, edit.initializer(zeros, f"{name}_zeros")),
            *(self._scales[scale], self._zero),
            edit.initializer(bias, f"{name}_bias32"),
        ]
        how = {"domain": _CONTRIB, "channels_last": 1, **self._graph.attributes(node)}
        result = edit.add("QLinearConv", *inputs, name=f"{name}_codes", **how)
        self._give(node.outputs[0], scale, result)

    def _give(self, tensor: str, scale: float, codes: str) -> None:
        """Let `codes`, with the channels last, be those of a tensor, and give its values, too."""
        self._codes[tensor, scale, True] = codes
        operands = self._read(tensor, scale, last=False), self._scales[scale], self._zero
        self._edit.emit(make_node("DequantizeLinear", operands, tensor))

    def _recoded(self, node: Node) -> bool:
        """Whether a node between codes, or a pair of codes that are known, works on codes."""
        graph, output = self._graph, node.outputs[0] if node.outputs else ""
        if node.op_type == "DequantizeLinear":
            pair = self._pair(output)
            if pair is not None:
                operands = self._read(pair.source, pair.value, last=False), pair.scale, self._zero
                self._edit.emit(make_node("DequantizeLinear", operands, output))
            return pair is not None
        is_pool = node.op_type == "MaxPool" and len(node.outputs) == 1
        if not (is_pool or node.op_type == "Relu" or self._is_clip(node)):
            return False
        scale = self._written(output)
        start = self._codes.get((node.inputs[0], scale or 0.0, True))
        if scale is None or start is None:
            return False
        if is_pool:
            given = {k: v for k, v in graph.attributes(node).items() if k != "storage_order"}
            result = self._edit.add(
                "NhwcMaxPool", start, name=f"{node.name}_codes", domain=_CONTRIB, **given
            )
        else:
            bounds = (np.array(code, np.uint8) for code in self._limits(node, scale))
            limits = [self._edit.initializer(bound, f"{node.name}_limit") for bound in bounds]
            result = self._edit.add("Clip", start, *limits, name=f"{node.name}_codes")
        self._give(output, scale, result)
        return True

    def _limits(self, node: Node, scale: float) -> list[int]:
        """The least and the largest code behind a Relu or Clip."""
        limits = [0.0, math.inf] if node.op_type == "Relu" else [-math.inf, math.inf]
        for k, tensor in enumerate(node.inputs[1:]):
            value = self._graph.constant(tensor) if tensor else None
            limits[k] = limits[k] if value is None else float(value.reshape(()))
        steps = np.rint(np.array(limits, np.float32) / np.float32(scale))
        return [int(code) + 128 for code in np.clip(steps, -128, 127)]

    def _to_float(self, node: Node, source: _Pair, weight: _Weight) -> bool:
        """Whether the windows of a convolution were gathered and multiplied."""
        given = self._graph.attributes(node)
        windows = windows_of(
            self._graph.shapes.get(source.source, ()), weight.codes.shape[2:], given
        )
        if windows is None or given.get("group", 1) != 1:
            return False
        edit, name, codes = self._edit, node.name, weight.codes
        if windows.pixels is not None and codes.shape[1] < _FEWEST_CHANNELS:
            return False
        # The rows hold [kernel_h, kernel_w, in channels].
        matrix = self._constant(
            f"{weight.name}_rows", lambda: codes.transpose(2, 3, 1, 0).reshape(-1, len(codes))
        )
        rows = self._read(source.source, source.value, last=True)
        if any(windows.pads):
            top, left, bottom, right = windows.pads
            pads = edit.initializer(np.array([0, top, left, 0, 0, bottom, right, 0]), "pads")
            rows = edit.add("Pad", rows, pads, self._zero, name=f"{name}_padded")
        if windows.pixels is not None:
            rows = self._shaped(rows, [0, -1, codes.shape[1]])
            pixels = edit.initializer(windows.pixels, "pixels")
            rows = edit.add("Gather", rows, pixels, name=f"{name}_windows", axis=1)
            rows = self._shaped(rows, [0, math.prod(windows.out), codes[0].size])
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        product = edit.tensor_name(f"{name}_product")
        self._multiply(rows, matrix, (source.scale, weight.scale), bias, product)
        if windows.pixels is not None:
            product = self._shaped(product, [0, *windows.out, len(codes)])
        edit.emit(make_node("Transpose", [product], node.outputs[0], perm=_TO_FIRST))
        return True

    def _shaped(self, tensor: str, shape: Sequence[int]) -> str:
        sizes = self._edit.initializer(np.array(shape, np.int64), "shape")
        return self._edit.add("Reshape", tensor, sizes, name=f"{tensor}_shaped")


@dataclass(frozen=True)
class Windows:
    """Where the windows of a 2-D convolution lie.

    Attributes:
        pads: rows and columns added: top, left, bottom, right.
        out: height and width of the output.
        pixels: for every output pixel and kernel position the input pixel, row by row of the
            padded input: int32 [out_h · out_w · kernel_h · kernel_w]; None where output pixel i
            reads input pixel i alone.
    """

    pads: tuple[int, int, int, int]
    out: tuple[int, int]
    pixels: npt.NDArray[np.int32] | None


def windows_of(
    shape: Sequence[int | str | None], kernel: Sequence[int], attributes: Mapping[str, Any]
) -> Windows | None:
    """The windows over an input of `shape` [N, C, H, W]; None where they are not known beforehand,
    or are too large.

    The output's size is that of ONNX's Conv: ⌊(size + pads − dilation · (kernel − 1) − 1) / stride⌋
    + 1.
    """
    if len(shape) != 4 or not all(isinstance(size, int) for size in shape[1:]):
        return None
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    channels, *sizes = (int(size or 0) for size in shape[1:])
    pads = tuple(attributes.get("pads") or (0, 0, 0, 0))
    strides = attributes.get("strides") or (1, 1)
    dilations = attributes.get("dilations") or (1, 1)
    padded = tuple(sizes[i] + pads[i] + pads[i + 2] for i in (0, 1))
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    out = tuple((padded[i] - reach[i]) // strides[i] + 1 for i in (0, 1))
    if min(out) < 1 or out[0] * out[1] * kernel[0] * kernel[1] * channels > _LARGEST_ROWS:
        return None
    if padded == out and tuple(kernel) == (1, 1):
        return Windows(pads, out, None)
    rows, columns = (
        np.arange(out[i])[:, None] * strides[i] + np.arange(kernel[i]) * dilations[i]
        for i in (0, 1)
    )
    pixels = rows[:, None, :, None] * padded[1] + columns[None, :, None, :]
    return Windows(pads, out, pixels.reshape(-1).astype(np.int32))
