"""The table and what surrounds it, on a terminal of 80 columns and in a pipe."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from qdebug.display.compare import view
from qdebug.display.names import shorten, shorten_names, tail
from qdebug.metrics.parts import ErrorParts
from qdebug.metrics.tasks.base import BoxCounts
from qdebug.results.compare import TaskResult
from qdebug.results.words import (
    decibel,
    in_decibels,
    number,
    printable,
    share,
)

ODD = (
    "[red]x[/red]",
    "/a:b;c",
    "[/]",
    "слой/свёртка",
    "/blocks/blocks.0/" + "deeply/" * 40 + "conv/Conv",
    "层" * 120 + "/Conv",
    ":smile:",
    "a\nb\x1b[31mc\td",
    "",
)


def many(kit: Any) -> Any:
    layers = [kit.layer(name, local=float(i), op="ConvTranspose") for i, name in enumerate(ODD)]
    layers.append(kit.layer("broken", local=math.nan, metrics=kit.broken))
    outputs = [kit.OutputResult(f"output of {name}", kit.fine) for name in ODD[:4]]
    return kit.result(
        layers,
        outputs,
        notes=("A note about '[bold]x[/bold]' " + "that is quite long, " * 8 + "isn't it?",),
        metric=kit.TaskResult("my_metrics.py:mean_average_precision", 0.98, 0.77),
        first_divergence=kit.Divergence("t", ODD[4], 3.0, 20.0),
        conditions=(kit.Checked("output.cosine>=0.99", 0.5, False),),
    )


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_wider_than_the_terminal(
    kit: Any, plain: Callable[[str], str], width: int
) -> None:
    text = plain(kit.show(many(kit), width=width))
    for line in text.splitlines():
        assert cell_len(line.rstrip()) <= width, line
    for number_ in ("31.2", "ConvTrans", "int8"):
        assert number_ in text


def test_columns_are_not_cut_on_80_columns(kit: Any, plain: Callable[[str], str]) -> None:
    text = plain(kit.show(many(kit), width=80))
    (header,) = [line for line in text.splitlines() if "local dB" in line]
    assert header.split() == [
        "#",
        "layer",
        "op",
        "prec.",
        "local",
        "dB",
        "cum.",
        "dB",
        "range",
        "clip",
    ]
    rows = text.splitlines()[text.splitlines().index(header) + 1 :][: len(ODD) + 1]
    assert all("25%" in row for row in rows)
    ends = [row for row in rows if "deeply" in row]
    assert len(ends) == 1 and "deeply/conv" in ends[0]  # the end tells layers apart


def test_nothing_is_cut_or_coloured_in_a_pipe(kit: Any) -> None:
    text = kit.show(many(kit), width=None)
    assert "\x1b" not in text and "…" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    for name in ODD:
        assert printable(name) in text
    for words in (
        "ConvTranspose",
        "output of слой/свёртка",
        "my_metrics.py:mean_average_precision",
    ):
        assert words in text
    huge = "x" * 6000
    assert huge in kit.show(kit.result([kit.layer(huge)]), width=None)


def test_a_name_takes_all_the_room_that_the_numbers_leave(
    kit: Any, plain: Callable[[str], str]
) -> None:
    room = 80 - len("# " + " op   prec. local dB cum. dB range clip")
    fits, longer = "/" + "a" * (room - 1), "/" + "b" * room
    text = plain(kit.show(kit.result([kit.layer(fits), kit.layer(longer)]), width=80))
    rows = [line for line in text.splitlines() if line.startswith(("1 ", "2 "))]
    assert fits in rows[0] and longer not in rows[1]


def test_an_outputs_name_is_cut_and_not_the_word_before_it(
    kit: Any, plain: Callable[[str], str]
) -> None:
    found = kit.result([kit.layer("x")], [kit.OutputResult("/deep/" * 9 + "logits", kit.fine)])
    assert "\noutput …" in plain(kit.show(found, width=80))


def test_the_worst_of_many_outputs_are_listed(kit: Any) -> None:
    db = [40.0, 10.0, 30.0, math.nan, 50.0, 20.0]
    outputs = [
        kit.OutputResult(f"o{k}", dataclasses.replace(kit.fine, sqnr_db=v))
        for k, v in enumerate(db)
    ]
    text = kit.show(kit.result([kit.layer("x")], outputs), width=None)
    listed = [line.split()[1] for line in text.splitlines() if line.startswith("output ")]
    assert listed == ["o1", "o2", "o3", "o5"]
    assert "2 other outputs" in text and "SQNR 40.0 dB and more" in text


def test_boxes_next_to_labels_are_not_next_to_fp32s(kit: Any) -> None:
    """What FP32 misses as well, INT8 has not lost."""
    metric = TaskResult(
        "map", 0.9, 0.8, boxes=BoxCounts(9, 3, 2), reference_boxes=BoxCounts(10, 2, 1)
    )
    found = kit.result([kit.layer("x")], metric=metric)
    text = kit.show(found, width=None)
    assert "9 of 12 found (10 in FP32), 3 missed (2), 2 false (1)" in text
    same = dataclasses.replace(metric, reference_boxes=BoxCounts(12, 0, 0))
    text = kit.show(dataclasses.replace(found, metric=same), width=None)
    assert "9 of 12 kept, 3 lost, 2 new" in text


def test_a_harmless_overflow_is_no_finding(kit: Any) -> None:
    mask = dataclasses.replace(
        kit.layer("mask", local=math.nan, metrics=kit.broken), readers_sqnr_db=67.5
    )
    text = kit.show(kit.result([mask]), width=None)
    (row,) = [line for line in text.splitlines() if line.startswith("1 mask")]
    assert "harmless" in row
    assert "NaN or Inf" not in text
    assert "NaN or Inf" in kit.show(kit.result([kit.layer("x", metrics=kit.broken)]), width=None)


def test_markup_and_emoji_codes_are_text(kit: Any, plain: Callable[[str], str]) -> None:
    for width in (80, None):
        text = plain(kit.show(many(kit), width=width))
        for name in ("[red]x[/red]", "/a:b;c", "[/]", ":smile:", "[bold]x[/bold]"):
            assert name in text


def test_control_characters_of_a_name_do_nothing(kit: Any) -> None:
    assert printable("a\nb\x1b[31mc\td é 层") == "a\\nb\\x1b[31mc\\td é 层"
    text = kit.show(many(kit), width=None)
    assert "a\\nb\\x1b[31mc\\td" in text


def test_nan_is_shown(kit: Any, plain: Callable[[str], str]) -> None:
    broken = kit.layer("hot", local=math.nan, metrics=kit.broken)
    found = kit.result(
        [broken],
        [kit.OutputResult("out", kit.broken)],
        first_divergence=kit.Divergence("h", "hot", math.nan, 20.0),
        conditions=(kit.Checked("output.cosine>=0.9", math.nan, False),),
    )
    for width in (80, None):
        text = plain(kit.show(found, width=width))
        assert "2 NaN, 7 Inf" in text and "hot (NaN dB)" in text
        assert "NaN or Inf" in text and "2 tensors, first in out" in text
        (row,) = [line for line in text.splitlines() if " hot " in line and "int8" in line]
        assert row.split()[:6] == ["1", "hot", "Conv", "int8", "NaN", "NaN"]
        assert "FAILS  output.cosine>=0.9: NaN" in text


def test_the_verdict_is_last_but_for_the_file(kit: Any) -> None:
    condition = kit.Checked("output.cosine>=0.9", 0.95, True)
    found = kit.result([kit.layer("a")], conditions=(condition,))
    lines = kit.show(found, width=None, run_file=Path("run.h5")).splitlines()
    assert lines[-2:] == ["PASSED: 1 condition passed.", "Run file: run.h5"]
    assert lines[-3].split() == ["holds", "output.cosine>=0.9:", "0.95"]
    bare = kit.show(kit.result([]), width=None).splitlines()
    assert bare[-2] == "No gate was set (fail_on)." and "run.h5" in bare[-1]
    none = kit.Checked("metric>=0.9", None, False)
    assert "no value" in kit.show(kit.result([], conditions=(none,)), width=None)


def test_view_is_data(kit: Any) -> None:
    layers = [kit.layer(f"layer{i}") for i in range(14)]
    title, facts, _, heading, table, *_, checks, verdict = view(
        kit.result(layers, skipped=(kit.Skipped("t", "shape"),)), top=3
    )
    assert [row[1] for row in table.rows] == ["layer0", "layer1", "layer2"]
    assert table.styles == ("worst", "", "")
    assert "11 more" in heading.text and checks.rows == () and verdict.style == ""
    assert title.text == "net.onnx: INT8 simulated on ONNX Runtime against FP32, 12 samples"
    assert ("compared", "15 tensors of 14 layers; 1 skipped (json says why)") in facts.rows


def test_numbers() -> None:
    assert [number(x) for x in (math.nan, math.inf, -math.inf, 0.123456, 1e9)] == [
        *("NaN", "inf", "-inf", "0.1235", "1e+09")
    ]
    assert [decibel(x) for x in (None, math.inf, -math.inf, math.nan, 12.34)] == [
        *("–", "exact", "no signal", "NaN", "12.3")
    ]
    assert [in_decibels(x) for x in (None, math.inf, 12.34)] == ["–", "exact", "12.3 dB"]
    assert [share(x) for x in (None, 0, 1e-9, 0.0123, 1)] == ["–", "0", "<0.01%", "1.2%", "100%"]


@pytest.mark.parametrize("width", [5, 12, 24])
@pytest.mark.parametrize("text", ["abc", "a" * 30 + "z", "层" * 20 + "末", "/a/b/c/Conv", ""])
def test_shortening(text: str, width: int) -> None:
    for short in (shorten(text, width), tail(text, width)):
        assert cell_len(short) <= width
        assert (short == text) == (cell_len(text) <= width)
        assert short == text or ("…" in short and short[-1] == text[-1])


NAMES = st.lists(st.text("ab./_01层", min_size=1, max_size=40), min_size=1, max_size=6, unique=True)


@given(st.text("ab/", max_size=20), NAMES, st.text("ab/", max_size=20), st.integers(12, 40))
def test_different_names_stay_different(
    scope: str, middles: list[str], end: str, width: int
) -> None:
    names = [f"{scope}{middle}{end}" for middle in middles]
    shown = shorten_names(names, width)
    assert len(set(shown)) == len(names)
    for name, short in zip(names, shown, strict=True):
        assert cell_len(short) <= width
        assert short == name or cell_len(name) > width


PARTS = (
    *(
        "model",
        "encoder",
        "layer.0",
        "layer.1",
        "layer.10",
        "layer.11",
        "attention",
        "self",
        "query",
    ),
    *("key", "MatMul", "MatMul_1", "Add", "…", "#1", "…#1", "层"),
)
PATHS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=9).map("/".join)
OPERATORS = st.sampled_from(["MatMul", "Add", "Conv", ""])


@given(
    st.lists(st.tuples(PATHS, OPERATORS), min_size=2, max_size=30, unique_by=lambda row: row[0]),
    st.integers(12, 50),
)
def test_exported_names_with_operators_stay_different(
    rows: list[tuple[str, str]], width: int
) -> None:
    shown = shorten_names([name for name, _ in rows], width, [op for _, op in rows])
    assert len(set(shown)) == len(rows)
    for (name, _), short in zip(rows, shown, strict=True):
        assert cell_len(short) <= width
        assert short == name or cell_len(name) > width


@pytest.mark.parametrize("width", [12, 22, 32, 43])
def test_the_projections_of_a_deep_encoder_stay_different(width: int) -> None:
    rows = [
        (f"/model/encoder/layer.{i}/attention/self/{part}/{op}", op)
        for i in range(24)
        for part in ("query", "key", "value")
        for op in ("MatMul", "Add")
    ]
    shown = shorten_names([name for name, _ in rows], width, [op for _, op in rows])
    assert len(set(shown)) == len(rows)
    assert not (width > 20 and any("#" in short for short in shown))


def test_names_keep_what_tells_them_apart() -> None:
    def shown(width: int, *names: str) -> list[str]:
        return shorten_names(names, width, ["Add"] * len(names))

    adds = [f"/n/encoder/layer.{i}/attention/self/Add" for i in (1, 2, 11)]
    assert shown(26, *adds) == [
        *("…ayer.1/attention/self/Add", "…ayer.2/attention/self/Add", "…yer.11/attention/self/Add")
    ]
    assert shown(20, *adds) == [
        *("…layer.1/…n/self/Add", "…layer.2/…n/self/Add", "…layer.11…n/self/Add")
    ]
    assert shown(20, adds[0]) == ["…/attention/self/Add"]  # alone it goes by its end
    assert shown(36, adds[0]) == ["/n/encoder/layer.1/attention/self/…"]  # op has its own column
    far = ["a" * 30 + "b" * 30 + x + "c" * 30 + y + "d" * 30 for x in "12" for y in "12"]
    assert len(set(shown(20, *far))) == 4


def test_parts_of_errors_are_shown_in_detail_only(kit: Any, plain: Callable[[str], str]) -> None:
    parts = ErrorParts(16, 0.01, 0.004, 0.001, 0.003, 0.0022, -0.0002, 0.0)
    layers = [
        dataclasses.replace(kit.layer("block/" * 12 + "conv"), error_parts=parts),
        dataclasses.replace(kit.layer("float"), error_parts=ErrorParts(16, 0.02, 0.02)),
        kit.layer("broken"),
    ]
    found = kit.result(layers)
    assert "inherited" not in plain(kit.show(found, width=80))
    shown = plain(kit.show(found, width=80, detailed=True)).splitlines()
    (head,) = [k for k, line in enumerate(shown) if "inherited" in line]
    assert shown[head].split()[2:] == ["inherited", "weights", "clipping", "rounding", "interact."]
    assert shown[head + 1].split()[2:] == ["40%", "10%", "30%", "22%", "−2%"]
    assert shown[head + 2].split() == ["2", "float", "100%", "–", "–", "–", "–"]
    assert not shown[head + 3].strip()
    doubtful = dataclasses.replace(parts, unexplained=0.005)
    odd = kit.result([dataclasses.replace(layers[0], error_parts=doubtful)])
    text = plain(kit.show(odd, width=80, detailed=True))
    (row,) = [line for line in text.splitlines() if line.rstrip().endswith("50%")]
    assert cell_len(row.rstrip()) <= 80 and "…" in row and "conv" in row
