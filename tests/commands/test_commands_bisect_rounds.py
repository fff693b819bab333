"""What a search repeats, and what of its time limit it leaves for its checks."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pytest import approx

import qdebug
from qdebug.decide.bisect import candidates, rounds, setup
from qdebug.decide.bisect.durations import seconds_of_another, seconds_of_checks
from qdebug.decide.bisect.evaluation import Verifier, open_verifier
from qdebug.decide.bisect.rounds import SearchOptions
from qdebug.decide.search.find import SearchResult, find
from qdebug.decide.search.outcome import Check
from qdebug.decide.search.problem import Pins
from qdebug.execute.evaluator import KeptReference

DATA = Path(__file__).parents[2] / "calib_data"
HOW: dict[str, Any] = {
    "inputs": DATA / "digits_holdout.npz",
    "samples": 24,
    "cache": False,
    "target": "output.sqnr_db>=40",
}


def test_the_reference_runs_once_on_each_part_of_the_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the answer on INT8 kernels is checked in the simulation."""
    runs: list[int] = []

    class Counted(KeptReference):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            runs.append(self.subset.count)

    monkeypatch.setattr(candidates, "KeptReference", Counted)
    result = qdebug.bisect(DATA / "digits_cnn.onnx", **HOW)
    assert result.found
    assert runs == [result.samples, 24 - result.samples]


def test_rating_takes_a_part_of_the_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float] = []

    def rate(*given: Any) -> None:
        left.append(given[-1] - time.monotonic())

    monkeypatch.setattr(setup, "noise_alone", rate)
    result = qdebug.bisect(DATA / "digits_cnn.onnx", **HOW, time_limit=300, max_evaluations=2)
    assert result.search.evaluations == 2
    assert 50 < left[0] < 100


def test_seconds_of_checks() -> None:
    seconds = partial(seconds_of_checks, 10.0)
    assert seconds(5.0, on_searched=False) == 0
    assert seconds(5.0, on_searched=True) == approx(26)
    assert seconds(40.0, on_searched=True) == approx(53)
    assert seconds(5.0, on_searched=False, held_out=2.0) == approx(72)
    assert seconds(5.0, on_searched=True, held_out=0.5) == approx(26 + 0.75 * 36)


def test_an_answer_is_explained_where_there_is_time() -> None:
    started = time.monotonic() - 80
    limited = SearchOptions("auto", time_limit_s=100, started=started)
    assert (limited.explaining_s(10), limited.explaining_s(11)) == (10, 0)
    assert limited.may_explain(15)
    assert not limited.may_explain(25)
    assert replace(limited, started=started - 200).may_explain(10), "time was kept for it"
    assert SearchOptions("auto").may_explain(1e9)


def test_what_the_time_does_not_allow_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SearchOptions, "may_explain", lambda *_: False)
    result = qdebug.bisect(DATA / "digits_cnn.onnx", **HOW, time_limit=300)
    assert result.layers and not any(x.causes for x in result.layers)
    assert any("time limit" in note for note in result.notes)


@pytest.mark.parametrize(("reference_s", "evaluations"), [(1000.0, 0), (10.0, 3)])
def test_a_search_that_leaves_no_time_for_checks_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, reference_s: float, evaluations: int
) -> None:
    class Slow(candidates.CandidateRunner):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            self.reference_s = reference_s

    monkeypatch.setattr("qdebug.decide.bisect.evaluation.CandidateRunner", Slow)
    result = qdebug.bisect(
        DATA / "digits_cnn.onnx", **HOW, time_limit=600, max_evaluations=evaluations or None
    )
    assert result.search.evaluations == evaluations
    assert ("600 s" in result.search.reason) == (not evaluations)


def test_local_errors_take_a_part_of_the_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then of the first execution alone, where that takes longer."""
    counted: list[int] = []
    rate = setup.layer_results

    def results(pair: Any, errors: Any) -> Any:
        counted.append(errors.local_samples)
        return rate(pair, errors)

    monkeypatch.setattr(setup, "layer_results", results)
    how = {**HOW, "batch_size": 1}
    for share in (lambda ends_at: ends_at, lambda _: -math.inf):
        monkeypatch.setattr(setup, "_share_of", share)
        qdebug.bisect(DATA / "digits_cnn.onnx", **how, time_limit=300, max_evaluations=1)
    assert counted[0] > counted[1] == 1


def test_an_answer_that_a_check_refutes_at_the_end_of_the_time_is_said_to_be_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refuting(Verifier):
        def check(self, pins: Pins) -> Check:
            check = super().check(pins)
            return replace(check, answer=replace(check.answer, passed=False, slack=None))

    search = rounds._search

    def late(*given: Any) -> Any:
        setup, one, options = given
        return search(setup, one, replace(options, time_limit_s=1e-9) if one.repeated else options)

    monkeypatch.setattr(rounds, "Verifier", Refuting)
    monkeypatch.setattr(rounds, "_search", late)
    result = qdebug.bisect(DATA / "digits_cnn.onnx", **HOW)
    assert result.found and not result.passed
    assert result.search.evaluations > 2
    assert [c.answer.passed for c in result.checks] == [False]
    assert not any("repeated" in note for note in result.notes)


def test_a_repeated_search_begins_with_a_set_that_had_enough_to_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that it has an answer even where its time is over soon."""

    class Disagreeing(Verifier):
        def check(self, pins: Pins) -> Check:
            check = super().check(pins)
            slack = (check.answer.slack or 0.0) - 3.0
            return replace(check, answer=replace(check.answer, passed=False, slack=slack))

    searches: list[SearchResult] = []

    def spied(*given: Any, **more: Any) -> SearchResult:
        searches.append(find(*given, **more))
        return searches[-1]

    monkeypatch.setattr(rounds, "Verifier", Disagreeing)
    monkeypatch.setattr(rounds, "find", spied)
    qdebug.bisect(DATA / "digits_cnn.onnx", **HOW, holdout=DATA / "digits_calib.npz")
    before, repeated = searches[0], searches[1]
    first, second = repeated.history[:2]
    spare = {e.pins: e.measurement.slack for e in before.history}
    assert (spare[first.pins] or 0.0) >= 3.0 - 0.1
    assert first.measurement.passed
    assert not second.pins, "then the search begins"


@pytest.mark.parametrize(("limited", "passed"), [(True, True), (False, False)])
def test_at_the_end_of_the_time_a_set_with_more_to_spare_is_tried(
    monkeypatch: pytest.MonkeyPatch, limited: bool, passed: bool
) -> None:
    """The held-out samples ask for 1 dB more, and there is time for one more evaluation. (Without a
    limit the cheapest sets come first.)"""

    class Strict(Verifier):
        def measure(self, sets: Any) -> Any:
            found = super().measure(sets)
            strict = {pins: m.slack - 1 for pins, m in found.items() if m.slack is not None}
            return {p: replace(found[p], slack=s, passed=s >= 0) for p, s in strict.items()}

    @contextmanager
    def opened(*given: Any) -> Any:
        with open_verifier(*given) as verifier:
            verifier.__class__ = Strict
            yield verifier

    search = rounds._search

    def late(setup: Any, one: Any, options: Any) -> Any:
        more = {"max_evaluations": 1} if one.held_out else {}
        return search(setup, one, replace(options, **more))

    monkeypatch.setattr(rounds, "open_verifier", opened)
    monkeypatch.setattr(rounds, "_search", late)
    result = qdebug.bisect(DATA / "digits_cnn.onnx", **HOW, time_limit=1e4 if limited else None)
    assert result.found and result.passed == passed


def test_seconds_of_another_set() -> None:
    seconds = partial(seconds_of_another, 10.0)
    assert seconds(5.0, on_searched=False) == approx(5)
    assert seconds(5.0, on_searched=True) == approx(5 + 26)
    assert seconds(40.0, on_searched=True, held_out=2.0) == approx(40 + 53 + 80)
