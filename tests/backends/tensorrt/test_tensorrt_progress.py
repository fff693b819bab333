"""TensorRT's nested phases as one percentage; the log's collector."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qdebug.backends.tensorrt.build.logger import LogCollector, LogMessage, log_text
from qdebug.backends.tensorrt.build.progress import BuildProgress
from qdebug.types import Progress


def test_an_inner_phase_is_one_step_of_the_outer() -> None:
    steps: list[Progress] = []
    progress = BuildProgress(steps.append)
    progress.phase_start("outer", 2)
    progress.phase_start("inner", 4)
    for i in range(4):
        progress.step_complete("inner", i)
    progress.phase_finish("inner")
    progress.step_complete("outer", 0)
    progress.phase_start("deep", 10)
    progress.step_complete("deep", 4)
    assert [s.done for s in steps] == [0, 12, 25, 37, 50, 75]
    progress.finish()
    assert steps[-1] == Progress("build", 100, 100)


@given(st.lists(st.tuples(st.sampled_from("sxf"), st.sampled_from("abc"), st.integers(0, 9))))
def test_any_order_of_phases_rises_within_bounds(events: list[tuple[str, str, int]]) -> None:
    """TensorRT promises nesting; a phase that never ends, or steps without a phase, do no harm."""
    steps: list[Progress] = []
    progress = BuildProgress(steps.append)
    for kind, name, number in events:
        if kind == "s":
            progress.phase_start(name, number)
        elif kind == "x":
            progress.step_complete(name, number)
        else:
            progress.phase_finish(name)
    shares = [s.done for s in steps]
    assert shares == sorted(set(shares)) and all(0 <= share <= 100 for share in shares)


def test_messages_reach_who_collects_them() -> None:
    logs = LogCollector()
    logs.add("ERROR", "nobody listens")
    with logs.collecting() as outer:
        logs.add("WARNING", "one")
        with logs.collecting() as inner:
            logs.add("VERBOSE", "two\nlines")
        logs.add("INFO", "three")
    logs.add("ERROR", "nobody listens")
    assert [m.text for m in outer] == ["one", "two\nlines", "three"]
    assert inner == [LogMessage("VERBOSE", "two\nlines")]
    assert log_text(outer) == "[TRT] [W] one\n[TRT] [V] two\nlines\n[TRT] [I] three\n"
