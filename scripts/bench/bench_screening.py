"""How well `compare` finds the worst layers of a network so large that it measures groups of them.

Deep networks with random weights, small enough for the truth, which is exact, every layer on all
samples; `compare` treats them as if each sample took as much work as one of 1.5 billion weights. In
most, some layers get activations with an outlier: one channel of a layer's input is multiplied by
16 to 256, its weights are divided by as much. Networks of the seeds from 100 on were not looked at
while this was developed.

Per network: the layers; those that make 5 % of the outputs' error or more, alone; how many of these
stand among as many listed first (by local error for comparison); whether the first is the one that
makes most (close: within a tenth); how many were measured by themselves; and the part of the error
that the noisiest group makes which was not divided.

    python scripts/bench/bench_screening.py --seeds 0 1 2 3
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime as ort
from bench_effect import LEADS
from common import parser_of
from nets import Builder
from onnx import numpy_helper

import qdebug
from qdebug.analyse.effect import effects as effect

_PASSES_PAID = 16.0
"""Passes of one sample that 3e12 MACs pay for, where it takes 1.9e11."""
_MATTERS = 0.05
_PLANTED = (0, 1, 2, 3, 5, 8)
_TOKENS, _WIDTH, _CHANNELS, _SIDE = 16, 64, 16, 8


@dataclass(frozen=True)
class Net:
    """A network, and the nodes whose inputs got an outlier."""

    model: onnx.ModelProto
    planted: frozenset[str]
    shape: tuple[int, ...]


def main() -> None:
    """Print a table row for each network."""
    ort.set_default_logger_severity(3)
    parser = parser_of(__doc__, samples=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--nets", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--blocks", type=int, help="of each network, instead of 48 or 50")
    arguments = parser.parse_args()
    print(
        "| network | layers | outputs dB | make 5 % | found | by local error | first | by local "
        "error | by themselves | noisiest group |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for seed in arguments.seeds:
        for kind in arguments.nets:
            with TemporaryDirectory() as folder:
                net = planted(KINDS[kind], seed, arguments.blocks or BLOCKS[kind])
                row = measured(net, seed, arguments.samples, Path(folder))
            print(f"| {kind} {seed} | {row}", flush=True)


def deep_encoder(b: Builder, blocks: int) -> tuple[str, tuple[int, ...]]:
    """Blocks of attention with one head and a feed-forward layer; its output and input shape."""
    x = "input"
    for _ in range(blocks):
        n = b.layer_norm(x, _WIDTH)
        q, k, v = (b.linear(n, _WIDTH, _WIDTH) for _ in range(3))
        scores = b.node("MatMul", [q, b.node("Transpose", [k], perm=[0, 2, 1])])
        scaled = b.node("Mul", [scores, b.constant(np.float32(_WIDTH**-0.5))])
        mixed = b.node("MatMul", [b.node("Softmax", [scaled], axis=-1), v])
        x = b.node("Add", [x, b.linear(mixed, _WIDTH, _WIDTH)])
        hidden = b.node("Relu", [b.linear(b.layer_norm(x, _WIDTH), _WIDTH, 2 * _WIDTH)])
        x = b.node("Add", [x, b.linear(hidden, 2 * _WIDTH, _WIDTH)])
    return b.layer_norm(x, _WIDTH), (_TOKENS, _WIDTH)


def deep_cnn(b: Builder, blocks: int) -> tuple[str, tuple[int, ...]]:
    """Residual blocks of three convolutions; its output and input shape."""
    x, wide = b.conv("input", 3, _CHANNELS, 3), 2 * _CHANNELS
    for _ in range(blocks):
        y = b.node("Relu", [b.conv(x, _CHANNELS, wide, 1)])
        y = b.node("Relu", [b.conv(y, wide, wide, 3)])
        x = b.node("Relu", [b.node("Add", [x, b.conv(y, wide, _CHANNELS, 1)])])
    return b.conv(x, _CHANNELS, 8, 1), (3, _SIDE, _SIDE)


KINDS = {"encoder": deep_encoder, "cnn": deep_cnn}
BLOCKS = {"encoder": 48, "cnn": 50}


def planted(
    build: Callable[[Builder, int], tuple[str, tuple[int, ...]]], seed: int, blocks: int
) -> Net:
    """A network of a seed with its outliers."""
    b, rng = Builder(seed), np.random.default_rng([seed, 1])
    output, shape = build(b, blocks)
    model = b.model(["batch", *shape], output, None)
    weights = {w.name: w for w in model.graph.initializer}
    layers = [n for n in model.graph.node if len(n.input) > 1 and _matrix(n, weights)]
    count = _PLANTED[seed % len(_PLANTED)]
    chosen = [layers[int(k)] for k in rng.choice(len(layers), count, replace=False)]
    for node in chosen:
        _outlier(model, node, weights[node.input[1]], float(2 ** rng.uniform(4, 8)), rng)
    return Net(model, frozenset(n.name for n in chosen), shape)


def _matrix(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> bool:
    return node.op_type in ("Conv", "MatMul") and node.input[1] in weights


def _outlier(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    weight: onnx.TensorProto,
    factor: float,
    rng: np.random.Generator,
) -> None:
    """Multiply a channel of the node's input, and divide its weights: the function stays."""
    is_conv = node.op_type == "Conv"
    values = numpy_helper.to_array(weight).copy()
    axis = 1 if is_conv else 0
    channel = int(rng.integers(values.shape[axis]))
    scale = np.ones(values.shape[axis], np.float32)
    scale[channel] = factor
    shape = [1] * values.ndim
    shape[axis] = -1
    weight.CopyFrom(numpy_helper.from_array(values / scale.reshape(shape), weight.name))
    name = f"{node.name}_scale"
    stored = scale.reshape(-1, 1, 1) if is_conv else scale
    model.graph.initializer.append(numpy_helper.from_array(stored, name))
    multiply = onnx.helper.make_node(
        "Mul", [node.input[0], name], [f"{name}d"], name=f"{name}_node"
    )
    at = list(model.graph.node).index(node)
    node.input[0] = f"{name}d"
    model.graph.node.insert(at, multiply)


def measured(net: Net, seed: int, samples: int, folder: Path) -> str:
    """The rest of a row."""
    model, data, calib = folder / "model.onnx", folder / "data.npz", folder / "calib.npz"
    onnx.save(net.model, model)
    rng = np.random.default_rng([seed, 2])
    for file, count in ((data, samples), (calib, 16)):
        np.savez(file, input=rng.standard_normal((count, *net.shape), np.float32))
    how = {"inputs": str(data), "calib_data": str(calib)}
    exact = qdebug.compare(str(model), effect="exact", **how)
    assert exact.effect is not None
    fast = as_if_huge(str(model), how)
    assert fast.effect is not None
    noise = exact.effect.noise
    truth = {x.name: (x.effect.alone or 0.0) / noise for x in exact.layers if x.effect}
    listed = [x.name for x in fast.layers if x.effect]
    by_local = sorted(exact.layers, key=lambda x: x.local_sqnr_db or math.inf)
    local = [x.name for x in by_local if x.name in truth]
    bad = {n for n in truth if truth[n] >= _MATTERS}
    alone = fast.effect.of_layers - fast.effect.grouped_layers
    decibels = min(t.metrics.sqnr_db for t in exact.outputs)
    return (
        f"{len(truth)} | {decibels:.1f} | {len(bad)} | {len(bad & {*listed[: len(bad)]})} | "
        f"{len(bad & {*local[: len(bad)]})} | {first(truth, listed)} | {first(truth, local)} | "
        f"{alone} | {fast.effect.group_share or 0.0:.1%} |"
    )


def first(truth: dict[str, float], listed: list[str]) -> str:
    """Whether the one listed first makes most."""
    best = max(truth, key=lambda n: truth[n])
    close = truth[listed[0]] * LEADS >= truth[best]
    return "right" if listed[0] == best else "close" if close else "wrong"


def as_if_huge(model: str, how: dict[str, str]) -> qdebug.CompareResult:
    """What compare gives where a sample takes the work of one of a billion weights and more."""
    kept = effect.macs_per_sample
    effect.macs_per_sample = lambda *_: effect._MOST_MACS / _PASSES_PAID
    try:
        return qdebug.compare(model, effect="fast", **how)
    finally:
        effect.macs_per_sample = kept


if __name__ == "__main__":
    main()
