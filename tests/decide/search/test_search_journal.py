"""The journal: what is in it is not evaluated again, whatever ended the search before."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from qdebug.decide.search.journal import Journal
from qdebug.decide.search.oracle import Oracle
from qdebug.decide.search.problem import Measurement, Pins, pins_of
from qdebug.formats.registry import FORMAT_OF
from qdebug.types import Precision

KEY = {"model": "abc", "target": "metric>=0.9"}
ONE = pins_of({"conv": Precision.FP16})
TWO = pins_of({"conv": Precision.FP32, "/a:b\n;\x00é": Precision.FP16})

numbers = st.none() | st.floats(allow_nan=False)
measurements = st.builds(
    Measurement, value=numbers, passed=st.booleans(), noise=numbers, slack=numbers,
    seconds=st.floats(0, 1e6),
) | st.builds(Measurement, value=numbers, passed=st.just(False), failure=st.text())  # fmt: skip
pin_sets = st.dictionaries(st.text(min_size=1), st.sampled_from(list(FORMAT_OF))).map(pins_of)


@settings(max_examples=40)
@given(st.dictionaries(pin_sets, measurements, max_size=5))
def test_round_trip(entries: dict[Pins, Measurement]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "journal")
        with Journal(path, KEY) as journal:
            for pins, measurement in entries.items():
                journal.append(pins, measurement)
        with Journal(path, KEY) as again:
            assert again.recorded == entries
        for line in path.read_text().splitlines():
            json.loads(line, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))


def filled(path: Path) -> Path:
    with Journal(path, KEY) as journal:
        journal.append(ONE, Measurement(0.5, False, 0.1, 1.5, -0.4))
        journal.append(TWO, Measurement(0.95, True, 0.01, 1.5, 0.05))
    return path


def test_nothing_recorded_is_evaluated_again(tmp_path: Path) -> None:
    path = filled(tmp_path / "journal")
    calls: list[Pins] = []

    def evaluate(sets: list[Pins]) -> list[Measurement]:
        calls.extend(sets)
        return [Measurement(0.7, False)] * len(sets)

    with Journal(path, KEY) as journal:
        oracle = Oracle(evaluate, journal=journal)
        assert [m.value for m in oracle.ask_all([ONE, frozenset(), TWO])] == [0.5, 0.7, 0.95]
        assert [e.replayed for e in oracle.history] == [True, False, True]
        assert oracle.evaluations == 3
    assert calls == [frozenset()]


def test_a_line_cut_short_at_any_byte_is_dropped(tmp_path: Path) -> None:
    path = filled(tmp_path / "journal")
    data = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for length in sorted({*range(0, len(data), 9), *ends, *(end - 1 for end in ends)}):
        path.write_bytes(data[:length])
        with Journal(path, KEY) as journal:
            whole = [end for end in ends if end <= length]
            assert len(journal.recorded) == max(0, len(whole) - 1)
            journal.append(pins_of({"new": Precision.FP16}), Measurement(1.0, True))
        with Journal(path, KEY) as journal:
            assert pins_of({"new": Precision.FP16}) in journal.recorded


def test_the_journal_of_another_search_is_refused_and_kept(tmp_path: Path) -> None:
    path = filled(tmp_path / "journal")
    before = path.read_bytes()
    with refused("QD-STORE-JOURNAL", "journal:", "target"):
        Journal(path, {**KEY, "target": "metric>=0.8"})
    assert path.read_bytes() == before
    with Journal(path, {**KEY, "target": "metric>=0.8"}, restart=True) as journal:
        assert not journal.recorded


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (1, "{}"), (1, "hello"), (1, '{"schema": "qdebug.journal/9", "key": {}}'),
        (2, "not json"), (2, "{}"), (2, '{"pins": {"a": "int4"}}'), (2, ""), (3, "[" * 10**5),
    ],
)  # fmt: skip
def test_an_edited_line_is_refused_by_number(tmp_path: Path, line: int, text: str) -> None:
    path = filled(tmp_path / "journal")
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")
    where = "journal:" if line == 1 else f"journal:{line}:"
    with refused("QD-STORE-JOURNAL", where, "force"):
        Journal(path, KEY)


@pytest.mark.parametrize("edited", ["verdict", "header"])
def test_edited_evaluations_are_refused(tmp_path: Path, edited: str) -> None:
    """A verdict that was changed, and a journal whose header was made that of this search."""
    path, key = filled(tmp_path / "journal"), KEY
    text = path.read_text()
    if edited == "verdict":
        path.write_text(text.replace('"passed": false', '"passed": true'))
    else:
        key = {**KEY, "model": "def"}
        path.write_text(text.replace('"abc"', '"def"'))
    assert path.read_text() != text
    with refused("QD-STORE-JOURNAL", "journal:2:", "force"):
        Journal(path, key)


def test_a_file_that_is_no_journal_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("shopping list")
    with refused("QD-STORE-JOURNAL", "notes:"):
        Journal(path, KEY)
    assert path.read_text() == "shopping list"
    with refused("QD-STORE-OUTPUT-PATH", "missing/journal"):
        Journal(tmp_path / "missing" / "journal", KEY)


def test_an_evaluation_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "journal")
    last = path.read_bytes().splitlines()[-1]
    path.write_bytes(path.read_bytes() + last + b"\n")
    with refused("QD-STORE-JOURNAL", "journal:4:"):
        Journal(path, KEY)


def test_two_searches_do_not_share_a_journal(tmp_path: Path) -> None:
    with (
        Journal(tmp_path / "journal", KEY),
        refused("QD-STORE-BUSY", "journal"),
    ):
        Journal(tmp_path / "journal", KEY)


KILLED = """
import os, signal, sys
from pathlib import Path
from qdebug.decide.search.journal import Journal
from qdebug.decide.search.oracle import Oracle
from qdebug.decide.search.problem import Measurement, pins_of
from qdebug.types import Precision

def evaluate(sets):
    for pins in sets:
        if len(pins) == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(1, b"%d\\n" % len(pins))
        yield Measurement(len(pins) / 10, len(pins) > 6)

sets = [pins_of({str(i): Precision.FP16 for i in range(n)}) for n in range(8)]
with Journal(Path(sys.argv[1]), {"model": "m"}) as journal:
    oracle = Oracle(evaluate, journal=journal)
    oracle.ask_all(sets[:3])
    oracle.ask_all(sets[3:])
    assert oracle.evaluations == 8 and oracle.ask(sets[7]).passed
"""


def test_a_search_killed_in_the_middle_goes_on_without_repeating(tmp_path: Path) -> None:
    evaluated = []
    for dies_at in (2, 5, -1):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path / "journal"), str(dies_at)],
            capture_output=True, text=True, check=False, env={**os.environ},
        )  # fmt: skip
        assert done.returncode == (0 if dies_at < 0 else -signal.SIGKILL), done.stderr
        evaluated += [int(n) for n in done.stdout.split()]
    assert evaluated == list(range(8))


def test_a_disk_that_refuses_ends_only_what_the_user_wants_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Measurement(0.5, False, 0.1, 1.5, -0.4)
    path = filled(tmp_path / "journal")

    def refuse(*_: object) -> int:
        raise OSError(errno.EFBIG, "File too large")

    with Journal(path, KEY) as own, monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        with refused("QD-STORE-DISK-FULL", "journal"):
            own.append(ONE, measured)
    with Journal(path, KEY, needed=False) as cached:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", refuse)
            cached.append(ONE, measured)
        cached.append(TWO, measured)  # nor is it asked again
    with Journal(path, KEY) as again:
        assert len(again.recorded) == 2
