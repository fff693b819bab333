"""Verdicts on recorded kernels of TensorRT for RTX, beside what their sources multiply.

One case of each kind of kernel, recorded when docs/validation/audit.md was measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qdebug.engine_info.audit import AuditedLayer, AuditVerdict, audit
from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource, OnnxNode
from qdebug.engine_info.tensors import EngineTensor
from qdebug.types import Precision

CASES = [
    json.loads(line)
    for line in Path(__file__).with_name("audit_cases.jsonl").read_text().splitlines()
]
SAME = (AuditVerdict.SAME, AuditVerdict.FUSED)


def _tensors(text: str) -> Iterator[EngineTensor]:
    for part in text.split():
        dtype, _, dims = part.rstrip("]").partition("[")
        yield EngineTensor("", dtype, dims=tuple(int(d) for d in dims.split(",") if d))


def _info(case: dict[str, Any]) -> EngineInfo:
    layers = tuple(
        EngineLayer(
            name, kind, *(tuple(_tensors(text)) for text in operands), onnx_nodes=tuple(naming)
        )
        for name, kind, reads, holds, writes, naming in case["layers"]
        for operands in [(reads, writes, holds)]
    )
    named = tuple(
        OnnxNode(name, op, tuple(reads), tuple(writes), tuple(map(tuple, shapes)))
        for name, op, reads, writes, shapes in case["nodes"]
    )
    io = tuple(EngineTensor(name) for name in case["io"])
    return EngineInfo(layers, InfoSource.BUILD_LOG, io, nodes=named)


def _row(case: dict[str, Any], asked: Precision) -> AuditedLayer:
    (row,) = audit({case["product"]: asked}, _info(case)).layers
    return row


def _name(case: dict[str, Any]) -> str:
    return f"{case['net']} {case['plan']} {case['product']}"


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_a_verdict_says_what_the_kernel_multiplies(case: dict[str, Any]) -> None:
    for asked in (Precision.INT8, Precision.FP16, Precision.FP32):
        row = _row(case, asked)
        if row.verdict is AuditVerdict.UNKNOWN:
            assert not case["told"] and not row.built
        elif case["multiplies"]:
            assert row.built == case["multiplies"]
            assert (row.verdict in SAME) == (asked == row.built)
        # "Pin it" is advice for what is quantized in the model and in floating point in the engine.
        pinned = row.advice.startswith("Pin it")
        assert not pinned or (asked is Precision.INT8 and row.built in ("fp16", "fp32"))
        assert not pinned or case["plan"] not in ("data-only", "weights-only")


def test_the_cases_are_of_all_kinds() -> None:
    assert {case["held_out"] for case in CASES} == {True, False}
    assert {case["multiplies"] for case in CASES} >= {"int8", "fp16", "fp32"}
    unknown = [case for case in CASES if not case["told"]]
    assert 0 < len(unknown) < len(CASES) / 10
    compiled = [c for c in CASES if any("Corr" in name for name, *_ in c["layers"])]
    assert sum(c["multiplies"] == "int8" for c in compiled) > 20
