"""Encodings for Qualcomm's converter: the grids of the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdebug.errors import PlanError
from qdebug.formats.base import along
from qdebug.formats.registry import FORMAT_OF, WEIGHT_FORMAT_OF
from qdebug.plan.lower import quantized_layer
from qdebug.types import Precision


def grid(encoding: dict[str, Any], values: Any) -> Any:
    """The values after an encoding, by its own definition: unsigned codes with an offset."""
    scale, last = np.float32(encoding["scale"]), 2 ** encoding["bitwidth"] - 1
    codes = np.clip(np.rint(values / scale) - encoding["offset"], 0, last)
    return ((codes + encoding["offset"]) * scale).astype(np.float32)


@pytest.mark.parametrize("precision", ["int8", "a16w8"])
def test_the_encodings_are_the_plans_grids(
    cnn: Path, plan_for: Any, write: Any, tmp_path: Path, precision: str
) -> None:
    source = plan_for(cnn, {"/stem/conv/Conv": "fp32"}, precision=precision, opset=21)
    write(source, "qnn")
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text("utf-8"))
    activations, weights = found["activation_encodings"], found["param_encodings"]
    layers = source.bound.quantized_layers()
    assert activations.keys() == {t for x in layers for t in x.quantized_inputs}
    x = np.linspace(-5, 5, 2001, dtype=np.float32)
    data, kernel = FORMAT_OF[Precision(precision)], WEIGHT_FORMAT_OF[Precision(precision)]
    for (encoding,) in activations.values():
        assert encoding["bitwidth"] == data.bits
        np.testing.assert_array_equal(grid(encoding, x), data.quantize(x, data.scale_of(4.0)))
        assert encoding["min"] == pytest.approx(encoding["scale"] * encoding["offset"])
        assert encoding["max"] == pytest.approx(4.0)
    for layer in layers:
        how = quantized_layer(source.bound, layer).weight
        if layer.weight not in weights or how is None:  # BatchNorm is folded into it
            continue
        values = source.bound.layers.graph.constant(layer.weight)
        rows = np.moveaxis(values, how.axis, 0)
        encoded = np.stack([grid(e, r) for e, r in zip(weights[layer.weight], rows, strict=True)])
        scale = along(how.scale, 0, rows.ndim)
        np.testing.assert_array_equal(encoded, kernel.quantize(rows / scale) * scale)


def test_one_tensor_has_one_encoding(cnn: Path, plan_for: Any, write: Any) -> None:
    source = plan_for(cnn, precision="fp32")
    with pytest.raises(PlanError) as caught:
        write(source, "qnn")
    assert caught.value.code == "QD-PLAN-NOTHING-TO-QUANTIZE"
