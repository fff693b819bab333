"""ONNX graphs in float64, node by node, written straight from the operators' definitions.

It shares no code with qdebug and knows the operators of the small networks in tests/producers and
calib_data, integer ones included. Only the division of QuantizeLinear is in float32, as its
definition has it: pixels of k/16 lie in the middle between two codes. An integer operator also
gives the value that it rounds, under the name of its output with "_values"; codes that are only
moved give their values, with "_dequantized".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

RANGES = {np.dtype(k): (np.iinfo(k).min, np.iinfo(k).max) for k in (np.int8, np.uint8)}
Values = dict[str, Any]
GRID_AT = {"QLinearConv": 6, "QGemm": 7, "QLinearAdd": 6, "QLinearGlobalAveragePool": 3}
"""Where the scale and the zero point of the output are among the inputs."""


def evaluate(
    proto: onnx.ModelProto,
    feeds: Mapping[str, Any],
    forced: Mapping[str, Any] | None = None,
    exact: Collection[str] = (),
    constants: Mapping[str, Any] | None = None,
    *,
    clips: bool = False,
) -> Values:
    """Every tensor of one execution.

    Args:
        forced: values that later nodes read in place of what was computed.
        exact: activations that are not rounded: names of what QuantizeLinear reads.
        constants: values in place of dequantized constants, by the name DequantizeLinear gives.
        clips: those that are not rounded are clipped as quantizing would.
    """
    env: Values = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    env |= {n: np.asarray(v, np.float64) for n, v in feeds.items()}
    shown: Values = dict(env)
    grids: dict[str, list[Any]] = {}
    bare: Values = {}  # codes that are not rounded -> the values
    for node in proto.graph.node:
        reads = [env[t] if t else None for t in node.input]
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "DequantizeLinear" and node.input[0] in bare:
            found: Any = bare[node.input[0]]
        elif constants and node.output[0] in constants:
            found = constants[node.output[0]]
        else:
            found = OPERATORS[node.op_type](reads, given)
        if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") and node.input[0] in exact:
            bare[node.output[0]] = _clipped(reads, found) if clips else reads[0]
        outputs = found if isinstance(found, tuple) else (found,)
        if node.op_type.startswith(("QLinear", "QGemm")):
            values, codes = outputs
            shown[f"{node.output[0]}_values"] = values
            outputs = (codes,)
            grids[node.output[0]] = reads[GRID_AT[node.op_type] :][:2]
        elif node.input and node.input[0] in grids and node.op_type != "DequantizeLinear":
            grid = grids[node.output[0]] = grids[node.input[0]]  # codes, as they were found
            shown[f"{node.output[0]}_dequantized"] = _dequantize(outputs[0], *grid)
        for name, value in zip(node.output, outputs, strict=False):
            shown[name] = value
            env[name] = forced[name] if forced and name in forced else value
    return shown


def _along(values: Any, rank: int, axis: int) -> Any:
    values = np.asarray(values)
    if values.ndim == 0 or values.size == 1:
        return values.reshape(())
    return values.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def _quantize(x: Any, scale: Any, zero: Any, axis: int = 1) -> Any:
    kind = np.dtype(np.uint8) if zero is None else np.asarray(zero).dtype
    low, high = RANGES[kind]
    shift = 0 if zero is None else _along(zero, x.ndim, axis).astype(np.float64)
    ratio = np.asarray(x, np.float32) / _along(scale, x.ndim, axis).astype(np.float32)
    code = np.rint(ratio).astype(np.float64) + shift
    return np.clip(code, low, high).astype(kind)


def _dequantize(q: Any, scale: Any, zero: Any = None, axis: int = 1) -> Any:
    shift = 0 if zero is None else _along(zero, q.ndim, axis).astype(np.float64)
    return (q.astype(np.float64) - shift) * _along(scale, q.ndim, axis).astype(np.float64)


def _clipped(reads: list[Any], found: Any) -> Any:
    """What QuantizeLinear or DynamicQuantizeLinear reads, within the range of its codes."""
    codes, scale, zero = found if isinstance(found, tuple) else (found, reads[1], _opt(reads, 2))
    low, high = RANGES[codes.dtype]
    shift = 0.0 if zero is None else np.float64(zero)
    return np.clip(reads[0], (low - shift) * np.float64(scale), (high - shift) * np.float64(scale))


def _conv(x: Any, w: Any, b: Any, given: Mapping[str, Any]) -> Any:
    group, strides = given.get("group", 1), given.get("strides", [1, 1])
    top, left, bottom, right = given.get("pads", [0, 0, 0, 0])
    x = np.pad(np.asarray(x, np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    count, per_group, height, width = w.shape
    rows = (x.shape[2] - height) // strides[0] + 1
    columns = (x.shape[3] - width) // strides[1] + 1
    out = np.zeros((len(x), count, rows, columns))
    wide = np.asarray(w, np.float64)
    for g in range(group):
        inside = x[:, g * per_group : (g + 1) * per_group]
        some = slice(g * count // group, (g + 1) * count // group)
        for i in range(height):
            for j in range(width):
                part = inside[
                    :, :, i : i + rows * strides[0] : strides[0],
                    j : j + columns * strides[1] : strides[1],
                ]  # fmt: skip
                out[:, some] += np.einsum("nchw,oc->nohw", part, wide[some, :, i, j])
    return out if b is None else out + np.asarray(b, np.float64).reshape(1, -1, 1, 1)


def _gemm(a: Any, b: Any, c: Any, given: Mapping[str, Any]) -> Any:
    a = a.T if given.get("transA") else a
    b = b.T if given.get("transB") else b
    product = given.get("alpha", 1.0) * (np.asarray(a, np.float64) @ np.asarray(b, np.float64))
    return product if c is None else product + given.get("beta", 1.0) * np.asarray(c, np.float64)


def _opt(reads: list[Any], place: int) -> Any:
    return reads[place] if len(reads) > place else None


def _clip(reads: list[Any], _: Any) -> Any:
    low, high = _opt(reads, 1), _opt(reads, 2)
    return np.clip(reads[0], -np.inf if low is None else low, np.inf if high is None else high)


def _reduce_mean(reads: list[Any], given: Mapping[str, Any]) -> Any:
    axes = given["axes"] if "axes" in given else reads[1]
    keep = bool(given.get("keepdims", 1))
    return np.asarray(reads[0], np.float64).mean(tuple(int(a) for a in axes), keepdims=keep)


def _constant(_: Any, given: Mapping[str, Any]) -> Any:
    value = next(iter(given.values()))
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.array(value)


def _dynamic(reads: list[Any], _: Any) -> Any:
    x = np.asarray(reads[0], np.float64)
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    scale = (high - low) / 255 or 1.0
    zero = np.array(np.clip(np.rint(-low / scale), 0, 255), np.uint8)
    return _quantize(x, scale, zero), np.array(scale), zero


def _qlinear_conv(r: list[Any], given: Mapping[str, Any]) -> Any:
    bias = None if _opt(r, 8) is None else r[8] * (np.float64(r[1]) * np.float64(r[4]))
    values = _conv(_dequantize(r[0], r[1], r[2]), _dequantize(*r[3:6], axis=0), bias, given)
    return values, _quantize(values, r[6], r[7])


def _qgemm(r: list[Any], given: Mapping[str, Any]) -> Any:
    scale = np.float64(r[1]) * np.float64(r[4])
    bias = None if _opt(r, 6) is None else r[6] * scale * given.get("alpha", 1.0)
    axis = 0 if given.get("transB") else 1
    values = _gemm(_dequantize(*r[:3]), _dequantize(*r[3:6], axis=axis), bias, given)
    return values, _quantize(values, r[7], r[8])


def _qlinear_add(r: list[Any], _: Any) -> Any:
    values = _dequantize(*r[:3]) + _dequantize(*r[3:6])
    return values, _quantize(values, r[6], _opt(r, 7))


def _qlinear_pool(r: list[Any], _: Any) -> Any:
    values = _dequantize(*r[:3]).mean((2, 3), keepdims=True)
    return values, _quantize(values, r[3], _opt(r, 4))


def _integer(x: Any, zero: Any) -> Any:
    return x.astype(np.float64) - (0 if zero is None else np.asarray(zero, np.float64))


def _conv_integer(r: list[Any], given: Mapping[str, Any]) -> Any:
    return _conv(_integer(r[0], _opt(r, 2)), _integer(r[1], _opt(r, 3)), None, given)


OPERATORS: dict[str, Callable[[list[Any], Mapping[str, Any]], Any]] = {
    "Add": lambda r, _: r[0].astype(np.float64) + r[1],
    "Cast": lambda r, _: r[0],
    "Clip": _clip,
    "Constant": _constant,
    "Conv": lambda r, g: _conv(r[0], r[1], _opt(r, 2), g),
    "ConvInteger": _conv_integer,
    "DequantizeLinear": lambda r, g: _dequantize(r[0], r[1], _opt(r, 2), g.get("axis", 1)),
    "DynamicQuantizeLinear": _dynamic,
    "Flatten": lambda r, _: r[0].reshape(len(r[0]), -1),
    "Gemm": lambda r, g: _gemm(r[0], r[1], _opt(r, 2), g),
    "GlobalAveragePool": lambda r, _: r[0].mean((2, 3), keepdims=True),
    "Identity": lambda r, _: r[0],
    "MatMul": lambda r, _: np.asarray(r[0], np.float64) @ np.asarray(r[1], np.float64),
    "MatMulInteger": lambda r, _: _integer(r[0], _opt(r, 2)) @ _integer(r[1], _opt(r, 3)),
    "Mul": lambda r, _: r[0].astype(np.float64) * r[1],
    "QGemm": _qgemm,
    "QLinearAdd": _qlinear_add,
    "QLinearConv": _qlinear_conv,
    "QLinearGlobalAveragePool": _qlinear_pool,
    "QuantizeLinear": lambda r, g: _quantize(r[0], r[1], _opt(r, 2), g.get("axis", 1)),
    "ReduceMean": _reduce_mean,
    "Relu": lambda r, _: np.maximum(r[0], 0),
    "Transpose": lambda r, g: np.transpose(r[0], g["perm"]),
    "Reshape": lambda r, _: r[0].reshape([int(n) for n in r[1]]),
}
