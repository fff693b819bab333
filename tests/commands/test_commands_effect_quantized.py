"""What layers of models that other tools have quantized cost at the outputs, against brute force:
the FP32 model's nodes are put into the file by hand, and ONNX Runtime runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from brute_force import in_fp32, noise, outputs
from producers import ONNX_RUNTIME, TOOLS, quantized_by_onnx_runtime

import qdebug
from qdebug.analyse.effect import effects as effect
from qdebug.analyse.effect.sets import Outcome, Sets

ROOT = Path(__file__).parents[2]
CNN = ROOT / "calib_data" / "digits_cnn.onnx"
IMAGES = np.load(ROOT / "calib_data" / "digits_holdout.npz")["input"][:8]
MOVED = {"/classifier/Gemm": ("/Flatten",)}
"""A layer reads what was rounded before it was moved."""


def compared(quantized: Path, reference: Path | None = CNN) -> qdebug.CompareResult:
    more = {} if reference is None else {"reference": str(reference)}
    how = {"inputs": {"input": IMAGES}, "batch_size": 1, "effect": "exact", **more}
    return qdebug.compare(str(quantized), **how)


@pytest.mark.parametrize("way", [w for w in ONNX_RUNTIME if w != "qoperator"])
def test_effects_are_those_of_brute_force(tmp_path: Path, way: str) -> None:
    path = quantized_by_onnx_runtime(way, CNN, tmp_path)
    found = compared(path)
    fp32, quantized, feeds = onnx.load(CNN), onnx.load(path), {"input": IMAGES}
    expected = outputs(fp32, feeds)
    whole = noise(expected, outputs(quantized, feeds))
    assert found.effect is not None
    assert found.effect.noise == pytest.approx(whole, rel=1e-4)
    layers = {x.name: (*x.nodes, *MOVED.get(x.name, ())) for x in found.layers}
    effects = {x.name: x.effect for x in found.layers if x.effect}
    assert len(effects) == (14 if way == "dynamic" else 18)
    for name in (*list(effects)[:4], *list(effects)[-2:]):
        effect = effects[name]
        rest = noise(expected, outputs(in_fp32(quantized, fp32, [layers[name]]), feeds))
        assert effect.gain == pytest.approx(whole - rest, abs=1e-3 * whole)
        others = [nodes for other, nodes in layers.items() if other != name]
        alone = noise(expected, outputs(in_fp32(quantized, fp32, others), feeds))
        assert effect.alone == pytest.approx(alone, abs=1e-3 * whole)


def test_integer_operators_cost_what_their_equivalents_do(tmp_path: Path) -> None:
    """Both formats have the same scales."""
    found = [
        compared(quantized_by_onnx_runtime(w, CNN, tmp_path)) for w in ("default", "qoperator")
    ]
    pairs, integer = [{x.name: x.effect for x in f.layers if x.effect} for f in found]
    assert pairs.keys() == integer.keys()
    for name, one in pairs.items():
        assert integer[name].output_share == pytest.approx(one.output_share, abs=0.01)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("given", [True, False])
def test_models_of_other_tools_without_rounding_are_their_fp32_models(
    tool: str, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit; and each layer alone makes less noise than all of them together, or not much
    more."""
    nothing = []
    plain = effect._alone

    def watched(sets: Sets, most: int) -> dict[effect.Group, Outcome]:
        (without,) = sets([sets.candidates.everything])
        nothing.append(without.noise.sum() if without else None)
        return plain(sets, most)

    monkeypatch.setattr(effect, "_alone", watched)
    made = ROOT / "tests" / "producers"
    found = compared(made / f"{tool}.onnx", made / "fp32.onnx" if given else None)
    assert nothing == [0.0]
    effects = [x.effect for x in found.layers if x.effect]
    assert found.effect is not None and len(effects) >= 2
    assert max(e.output_share or 0.0 for e in effects) > 0.3
    assert all(0 < (e.alone or 0.0) < 2 * found.effect.noise for e in effects)


def test_a_bias_that_was_corrected_is_a_cost_of_its_layer() -> None:
    """NNCF moves the mean of what the first convolution gives."""
    made = ROOT / "tests" / "producers"
    first = compared(made / "nncf.onnx", made / "fp32.onnx").layers[0]
    assert first.tensor == "relu" and (first.output_share or 0.0) > 0.5


def test_shares_of_a_quantized_model_may_be_gated(tmp_path: Path) -> None:
    path = quantized_by_onnx_runtime("default", CNN, tmp_path)
    result = qdebug.compare(
        str(path),
        inputs={"input": IMAGES},
        reference=str(CNN),
        fail_on=["layer.output_share<=0.1"],
    )
    assert not result.conditions[0].passed
    assert result.conditions[0].value == result.layers[0].output_share


def test_layers_in_fp16_around_the_quantized_ones(tmp_path: Path) -> None:
    """Constants of the FP32 model take the type of the layer that they are put into."""
    plan, mixed = tmp_path / "plan.yaml", tmp_path / "mixed.onnx"
    how = {"fallback_precision": "fp16", "effect": "none", "save_plan": plan}
    qdebug.compare(str(CNN), inputs={"input": IMAGES}, **how)
    qdebug.export(plan, model=str(CNN), to="onnx", output=mixed)
    found = compared(mixed)
    effects = [x.effect for x in found.layers if x.precision == "int8"]
    assert found.effect is not None and len(effects) == 14
    assert all(one is not None and one.gain < found.effect.noise for one in effects)
