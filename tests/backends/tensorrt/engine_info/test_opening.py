"""Files are known by their content: models, layer information, profiles, logs, and what is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from refusals import refused

from qdebug.backends.tensorrt.serialized import read_engine
from qdebug.engine_info.diff import MatchedBy, diff
from qdebug.engine_info.files.opening import open_engine_file, open_profile
from qdebug.engine_info.files.timing import with_times
from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource
from qdebug.engine_info.summary import gate_values, summarize
from qdebug.engine_info.tensors import EngineTensor

opened = partial(open_engine_file, read_serialized=read_engine)
NETWORKS = Path(__file__).parents[4] / "calib_data"
LAYERS = {
    "Layers": [
        {"Name": "conv", "LayerType": "CaskConvolution",
         "Inputs": [{"Name": "a", "Dimensions": [1], "Format/Datatype": "Int8"}], "Outputs": [],
         "Weights": {"Type": "Int8", "Count": 1}, "Metadata": "[ONNX Layer: conv]"},
        {"Name": "fc", "LayerType": "gemm",
         "Inputs": [{"Name": "b", "Dimensions": [1], "Format/Datatype": "Half"}], "Outputs": [],
         "Metadata": "[ONNX Layer: fc]"},
    ],
    "Bindings": [],
}  # fmt: skip
PROFILE: list[Any] = [
    {"count": 10},
    {"name": "conv", "timeMs": 5.0, "averageMs": 0.5, "medianMs": 0.4, "percentage": 20.0},
    {"name": "fc", "timeMs": 20.0, "averageMs": 2.0, "medianMs": 2.0, "percentage": 80.0},
]


def _write(path: Path, content: Any) -> Path:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_every_kind_is_known_whatever_its_name(
    inspected: Callable[[str, str], Any], tmp_path: Path
) -> None:
    log = inspected("digits_cnn", "int8").log
    model = (NETWORKS / "digits_cnn.onnx").read_bytes()
    kinds = {
        "model.txt": (model, InfoSource.ONNX), "log.json": (log, InfoSource.BUILD_LOG),
        "layers.log": (LAYERS, InfoSource.LAYER_INFO), "times.onnx": (PROFILE, InfoSource.PROFILE),
        "windows.log": (("\n" + log).encode("utf-16"), InfoSource.BUILD_LOG),
    }  # fmt: skip
    for name, (content, source) in kinds.items():
        assert opened(_write(tmp_path / name, content)).source is source


def test_a_model_without_a_zero_byte_is_a_model(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "relu")],
        "g",
        [value("x", TensorProto.FLOAT, [2])],
        [value("y", TensorProto.FLOAT, [2])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    proto.opset_import[0].ClearField("domain")  # which is the default one
    data = proto.SerializeToString()
    assert b"\0" not in data
    info = opened(_write(tmp_path / "tiny.onnx", data))
    assert [layer.name for layer in info.layers] == ["relu"]


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"vtrt\0\0\0\0", "QD-USAGE-ENGINE-FILE-FOREIGN", "--exportLayerInfo"),
        (b"ptrt\0\0\0\0", "QD-USAGE-ENGINE-FILE-FOREIGN", "--exportLayerInfo"),
        (b"\x89HDF\r\n\x1a\n\0", "QD-USAGE-ENGINE-FILE", "file"),
        ("", "QD-USAGE-ENGINE-FILE", "file"),
        ("hello\n", "QD-USAGE-ENGINE-FILE", "file"),
        ('{"a": 1}', "QD-USAGE-ENGINE-FILE", "file"),
        ("[]", "QD-USAGE-ENGINE-FILE", "file"),
        ('{"Layers": [\n"a",', "QD-USAGE-ENGINE-FILE-DAMAGED", "file:2:"),
        ("[" * 100_000, "QD-USAGE-ENGINE-FILE-DAMAGED", "file"),
        ("[TRT] [V] Parsing node: a [Conv]\n", "QD-USAGE-ENGINE-FILE", "--verbose"),
        (b"\x08\x00\xff\xff", "QD-USAGE-ENGINE-FILE", "file"),
    ],
)
def test_what_is_none_is_refused_by_name(
    content: Any, code: str, says: str, tmp_path: Path
) -> None:
    with refused(code, says, str(tmp_path / "file")):
        opened(_write(tmp_path / "file", content))


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with refused("QD-USAGE-FILE-UNREADABLE", "gone.log"):
        opened(tmp_path / "gone.log")


def test_times_are_joined_by_name_and_split_by_precision(tmp_path: Path) -> None:
    info = opened(_write(tmp_path / "layers", LAYERS))
    times = open_profile(_write(tmp_path / "profile", PROFILE))
    timed = with_times(info, times, "profile")
    assert [layer.time_ms for layer in timed.layers] == [0.5, 2.0]
    values = gate_values(summarize(timed))
    assert (values["total_ms"], values["int8_time_share"]) == (2.5, 0.2)
    assert values["int8_mac_share"] is None
    total_only = [{"count": 10}, {"name": "conv", "timeMs": 5.0}, {"name": "copy", "timeMs": 1.0}]
    some = with_times(info, open_profile(_write(tmp_path / "p", total_only)), "p")
    assert [layer.time_ms for layer in some.layers] == [0.5, None]
    assert any("1 of 2 times" in note for note in some.notes)


@pytest.mark.parametrize(
    ("document", "code", "named"),
    [
        ({"Layers": []}, "QD-USAGE-ENGINE-FILE", "profile"),
        ([{"count": 10}], "QD-USAGE-ENGINE-FILE-DAMAGED", "profile"),
        ([{"count": 1}, {"name": "a"}], "QD-USAGE-ENGINE-FILE-DAMAGED", "'a'"),
        (
            [{"count": 1}, {"name": "other", "averageMs": 1}],
            "QD-USAGE-PROFILE-OTHER-ENGINE",
            "'other'",
        ),
    ],
)
def test_profiles_that_are_none_or_of_another_engine(
    document: Any, code: str, named: str, tmp_path: Path
) -> None:
    info = opened(_write(tmp_path / "layers", LAYERS))
    with refused(code, named):
        with_times(info, open_profile(_write(tmp_path / "profile", document)), "profile")


def test_a_model_is_seen_in_the_precision_its_nodes_ask_for(
    inspected: Callable[[str, str], Any], tmp_path: Path
) -> None:
    for kind in ("fp32", "fp16", "int8"):
        path = tmp_path / f"{kind}.onnx"
        onnx.save(inspected("digits_encoder", kind).graph.proto, path)
        info = opened(path)
        shares = summarize(info).shares
        assert [share.precision for share in shares] == [kind]
        assert shares[0].products == 26
        assert shares[0].macs == _macs(inspected("digits_encoder", kind).info)
    assert not summarize(info).unread  # a residual Add reads its own pair within a product


def _macs(info: EngineInfo) -> float | None:
    (share,) = summarize(info).shares
    return share.macs


def test_two_engines_differ_by_node(inspected: Callable[[str, str], Any]) -> None:
    plain, quantized = (inspected("digits_cnn", kind).info for kind in ("fp32", "int8"))
    assert diff(plain, plain).changes == ()
    result = diff(plain, quantized)
    kinds = {change.node: change.changed for change in result.changes}
    assert "precision" in kinds["/stem/conv/Conv"]
    assert "fusion" in kinds["/stem/act/Clip"]  # no longer in the convolution's kernel
    assert not any("QuantizeLinear" in node for node in kinds)
    assert result.compared_nodes == 31


def test_times_tactics_and_lost_nodes_differ() -> None:
    def engine(tactic: str, ms: float, *more: str) -> EngineInfo:
        conv = EngineLayer(
            "c", "gemm", (EngineTensor("x", "fp16"),), tactic=tactic, onnx_nodes=("c",), time_ms=ms
        )
        return EngineInfo(
            (conv, *(EngineLayer(n, "kgen", onnx_nodes=(n,)) for n in more)), InfoSource.LAYER_INFO
        )

    changes = diff(engine("t1", 1.0, "a"), engine("t2", 1.2, "b")).changes
    assert [(c.node, c.changed) for c in changes] == [
        ("c", ("tactic", "time")), ("a", ("only-before",)), ("b", ("only-after",)),
    ]  # fmt: skip
    assert diff(engine("t", 1.0), engine("t", 1.05)).changes == ()
    other = EngineInfo((EngineLayer("z", onnx_nodes=("z",)),), InfoSource.BUILD_LOG)
    assert diff(engine("t", 1.0), other).matched_by is MatchedBy.TOTALS


def test_texts_that_begin_with_a_bracket_are_no_json(tmp_path: Path) -> None:
    """trtexec and Polygraphy begin their lines with the time or the level in brackets."""
    time = "[01/01/2025-10:00:00] [I] "
    rows = ("=== Profile (10 iterations ) ===", "   Layer   Time (ms)   Avg. Time (ms)   Time %",
            "  conv_a       5.00   0.5000     50.0")  # fmt: skip
    table = "".join(f"{time}{row}\n" for row in rows)
    info = opened(_write(tmp_path / "profile.log", table))
    assert info.source is InfoSource.PROFILE
    assert [(x.name, x.time_ms) for x in info.layers] == [("conv_a", 0.5)]
    compared = "[I]     Comparing Output: 'out' (dtype=float32)\n[E]         FAILED\n"
    with refused("QD-USAGE-ENGINE-FILE", "Polygraphy"):
        opened(_write(tmp_path / "polygraphy.log", compared))
