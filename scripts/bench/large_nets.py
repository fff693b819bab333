"""Transformer encoders of real sizes with random weights, written straight to external data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from nets import Builder
from onnx import TensorProto, helper

SIZES = {
    "encoder_0.1b": (12, 768, 30522),
    "encoder_0.7b": (24, 1536, 0),
    "encoder_1.5b": (48, 1600, 0),
}
"""Name -> layers, width, and words of the embedding; 0 for an input that is embedded already."""
TOKENS = 128
_ALIGNMENT = 4096
"""External data are memory-mapped where they begin on a page."""


class LargeBuilder(Builder):
    """A Builder that keeps no weight in memory."""

    def __init__(self, seed: int, data: BinaryIO, location: str) -> None:
        """Weights go to `data`, which the model calls `location`."""
        super().__init__(seed)
        self._data, self._location = data, location

    def weight(self, shape: tuple[int, ...], fan_in: int) -> str:
        name = f"w{len(self.weights)}"
        values = self.rng.standard_normal(shape, np.float32)
        values *= np.float32(np.sqrt(2.0 / fan_in))
        self._data.seek(-(-self._data.tell() // _ALIGNMENT) * _ALIGNMENT)
        offset = self._data.tell()
        self._data.write(values.data)
        declared = TensorProto(
            name=name,
            dims=shape,
            data_type=TensorProto.FLOAT,
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in (
            ("location", self._location),
            ("offset", str(offset)),
            ("length", str(values.nbytes)),
        ):
            entry = declared.external_data.add()
            entry.key, entry.value = key, value
        self.weights.append(declared)
        return name


def encoder(path: Path, layers: int, width: int, words: int, seed: int = 0) -> None:
    """Write an encoder of `layers` × 12·width² weights at `path`, its weights beside it.

    Its input is "input": words [batch, 128], or, without an embedding, [batch, 128, width].
    """
    data = path.with_name(f"{path.name}.data")
    with data.open("wb") as stream:
        model = _encoder(LargeBuilder(seed, stream, data.name), layers, width, words)
    path.write_bytes(model.SerializeToString())


def _encoder(b: LargeBuilder, layers: int, width: int, words: int) -> onnx.ModelProto:
    heads = width // 64
    split = b.constant(np.array([0, TOKENS, heads, 64], np.int64))
    join = b.constant(np.array([0, TOKENS, width], np.int64))
    scale = b.constant(np.float32(0.125))

    def heads_of(tensor: str, order: list[int]) -> str:
        return b.node("Transpose", [b.node("Reshape", [tensor, split])], perm=order)

    def gelu(tensor: str) -> str:
        half, one, root = (b.constant(np.float32(v)) for v in (0.5, 1.0, 2**0.5))
        erf = b.node("Add", [b.node("Erf", [b.node("Div", [tensor, root])]), one])
        return b.node("Mul", [b.node("Mul", [tensor, erf]), half])

    x = "input"
    if words:
        x = b.layer_norm(b.node("Gather", [b.weight((words, width), 2), x], axis=0), width)
    for _ in range(layers):
        n = b.layer_norm(x, width)
        q, k, v = (b.linear(n, width, width) for _ in range(3))
        scores = b.node("MatMul", [heads_of(q, [0, 2, 1, 3]), heads_of(k, [0, 2, 3, 1])])
        share = b.node("Softmax", [b.node("Mul", [scores, scale])], axis=-1)
        mixed = b.node(
            "Transpose", [b.node("MatMul", [share, heads_of(v, [0, 2, 1, 3])])], perm=[0, 2, 1, 3]
        )
        x = b.node("Add", [x, b.linear(b.node("Reshape", [mixed, join]), width, width)])
        hidden = gelu(b.linear(b.layer_norm(x, width), width, 4 * width))
        x = b.node("Add", [x, b.linear(hidden, 4 * width, width)])
    y = b.layer_norm(x, width)
    model = b.model(["batch", TOKENS, width], y, ["batch", TOKENS, width])
    if words:
        words_in = helper.make_tensor_value_info("input", TensorProto.INT64, ["batch", TOKENS])
        model.graph.input[0].CopyFrom(words_in)
    return model


def samples(path: Path, net: str, count: int, seed: int = 1) -> None:
    """Write `count` random samples for a network of `SIZES`."""
    _, width, words = SIZES[net]
    rng = np.random.default_rng(seed)
    if words:
        values = rng.integers(0, words, (count, TOKENS))
    else:
        values = rng.standard_normal((count, TOKENS, width), np.float32)
    np.savez(path, input=values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", choices=SIZES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=16)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    encoder(given.folder / f"{given.net}.onnx", *SIZES[given.net])
    samples(given.folder / f"{given.net}.npz", given.net, given.samples)


if __name__ == "__main__":
    main()
