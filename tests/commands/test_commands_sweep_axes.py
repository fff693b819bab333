"""What a sweep's rows say together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qdebug.commands.sweep.axes import slower_note
from qdebug.results.sweep import (
    Combination,
    EngineFacts,
    EngineRun,
    Misbuilt,
    OutputErrors,
    SweepRow,
)

ERRORS = OutputErrors({}, None, None)
ENGINE = EngineFacts("8.9", 1.0, 1, 1, {}, (), (), (), "0f")


def rows(latencies: dict[str, float]) -> list[SweepRow]:
    return [
        SweepRow(
            number,
            Combination(precision, *("",) * 9),
            ERRORS,
            "",
            ENGINE,
            execution=EngineRun(ERRORS, latency),
        )
        for number, (precision, latency) in enumerate(latencies.items(), start=1)
    ]


def test_int8_that_is_not_faster_than_16_bits_is_not_worth_it() -> None:
    timed = rows({"fp32": 3.0, "fp16": 1.25, "int8": 1.5, "int8+fp16": 1.25})
    (said,) = slower_note(timed)
    assert said == (
        "INT8+FP16 is not worth it here: its fastest engine (#4) takes 1.25 ms, that in FP16 (#2) "
        "1.25 ms."
    )
    misbuilt = replace(ENGINE, mismatches=(Misbuilt("a", "fp16", "fp32"),))
    assert slower_note([replace(r, engine=misbuilt) for r in timed]) == ()


@pytest.mark.parametrize(
    "latencies", [{"fp16": 1.25, "int8": 1.0}, {"fp32": 1.0, "int8": 2.0}, {"fp16": 1.0}]
)
def test_nothing_is_said_of_what_is_faster_or_was_not_timed(latencies: dict[str, float]) -> None:
    assert slower_note(rows(latencies)) == ()
