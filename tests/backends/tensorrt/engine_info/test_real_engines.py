"""What is read from files that TensorRT wrote on GPUs, against what was counted in them by hand.
They lie beside the checkout (../shared/assets/tensorrt_files), with where each is from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from qdebug.engine_info.diff import MatchedBy, diff
from qdebug.engine_info.files.opening import open_engine_file, open_profile
from qdebug.engine_info.files.timing import with_times
from qdebug.engine_info.layers import EngineInfo, InfoSource, Role
from qdebug.engine_info.lints import lint
from qdebug.engine_info.summary import gate_values, summarize

_BESIDE = [p / "shared" / "assets" / "tensorrt_files" for p in Path(__file__).parents]
FILES = next((p for p in _BESIDE if p.is_dir()), _BESIDE[0])
needs_files = pytest.mark.skipif(
    not FILES.is_dir(), reason="the files are not beside the checkout (../shared/assets)"
)


def opened(name: str) -> EngineInfo:
    info = open_engine_file(FILES / name, lambda data, path: None)
    profile = FILES / name.replace(".graph.", ".profile.")
    if ".graph." not in name:
        return info
    return with_times(info, open_profile(profile), profile.name)


TRUTH: Mapping[str, Mapping[str, float | None]] = {
    "A100_qat_resnet-qat.graph.json": {
        "layer_count": 37, "int8_share": 1, "fused_share": 0.615, "unread_qdq": 0,
        "total_ms": 1.0957, "int8_mac_share": 1, "int8_time_share": 1, "reformat_count": 12,
    },
    "A100_fp16_resnet.graph.json": {
        "layer_count": 36, "fp16_share": 1, "total_ms": 1.0168, "reformat_count": 2,
        "unread_qdq": 0, "int8_share": 0,
    },
    "tf_RTX-3090_qat_resnet-qat.graph.json": {
        "layer_count": 63, "int8_share": 1, "total_ms": 2.3806, "fused_share": 0.538,
        "unread_qdq": 0, "int8_mac_share": 1,
    },
    "mobilenet.qat.graph.json": {
        "layer_count": 73, "int8_share": 1, "total_ms": 0.4704, "unread_qdq": 0,
    },
    "cookbook_trtexec_layerinfo.json": {"layer_count": 9, "fused_share": 8 / 11, "fp32_share": 1},
    "cookbook_trtexec_result04.log": {"layer_count": 9, "fused_share": 8 / 11, "fp32_share": 1},
    # Three of the layers are Myelin's, which hold all products.
    "cookbook_trtexec_result02.cut.log": {
        "layer_count": 6, "fp16_share": None, "int8_share": None, "reformat_count": 1,
    },
    "cookbook_engineinspector.log": {"layer_count": 12, "fp16_share": 0.75, "unread_qdq": 0},
    "cookbook_rtxdir_trt_verbose.log": {"layer_count": 1, "int8_share": None},
}  # fmt: skip


@needs_files
@pytest.mark.parametrize("name", TRUTH)
def test_figures_are_those_counted_by_hand(name: str) -> None:
    values = gate_values(summarize(opened(name)))
    found = {key: values[key] for key in TRUTH[name]}
    assert found == pytest.approx(TRUTH[name], abs=5e-4)


@needs_files
@pytest.mark.parametrize(
    ("name", "products", "precision", "gigamacs"),
    [
        ("A100_qat_resnet-qat.graph.json", 21, "int8", 32 * 1.814),  # ResNet-18, batch of 32
        ("A100_fp16_resnet.graph.json", 21, "fp16", 32 * 1.814),
        ("tf_RTX-3090_qat_resnet-qat.graph.json", 54, "int8", 32 * 3.858),  # ResNet-50 v1
        ("mobilenet.qat.graph.json", 53, "int8", 0.3008),  # MobileNetV2
    ],
)
def test_the_products_and_their_work(
    name: str, products: int, precision: str, gigamacs: float
) -> None:
    (share,) = summarize(opened(name)).shares
    assert (share.products, share.precision) == (products, precision)
    assert share.macs == pytest.approx(gigamacs * 1e9, rel=1e-3)


@needs_files
def test_the_log_and_the_json_of_one_engine_say_the_same() -> None:
    log, layers = (
        opened(f"cookbook_trtexec_{kind}") for kind in ("result04.log", "layerinfo.json")
    )
    assert log.notes == layers.notes == ()
    assert [t.name for t in log.io] == [t.name for t in layers.io] == ["x", "y", "z"]
    assert log.library == "10.16.1"
    for one, other in zip(log.layers, layers.layers, strict=True):
        assert (one.name, one.onnx_nodes, one.precision, one.macs) == (
            other.name, other.onnx_nodes, other.precision, other.macs
        )  # fmt: skip


@needs_files
def test_a_brief_log_of_tensorrt_10_tells_types_and_tactics() -> None:
    info = opened("cookbook_trtexec_result02.cut.log")
    assert info.source is InfoSource.BUILD_LOG
    types = [tuple(t.dtype for t in (*x.inputs, *x.outputs)) for x in info.layers]
    assert types[1:4] == [("fp32", "fp32"), ("fp32", "fp16"), ("fp16", "fp16")]
    assert info.layers[4].tactic == "0xf9ae51e35ff7f5db"
    assert [x.role for x in info.layers].count(Role.OPAQUE) == len(info.hidden) == 3


@needs_files
@pytest.mark.parametrize(
    ("name", "codes"),
    [
        # Residuals without Q/DQ pairs of their own, and then with them.
        ("A100_qat_resnet-qat.graph.json", {"quantizer-alone": 7, "wide-output": 2}),
        (
            "tf_RTX-3090_qat_resnet-qat.graph.json",
            {"quantizer-alone": 0, "no-tensor-cores": 1, "data-movement": 3},
        ),
        ("A100_fp16_resnet.graph.json", {"quantizer-alone": 0, "converting-copy": 2}),
    ],
)
def test_what_costs_time(name: str, codes: Mapping[str, int]) -> None:
    found = {x.code: len(x.layers) for x in lint(opened(name))}
    assert {code: found.get(code, 0) for code in codes} == codes


@needs_files
def test_nodes_of_the_fp16_and_the_int8_engine_are_matched_by_structure() -> None:
    """Their exporters numbered them apart: "Conv_43" is another one's "Conv_215"."""
    found = diff(*(opened(f"A100_{kind}.graph.json") for kind in ("fp16_resnet", "qat_resnet-qat")))
    assert (found.matched_by, found.compared_nodes) == (MatchedBy.STRUCTURE, 23)
    totals = {
        w.role: (w.layers_before, w.layers_after, w.ms_before, w.ms_after) for w in found.work
    }
    assert totals[Role.MATRIX] == (
        21,
        21,
        pytest.approx(0.857, abs=1e-3),
        pytest.approx(0.7107, abs=1e-4),
    )
    assert totals[Role.REFORMAT] == (
        2,
        12,
        pytest.approx(0.0881, abs=1e-4),
        pytest.approx(0.2785, abs=1e-4),
    )
    slower = [c for c in found.changes if c.node == "Conv_0"]
    assert [(c.before.precision, c.after.precision) for c in slower if c.before and c.after] == [
        ("fp16", "int8")
    ]


@needs_files
def test_two_optimization_profiles_are_one_engine() -> None:
    (note,) = opened("cookbook_engineinspector.log").notes
    assert "2 optimization profiles" in note
