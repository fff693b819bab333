"""Every precision in every command on every backend: accepted, or refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest

import qdebug
from qdebug.backends.registry import built_in, spec_of
from qdebug.config.search import PinToName
from qdebug.config.shared import FallbackName
from qdebug.decide.search.problem import PinTo
from qdebug.errors import QdebugError, UsageError
from qdebug.formats.registry import BITS, CAST, FORMAT_OF, RANGED, SCALED, WEIGHT_ONLY
from qdebug.testing.contract import network
from qdebug.types import Precision

X = np.random.default_rng(5).normal(size=(24, 4)).astype(np.float32)
BACKENDS = [spec.name for spec in built_in()]
PRECISIONS = list(FORMAT_OF)
CAPABILITY = {"tensorrt-rtx": "8.9"}


def model() -> onnx.ModelProto:
    """A network of one product, with float outputs."""
    proto = network()
    del proto.graph.output[1]
    return proto


def on(backend: str) -> dict[str, Any]:
    """The engine settings for it; skips what is not installed."""
    if not spec_of(backend).installed:
        pytest.skip(f"{backend} is not installed")
    named = CAPABILITY.get(backend)
    return {"backend": backend, **({"compute_capability": named} if named else {})}


def refused(call: Callable[[], Any], precision: str, *codes: str) -> None:
    with pytest.raises(QdebugError) as caught:
        call()
    assert caught.value.code in codes
    assert precision.upper() in caught.value.message.upper()
    assert caught.value.hint


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("command", ["compare", "bisect", "sweep"])
def test_a_command_takes_what_the_backend_has(
    command: str, precision: Precision, backend: str
) -> None:
    def run() -> Any:
        common: dict[str, Any] = {"inputs": {"x": X}, **on(backend)}
        if command == "compare":
            return qdebug.compare(model(), precision=precision, **common)
        if command == "sweep":
            return qdebug.sweep(model(), precision=[precision], **common)
        target = "output.sqnr_db>=200"
        return qdebug.bisect(model(), precision=precision, target=target, pin_to="fp32", **common)

    spec = spec_of(backend)
    if command == "sweep" and not spec.builds:
        with pytest.raises(UsageError) as caught:
            run()
        assert caught.value.code == "QD-USAGE-BACKEND-CAPABILITY"
    elif precision not in spec.precisions:
        refused(run, precision, "QD-USAGE-BACKEND-PRECISION")
    elif command == "bisect" and precision is Precision.FP32:
        refused(run, precision, "QD-USAGE-NOTHING-TO-PIN")
    else:
        found = run()
        said = found.to_dict()
        if command == "compare":
            products = {x.precision for x in found.layers if x.op_type == "MatMul"}
            assert products <= {precision} and said["precision"] == precision
            engine = found.engine if backend == "tensorrt-rtx" else None
            assert engine is None or (engine.audit is not None and engine.audit.passed)
        if command == "bisect":
            assert found.found and {x.precision for x in found.layers} == {Precision.FP32}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_calibrate(precision: Precision, tmp_path: Path) -> None:
    def run() -> Any:
        return qdebug.calibrate(model(), calib_data={"x": X}, precision=precision)

    if precision not in RANGED:
        refused(run, precision, "QD-USAGE-CHOICE")
        return
    result = run()
    assert result.precision == result.to_dict()["precision"] == precision
    amax, scale = (
        (entry.range.amax, entry.scale) for entry in result.methods["minmax"].tensors.values()
    ).__next__()
    assert scale == pytest.approx(amax / FORMAT_OF[precision].largest, rel=1e-6)
    if precision is not Precision.INT8:
        with pytest.raises(UsageError, match=precision.upper()) as caught:
            path = tmp_path / "trt.cache"
            qdebug.calibrate(model(), calib_data={"x": X}, precision=precision, trt_cache=path)
        assert caught.value.code == "QD-USAGE-CACHE-PRECISION"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_repair(precision: Precision, tmp_path: Path) -> None:
    def run() -> Any:
        calib = {"x": X[:12] + 0.1}
        given = {"inputs": {"x": X}, "calib_data": calib, "only": "bias-correction"}
        return qdebug.repair(model(), precision=precision, output=tmp_path / "r.onnx", **given)

    if precision is Precision.FP32 or precision in WEIGHT_ONLY:
        refused(run, precision, "QD-USAGE-NOTHING-TO-REPAIR")
        return
    assert run().precision == precision
    assert (tmp_path / "r.onnx").exists()


@pytest.mark.parametrize("rest", get_args(FallbackName))
@pytest.mark.parametrize("precision", sorted(SCALED & FORMAT_OF.keys()))
def test_the_fallback_precision(precision: Precision, rest: str) -> None:
    result = qdebug.compare(
        model(), inputs={"x": X}, precision=precision, fallback_precision=rest, effect="none"
    )
    assert {str(x.precision) for x in result.layers} <= {precision, rest}


@pytest.mark.parametrize("pin_to", [p for p in PinTo if p.precision])
@pytest.mark.parametrize("precision", [p for p in PRECISIONS if p is not Precision.FP32])
def test_what_layers_are_pinned_to(precision: Precision, pin_to: PinTo) -> None:
    """As many bits or more; what needs ranges only from what has them."""

    def run() -> Any:
        target = "output.sqnr_db>=500"
        return qdebug.bisect(
            model(), inputs={"x": X}, precision=precision, target=target, pin_to=pin_to
        )

    end = Precision(pin_to)
    wider = BITS[end] >= BITS[precision]
    ranges = end not in RANGED or precision in RANGED
    blocks = end not in WEIGHT_ONLY or precision in WEIGHT_ONLY
    if end is precision or not (wider and ranges and blocks):
        refused(run, pin_to, "QD-USAGE-NOTHING-TO-PIN")
        return
    result = run()
    assert result.cost.all_pinned_to == pin_to
    assert result.found == (pin_to is PinTo.FP32)


def test_the_flags_name_all_of_them() -> None:
    assert get_args(PinToName) == tuple(PinTo)
    assert {p.precision for p in PinTo} - {None} == FORMAT_OF.keys() - {Precision.W4}


@pytest.mark.parametrize(("precision", "least"), [("fp8", "8.9"), ("bf16", "8.0"), ("w4", "8.0")])
def test_gpus_that_have_no_such_kernels(precision: str, least: str) -> None:
    for capability in ("7.5", "8.0,8.6"):
        given = {**on("tensorrt-rtx"), "compute_capability": capability}
        if least == "8.0" and capability != "7.5":
            assert qdebug.compare(model(), inputs={"x": X}, precision=precision, **given).engine
            continue
        with pytest.raises(UsageError, match=precision.upper()) as caught:
            qdebug.compare(model(), inputs={"x": X}, precision=precision, **given)
        assert caught.value.code == "QD-USAGE-CAPABILITY-PRECISION"
        assert f"from {least} on" in caught.value.hint and "FP16" in caught.value.hint


@pytest.mark.parametrize("precision", CAST)
def test_the_ladder_of_a_network_that_is_cast(precision: Precision) -> None:
    result = qdebug.bisect(
        model(),
        inputs={"x": X},
        precision=precision,
        target="output.sqnr_db>=200",
        pin_to="ladder",
    )
    assert result.found and {x.precision for x in result.layers} == {Precision.FP32}
