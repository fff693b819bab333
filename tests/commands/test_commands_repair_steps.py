"""The order of a repair: what is tried, kept, skipped, and when it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdebug.decide.remedies.remedy import Proposal, Remedy
from qdebug.decide.remedies.result import Reason
from qdebug.decide.repair.steps import Attempt, State, Trying, _proposals
from qdebug.decide.repair.verdict import (
    Judgement,
    answer_of,
    choices_of,
    holds,
    standard_error,
    verdict_on,
)
from qdebug.results.conditions import Condition

LAYERS = tuple("abcdefgh")


@dataclass(frozen=True)
class Network:
    """Stands in for a quantized network: the layers that each remedy was applied to."""

    applied: frozenset[tuple[str, str]] = frozenset()


@dataclass
class Judge:
    """Judges such networks: `good` layers take noise off, all others add some."""

    good: dict[str, frozenset[str]]
    metric: Callable[[Network], float | None] = lambda _: None
    asked: list[Network] = field(default_factory=list)

    def __call__(self, network: Network) -> Judgement:
        self.asked.append(network)
        db = 10.0 + sum(
            1.0 if layer in self.good.get(remedy, ()) else -1.0 for remedy, layer in network.applied
        )
        noise_db = -db + np.linspace(-1e-3, 1e-3, 8)
        metric = self.metric(network)
        outputs: Any = {"y": Sqnr(db)}
        left_out = np.zeros(0) if metric is None else metric + np.linspace(-1e-5, 1e-5, 8)
        return Judgement(outputs, metric, noise_db, left_out)

    def until(self, _: float) -> Judge:
        return self

    def verdict(self, *judged: Judgement) -> Any:
        return verdict_on(*judged)

    def samples_for(self, verdict: Any) -> int | None:
        return math.ceil(8 * verdict.times) if math.isfinite(verdict.times) else None

    def best_of(self, one: Judgement | None, other: Judgement) -> Judgement:
        return other if one is None or (one.metric or 0) < (other.metric or 0) else one


def test_a_rewritten_network_that_was_corrected_is_tried_without() -> None:
    bare: Any = SimpleNamespace(bound=SimpleNamespace(corrections={}))
    corrected: Any = SimpleNamespace(
        bound=SimpleNamespace(corrections={"a": None}), with_own_weights=lambda: bare
    )

    def seen(*, rewrites: bool, start: Any = corrected) -> list[Any]:
        remedy: Any = SimpleNamespace(
            rewrites=rewrites,
            propose=lambda *_: iter(
                [Proposal(corrected, ("a",), "x"), Proposal(bare, ("a",), "y")]
            ),
        )
        nothing: Any = None
        return [one.result for one in _proposals(remedy, nothing, start, ("a",))]

    assert seen(rewrites=True) == [corrected, bare, bare]
    assert seen(rewrites=True, start=bare) == [corrected, bare]  # its own corrections stay
    assert seen(rewrites=False) == [corrected, bare]


@dataclass(frozen=True)
class Sqnr:
    """Metrics of an output, as far as they are asked for."""

    sqnr_db: float


class Samples:
    count = 64


@dataclass(frozen=True)
class Study:
    """As far as trying looks at one."""

    samples: Any = Samples
    progress: Any = lambda _: None

    def until(self, _: float) -> Study:
        return self

    def most_harmful_first(self, layers: Sequence[str]) -> list[str]:
        return sorted(layers)


def remedy(name: str, layers: Sequence[str] = LAYERS, fewest: int = 1, **more: Any) -> Remedy:
    def propose(_: Any, network: Any, chosen: Sequence[str]) -> Iterator[Proposal]:
        changed = network.applied | {(name, layer) for layer in chosen}
        yield Proposal(replace(network, applied=changed), tuple(chosen))

    return Remedy(name, fewest, lambda _: tuple(layers), propose, **more)


def run(judge: Judge, *remedies: Remedy, **how: Any) -> tuple[State, Judgement, str]:
    known = {one.name: one for one in remedies}
    settings: dict[str, Any] = {"enough": lambda _: False, "holds": lambda _: False} | how
    trying = Trying(Study(), judge, known, **settings)
    network: Any = Network()
    return trying.run(State(network, tuple(Attempt(one.name) for one in remedies)))


def kept(state: State) -> set[str]:
    network: Any = state.network
    return {layer for _, layer in network.applied}


def test_a_remedy_that_helps_everywhere_is_kept_at_once() -> None:
    judge = Judge({"one": frozenset(LAYERS)})
    state, found, explanation = run(judge, remedy("one"))
    assert kept(state) == set(LAYERS) and explanation == ""
    assert [s.accepted for s in state.steps] == [True] and len(judge.asked) == 2
    assert found.sqnr_db == pytest.approx(18) and state.steps[0].gain_db == pytest.approx(8)
    assert state.steps[0].reason is Reason.LESS_NOISE


def test_one_that_harms_as_a_whole_is_not_kept() -> None:
    judge = Judge({"one": frozenset("abc")})
    state, found, _ = run(judge, remedy("one"))
    assert not kept(state) and found.sqnr_db == pytest.approx(10)
    assert [s.reason for s in state.steps] == [Reason.NO_GAIN]


def test_groups_are_judged_apart() -> None:
    judge = Judge({"one": frozenset("abcdefg")})
    apart = remedy("one", groups=lambda _, layers: [tuple(layers[:-1]), tuple(layers[-1:])])
    state, _, _ = run(judge, apart)
    assert kept(state) == set("abcdefg")
    assert [(s.layers[-1], s.accepted) for s in state.steps] == [("g", True), ("h", False)]


def test_a_metric_that_falls_outweighs_less_noise() -> None:
    judge = Judge(
        {"one": frozenset(LAYERS), "two": frozenset(LAYERS)},
        metric=lambda network: 0.5 if ("one", "h") in network.applied else 0.9,
    )
    state, found, _ = run(judge, remedy("one"), remedy("two"))
    assert {step.remedy: step.accepted for step in state.steps} == {"one": False, "two": True}
    assert found.metric == 0.9 and state.steps[0].reason is Reason.METRIC_FELL


def test_it_ends_when_it_is_good_enough() -> None:
    judge = Judge({"one": frozenset(LAYERS), "two": frozenset(LAYERS)})
    enough = run(judge, remedy("one"), remedy("two"), enough=lambda found: found.sqnr_db >= 18)
    assert {step.remedy for step in enough[0].steps} == {"one"}
    assert [a.remedy for a in enough[0].waiting] == ["two"] and enough[2] == ""


def test_a_target_that_holds_is_not_given_up() -> None:
    judge = Judge({"one": frozenset(LAYERS)})
    state, _, _ = run(judge, remedy("one"), holds=lambda found: found.sqnr_db < 12)
    assert found_db(judge, state) < 12


def test_what_makes_the_target_hold_is_kept_though_most_samples_gain_nothing() -> None:
    """An SQNR of all samples may be that of one noisy sample."""

    @dataclass
    class OneNoisySample(Judge):
        def __call__(self, network: Network) -> Judgement:
            found = super().__call__(network)
            return replace(found, noise_db=np.zeros(8))

    judge = OneNoisySample({"one": frozenset(LAYERS)})
    state, _, _ = run(judge, remedy("one"))
    assert not kept(state)
    state, _, _ = run(judge, remedy("one"), holds=lambda found: found.sqnr_db >= 18)
    assert kept(state) == set(LAYERS) and state.steps[0].reason is Reason.TARGET


def found_db(judge: Judge, state: State) -> float:
    network: Any = state.network
    return judge(network).sqnr_db


def test_what_each_kept_change_led_to_may_be_the_answer() -> None:
    judge = Judge({name: frozenset(LAYERS) for name in ("one", "three")})
    state, _, _ = run(judge, *(remedy(name) for name in ("one", "two", "three")))
    assert [one.steps for one in state.alternatives] == [(0,), (0, 2)]
    assert state.kept == (0, 2) and state.alternatives[-1].network is state.network


def test_what_does_not_apply_is_said() -> None:
    state, _, _ = run(Judge({}), remedy("none", ()), remedy("many", fewest=65))
    reasons = {one.remedy: one.reason for one in state.skipped}
    assert reasons.keys() == {"none", "many"} and "65" in reasons["many"]
    assert not state.steps


def test_a_time_limit_names_what_was_left_out() -> None:
    judge = Judge({"one": frozenset(LAYERS)})
    state, _, explanation = run(judge, remedy("one"), ends_at=time.monotonic() - 1)
    assert not state.steps and "one" in explanation


def test_an_attempt_that_the_time_limit_cuts_is_none() -> None:
    judge = Judge({"one": frozenset(LAYERS)})
    state, _, explanation = run(judge, remedy("one"), ends_at=time.monotonic() + 1e-9)
    assert not state.steps and state.waiting and "one" in explanation


def test_the_best_metric_survives_an_interruption() -> None:
    judge = Judge({"one": frozenset(LAYERS)}, metric=lambda _: 0.9)
    first: State = run(judge, remedy("one"))[0]
    assert first.best is not None and first.best.metric == 0.9


def test_every_state_is_told() -> None:
    judge, told = Judge({"one": frozenset("abc")}), []
    state, _, _ = run(judge, remedy("one"), on_step=told.append)
    assert told[-1] is state and len(told[0].steps) == 1


def judgement(
    noise_db: Sequence[float],
    metric: float | None = None,
    left_out: Sequence[float] = (),
    losses: Sequence[float] = (),
    sqnr_db: float = 0.0,
) -> Judgement:
    outputs: Any = {"y": Sqnr(sqnr_db)}
    return Judgement(outputs, metric, *map(np.array, (noise_db, left_out, losses)))


@given(st.lists(st.floats(-60, 0), min_size=4, max_size=12), st.floats(-6, 6))
def test_the_same_change_the_other_way_round_is_never_better_too(
    noise_db: list[float], more: float
) -> None:
    one, other = judgement(noise_db), judgement([more + x for x in noise_db])
    assert not (verdict_on(one, other).better and verdict_on(other, one).better)


def test_a_difference_within_its_error_is_none() -> None:
    before = judgement([-10.0, -20.0, -10.0, -20.0])
    assert not verdict_on(before, judgement([-20.0, -8.0, -20.0, -14.0])).better
    assert verdict_on(before, judgement([-11.0, -22.0, -11.0, -22.0])).better
    assert verdict_on(before, judgement([math.inf] * 4)).better is False
    assert verdict_on(judgement([math.inf] * 4), before).better


def test_one_noisy_sample_does_not_decide() -> None:
    """Its energy is most of all: noise summed up would call the second network better."""
    before = judgement([-30.0] * 7 + [0.0])
    louder_on_most = judgement([-20.0] * 7 + [-3.0])
    assert not verdict_on(before, louder_on_most).better
    assert verdict_on(louder_on_most, before).better


def test_most_samples_do_not_gain_by_what_ruins_the_rest() -> None:
    """A shift of a range that clips one sample of forty: the noise of all together doubles, or is
    20 times as large."""
    before = judgement([-30.0] * 40, sqnr_db=30.0)
    most_gain = [-32.0] * 39 + [-8.0]
    assert verdict_on(before, judgement(most_gain, sqnr_db=27.1)).better
    found = verdict_on(before, judgement(most_gain, sqnr_db=17.0))
    assert not found.better and found.reason is Reason.NO_GAIN


def test_the_standard_error_is_the_jackknifes() -> None:
    rng = np.random.default_rng(0)
    right = (rng.random(1200) < 0.9).astype(float)
    groups = [np.delete(right.reshape(12, 100), g, axis=0).mean() for g in range(12)]
    found = standard_error(judgement([1.0], right.mean(), groups))
    assert found == pytest.approx(math.sqrt(0.9 * 0.1 / 1200), rel=0.5)


def test_a_perfect_score_has_an_error_too() -> None:
    few, many = (judgement([-20.0] * n, 1.0, [1.0] * 8) for n in (32, 3000))
    assert standard_error(few) == pytest.approx(1.5 / 32)  # of 32 right ones 3 in 32 may be wrong
    assert standard_error(many) == pytest.approx(1.5 / 3000)
    condition = Condition("metric>=0.99", "metric", "", ">=", 0.99)
    assert holds(condition, few) and not holds(condition, few, surely=True)
    assert holds(condition, many, surely=True)


def test_one_standard_error_of_noise_is_enough_where_metric_and_loss_are_as_good() -> None:
    def judged(noise_db: list[float], metric: float, *losses: float) -> Judgement:
        return judgement(noise_db, metric, [metric, metric + 0.01] * 2, losses)

    before = judged([-20.0] * 4, 0.9, 0.5, 0.6, 0.5, 0.6)
    quieter = [-21.0, -23.0, -19.0, -22.0]  # by 1.25 dB, give or take 0.85
    better = judged(quieter, 0.9, 0.4, 0.7, 0.45, 0.6)
    assert verdict_on(before, better).reason is Reason.LESS_NOISE
    assert not verdict_on(before, judged(quieter, 0.9, 0.6, 0.5, 0.55, 0.6)).better
    assert not verdict_on(before, judged(quieter, 0.899, 0.4, 0.7, 0.45, 0.6)).better
    assert not verdict_on(
        before, judged([-21.0, -22.5, -18.0, -19.5], 0.9, 0.4, 0.7, 0.45, 0.6)
    ).better
    assert not verdict_on(judgement([-20.0] * 4), judgement(quieter)).better


def test_one_sample_of_many_decides_nothing() -> None:
    before = judgement([1.0] * 4, 0.90, [0.90] * 4)
    lucky = judgement([1.0] * 4, 0.901, [0.9013, 0.9013, 0.9013, 0.9])
    assert not verdict_on(before, lucky).better
    sure = judgement([1.1] * 4, 0.95, [0.95, 0.9502, 0.9498, 0.95])
    assert verdict_on(before, sure).reason is Reason.METRIC


def test_a_metric_may_give_up_a_quarter_of_what_it_gained() -> None:
    start = judgement([1.0] * 4, 0.80, [0.80] * 4)
    best = judgement([1.0] * 4, 0.90, [0.90] * 4)
    before = judgement([0.9] * 4, 0.89, [0.89] * 4)

    def after(metric: float, losses: float = 0.5) -> Reason:
        found = judgement([losses] * 4, metric, [0.80, 0.99, 0.99, 0.80])
        return verdict_on(before, found, best, start).reason

    assert after(0.876) is Reason.LESS_NOISE
    assert after(0.874) is Reason.METRIC_FELL
    worse = judgement([0.5] * 4, 0.799, [0.60, 0.99, 0.99, 0.60])
    assert verdict_on(start, worse, start, start).reason is Reason.METRIC_FELL  # nothing gained


def test_one_or_two_samples_may_fall_where_all_surely_lose_less() -> None:
    """Nothing was gained so far, so that without a loss no fall is allowed."""
    groups = np.full(12, 0.92)
    groups[0] -= 0.005

    def reason(metric: float, *losses: float) -> Reason:
        left_out = np.full(12, metric)
        left_out[0] = 0.915  # one group makes the difference
        before = judgement([-20.0] * 4, 0.92, groups.tolist(), losses and [0.5, 0.6, 0.5, 0.6])
        after = judgement([-33.0] * 4, metric, left_out.tolist(), losses)
        return verdict_on(before, after, before, before).reason

    assert reason(0.89, 0.1, 0.21, 0.1, 0.2) is Reason.LESS_LOSS
    assert reason(0.89) is Reason.METRIC_FELL
    every_group = judgement([-33.0] * 4, 0.89, (groups - 0.03).tolist(), [0.1, 0.21, 0.1, 0.2])
    before = judgement([-20.0] * 4, 0.92, groups.tolist(), [0.5, 0.6, 0.5, 0.6])
    assert verdict_on(before, every_group, before, before).reason is Reason.METRIC_FELL


def test_of_a_metric_of_which_less_is_better_a_rise_is_a_fall() -> None:
    start, lower = judgement([1.0] * 4, 0.5, [0.5] * 4), judgement([0.9] * 4, 0.4, [0.4] * 4)
    assert verdict_on(start, lower, start, start, higher_is_better=False).better
    assert verdict_on(lower, start, lower, start, higher_is_better=False).reason is (
        Reason.METRIC_FELL
    )


def test_the_metrics_loss_decides_and_noise_only_where_that_does_not_tell() -> None:
    def found(noise_db: float, *losses: float) -> Judgement:
        return judgement([noise_db] * 4, 0.9, [0.9] * 4, losses)

    before = found(-20, 0.2, 0.3, 0.2, 0.3)
    quieter_but_worse = verdict_on(before, found(-30, 0.3, 0.4, 0.3, 0.41))
    assert not quieter_but_worse.better and quieter_but_worse.reason is Reason.MORE_LOSS
    assert verdict_on(before, found(-10, 0.1, 0.2, 0.1, 0.21)).reason is Reason.LESS_LOSS
    assert verdict_on(before, found(-30, 0.21, 0.3, 0.19, 0.3)).reason is Reason.LESS_NOISE
    assert verdict_on(before, found(-20, 0.21, 0.3, 0.19, 0.3)).reason is Reason.NO_GAIN


def test_proposals_rank_by_noise_where_the_loss_does_not_tell() -> None:
    """A classifier that was sure of all samples lost 1e-9, and mean-max half of that with 20 dB."""

    def rank(noise_db: float, scale: float, *losses: float) -> tuple[float, ...]:
        sure = judgement([-31.0, -31.1] * 2, 1.0, [1.0] * 4, [scale * x for x in (2, 3, 2, 3)])
        lost = [scale * x for x in losses]
        after = judgement([noise_db, noise_db + 0.1] * 2, 1.0, [1.0] * 4, lost)
        before, after = (replace(one, least_loss=1e-6) for one in (sure, after))
        verdict = verdict_on(before, after)
        assert verdict.reason in (Reason.NO_GAIN, Reason.LESS_NOISE, Reason.LESS_LOSS)
        return (verdict.better, *verdict.rank)

    assert rank(-32.0, 1e-9, 2, 3, 2, 3) > rank(-11.0, 1e-9, 1, 1.5, 1, 1.6)  # next to nothing
    assert rank(-31.0, 0.1, 2, 3, 2, 3) > rank(-11.0, 0.1, 1.5, 3.4, 1, 3.4)  # within its error
    assert rank(-31.0, 0.1, 2, 3, 2, 3) < rank(-11.0, 0.1, 1, 1.5, 1, 1.6)  # it tells


def test_a_loss_next_to_nothing_chooses_no_answer() -> None:
    quiet = judgement([-31.0, -31.1] * 2, 1.0, [1.0] * 4, [2e-9, 3e-9] * 2)
    noisy = judgement([-11.0, -11.1] * 2, 1.0, [1.0] * 4, [1e-9, 1e-9] * 2)
    assert answer_of([quiet, noisy]) == 1
    assert answer_of([replace(one, least_loss=1e-6) for one in (quiet, noisy)]) == 0
    assert answer_of([replace(one, least_loss=1e-6) for one in (noisy, quiet)]) == 1


def test_the_answer_is_the_best_by_score_and_of_those_within_its_error_by_loss() -> None:
    final = judgement([-30.0, -31.0] * 2, 0.66, [0.66] * 4)
    alone = judgement([-20.0, -21.0] * 2, 0.82, [0.82] * 4)
    start = judgement([-10.0, -11.0] * 2, 0.50, [0.50] * 4)
    assert answer_of([final, alone, start]) == 1
    as_good = judgement([-30.0, -31.0] * 2, 0.80, [0.75, 0.85, 0.85, 0.75])
    assert answer_of([as_good, alone, start]) == 0  # 0.02 is within the error of the difference
    assert answer_of([alone, as_good, start]) == 1
    assert answer_of([final, alone, start], higher_is_better=False) == 2
    fails = replace(start, failure="no kernel")
    assert answer_of([fails, start]) == 1


def test_without_a_metric_the_answer_stays_unless_another_is_surely_better() -> None:
    last, before = judgement([-30.0, -20.0] * 4), judgement([-29.0, -22.0] * 4)
    assert answer_of([last, before]) == 0
    assert answer_of([last, judgement([-35.0, -26.0] * 4)]) == 1


def test_the_choice_flatters_the_answer_and_not_its_cross_validated_figure() -> None:
    """Six networks that are right by chance, as often as each other."""
    rng, share, samples, groups = np.random.default_rng(0), 0.8, 48, 12
    group_of = np.arange(samples) % groups
    gains = []
    for _ in range(60):
        right = (rng.random((6, samples)) < share).astype(float)
        found = []
        for one in right:
            left_out = [one[group_of != group].mean() for group in range(groups)]
            found.append(judgement(-20 - one, one.mean(), left_out, 1 - one))
        choices = choices_of(found, group_of)
        assert choices is not None
        validated = right[np.array(choices)[group_of], np.arange(samples)].mean()
        gains.append((right[answer_of(found)].mean() - share, validated - share))
    plain, validated = np.mean(gains, axis=0)
    assert plain > 0.03 and abs(validated) < plain / 2


def test_where_one_network_is_better_every_group_chooses_it() -> None:
    group_of = np.array([0, 1, 2, 3])
    good = judgement([-30.0, -31.0] * 2, 0.9, [0.9] * 4)
    bad = judgement([-10.0, -11.0] * 2, 0.5, [0.5] * 4)
    fails = replace(bad, noise_db=np.array([math.inf]), failure="no kernel")
    assert choices_of([bad, good, fails], group_of) == [1] * 4
    assert choices_of([bad, good], group_of, higher_is_better=False) == [0] * 4
    without_metric = [judgement([-10.0, -11.0] * 2), judgement([-30.0, -31.0] * 2)]
    assert choices_of(without_metric, group_of) == [1] * 4


def test_where_samples_cannot_be_left_out_the_choice_is_not_cross_validated() -> None:
    one = judgement([-20.0] * 4, 0.9, [0.9] * 4)
    assert choices_of([one, one], np.zeros(4, np.int64)) is None
    assert choices_of([one, replace(one, left_out=np.zeros(0))], np.arange(4)) is None
    assert choices_of([one, replace(one, noise_db=np.zeros(2))], np.arange(4)) is None


def test_a_gain_that_too_few_samples_judge_is_undecided_not_none() -> None:
    """The same samples as often as it takes tell it."""
    rng = np.random.default_rng(0)
    before = rng.uniform(-22, -18, 8)
    after = before - 1 + rng.uniform(-4, 4, 8)
    few = verdict_on(judgement(before.tolist()), judgement(after.tolist()))
    assert few.reason is Reason.UNDECIDED and not few.better and 1 < few.times < 100
    enough = math.ceil(few.times) + 1  # the error is of one sample less
    more = (judgement(np.tile(x, enough).tolist()) for x in (before, after))
    assert verdict_on(*more).better
    gain = before - after
    error = gain.std(ddof=1) / math.sqrt(8)
    assert few.times == pytest.approx((2 * error / gain.mean()) ** 2)


def test_what_makes_no_difference_is_not_undecided() -> None:
    before = judgement([-10.0, -20.0, -10.0, -20.0])
    slight = judgement([-10.5, -19.5, -10.1, -20.1])  # 0.05 dB less, within its error
    assert verdict_on(before, slight).reason is Reason.NO_GAIN
    louder = judgement([-5.0, -19.0, -5.0, -19.0])
    assert verdict_on(before, louder).reason is Reason.NO_GAIN


def test_one_execution_says_not_how_many_it_takes() -> None:
    found = verdict_on(judgement([-10.0]), judgement([-20.0]))
    assert found.reason is Reason.UNDECIDED and math.isinf(found.times)


@pytest.mark.parametrize("keep", [False, True])
def test_the_best_guess_is_kept_where_the_user_wants_it(keep: bool) -> None:
    @dataclass
    class Unsure(Judge):
        def __call__(self, network: Network) -> Judgement:
            found = super().__call__(network)
            if not network.applied:
                return found
            return replace(found, noise_db=found.noise_db + np.tile([-10.0, 22.0], 4))

    state, _, _ = run(Unsure({"one": frozenset(LAYERS)}), remedy("one"), keep_undecided=keep)
    step = state.steps[0]
    assert step.accepted is keep and step.reason is Reason.UNDECIDED
    assert step.samples_needed is not None and step.samples_needed > 8
    assert kept(state) == (set(LAYERS) if keep else set())
