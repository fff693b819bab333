"""Whether one quantized network is better than another, by what each makes of the samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qdebug.decide.remedies.result import Figures, Reason
from qdebug.metrics.tensor import Metrics
from qdebug.metrics.uncertainty import Interval
from qdebug.results.conditions import Condition, check_condition

Float64 = npt.NDArray[np.float64]

_ERRORS = 2.0
"""Standard errors by which a network must be better than another."""
_MOST_RUINED_DB = 3.0
"""Noise of all samples together that doubles is not less error, though most samples have less."""
_MAY_FALL = 0.25
"""Of what the metric gained so far: a step that loses more is not kept, whatever else it gives. On
a SiLU detector steps that lowered the noise by 1.7 dB took F1 from 0.815 to 0.667."""
_MAY_FALL_ERRORS = 1.5
"""Standard errors that it may fall where the samples surely lose less: that is one or two samples.
On a YOLOv8n least squares took the noise from 21 to 34 dB and one box of forty with it."""
_WORTH_DB = 0.2
"""A gain of less is not worth more samples to find out whether it is one."""
_MOST_TIMES = 100.0
"""A gain that only so many times as many samples could tell is none."""
_NONE_OF = 1.5
"""Of n samples without a fault the share with one may still be 3/n (the rule of three: at 95 %,
Hanley and Lippman-Hand, JAMA 249 (1983) 1743): two standard errors."""


@dataclass(frozen=True)
class Judgement:
    """What a network makes of the samples.

    Attributes:
        outputs: metrics of every float output, by name.
        metric: the end-to-end metric, None without one.
        noise_db: of each sample the noise of the worst part of the outputs, float64 [samples]. (One
            value for an execution whose outputs cannot be told apart by sample.)
        left_out: the metric without each group of samples, float64 [groups]; empty where that
            cannot be said.
        losses: what each sample loses by the metric's loss, float64 [samples]; empty without one.
        least_loss: a mean difference of `losses` of no more than that is none.
        noise: Σerr²/Σref² of an output, averaged over the float outputs.
        failure: why it cannot be run; then there is nothing else.
        worst_group: of samples, which decides the metric; "" where it has no groups.
        interval: of the metric, 95 %; None where nothing says it.
    """

    outputs: Mapping[str, Metrics]
    metric: float | None
    noise_db: Float64
    left_out: Float64
    losses: Float64 = field(default_factory=lambda: np.zeros(0))
    least_loss: float = 0.0
    noise: float = math.nan
    failure: str = ""
    worst_group: str = ""
    interval: Interval | None = None

    @property
    def sqnr_db(self) -> float:
        """That of the worst output; NaN where one is broken or there is none."""
        values = [m.sqnr_db for m in self.outputs.values()]
        return math.nan if not values or any(map(math.isnan, values)) else min(values)

    @property
    def figures(self) -> Figures:
        """For the result."""
        return Figures(self.sqnr_db, self.metric, self.failure, self.worst_group, self.interval)


@dataclass(frozen=True)
class Verdict:
    """Whether a changed network is better than the one before, and by what.

    Attributes:
        rank: to choose among several that are better, the larger the better: what the metric gained
            and what its loss did, each 0 where that is no more than chance, and the noise.
        times: how many times as many samples would tell a gain from chance; inf where nothing
            says it.
    """

    better: bool
    reason: Reason
    rank: tuple[float, float, float] = (0.0, 0.0, 0.0)
    times: float = math.inf


def verdict_on(
    before: Judgement,
    after: Judgement,
    best: Judgement | None = None,
    start: Judgement | None = None,
    higher_is_better: bool = True,
) -> Verdict:
    """Whether `after` is better than `before`, by more than chance.

    It is where the metric is better by more than two standard errors of the difference, or where
    the samples lose less by so much, sample by sample; where that is within two standard errors,
    and not higher by one, the noise decides in its place: by two standard errors, or by one where
    neither the metric nor its loss is worse, and not where the noise of all samples together is
    twice as large: most may gain by what ruins a few. (Two, because many changes are judged on
    the same samples, and one sample more or less is one.) But it is not where the metric fell below
    that of the `best` network so far by more than a quarter of what that gained over the `start`,
    and by more than one or two samples where these surely lose less. Several that are better, or
    none of which is, rank by the same, in the same order.

    The standard error of the losses is that of the mean of their differences; that of the metric
    is the jackknife's over groups of samples (Efron and Tibshirani 1993, An Introduction to the
    Bootstrap, 11.5).
    """
    if after.failure:
        return Verdict(False, Reason.FAILS)
    noise = _change_of(before.noise_db, after.noise_db)
    loss = _change_of_loss(before, after) if len(after.losses) else None
    told = loss.gain if loss is not None and (loss.sure or loss.gain < -loss.error) else 0.0
    rank = 0.0, told, noise.gain
    if after.metric is not None and before.metric is not None:
        sign = 1.0 if higher_is_better else -1.0
        risen = sign * (after.metric - before.metric)
        error = _ERRORS * jackknife(after.left_out - before.left_out, abs(risen))
        rank = (risen if risen > error else 0.0), told, noise.gain
        top = best if best is not None and best.metric is not None else before
        allowed = _may_fall(top, start, sign)
        if loss is not None and loss.sure:
            since = jackknife(after.left_out - top.left_out, 0.0)
            allowed = max(allowed, _MAY_FALL_ERRORS * since)
        if sign * ((top.metric or 0.0) - after.metric) > allowed + 1e-12:
            return Verdict(False, Reason.METRIC_FELL, rank)
        if risen > error:
            return Verdict(True, Reason.METRIC, rank)
    if loss is not None and loss.sure:
        return Verdict(True, Reason.LESS_LOSS, rank)
    if loss is not None and loss.gain < -loss.error:
        return Verdict(False, Reason.MORE_LOSS, rank)
    as_good = _as_good(before, after, loss, higher_is_better)
    ruins = after.sqnr_db < before.sqnr_db - _MOST_RUINED_DB
    return _by_noise(noise, rank, as_good=as_good, ruins=ruins)


def _by_noise(
    noise: _Change, rank: tuple[float, float, float], *, as_good: bool, ruins: bool
) -> Verdict:
    """Where nothing else decides. `as_good`: see _as_good; `ruins`: of all samples together there
    is much more noise, whatever most of them have."""
    if ruins:
        return Verdict(False, Reason.NO_GAIN, rank)
    if noise.sure or (noise.gain > noise.error and as_good):
        return Verdict(True, Reason.LESS_NOISE, rank)
    if noise.gain >= _WORTH_DB and (noise.times <= _MOST_TIMES or math.isinf(noise.times)):
        return Verdict(False, Reason.UNDECIDED, rank, noise.times)
    return Verdict(False, Reason.NO_GAIN, rank)


def _as_good(
    before: Judgement, after: Judgement, loss: _Change | None, higher_is_better: bool
) -> bool:
    """Whether neither the metric nor its loss is worse with a change. Then one standard error of
    the noise is enough: a change that is worth nothing passes that once in six, all three less
    often, and the held-out samples judge what was kept. With 9 pictures of a YOLOv8n two were not
    reached by a step that took the SQNR from 27 to 34 dB."""
    if loss is None or before.metric is None or after.metric is None:
        return False
    sign = 1.0 if higher_is_better else -1.0
    return loss.gain >= 0 and sign * (after.metric - before.metric) >= 0


def _may_fall(best: Judgement, start: Judgement | None, sign: float) -> float:
    """By how much the metric may be worse than the best one so far."""
    if start is None or start.metric is None or best.metric is None:
        return 0.0
    return _MAY_FALL * max(0.0, sign * (best.metric - start.metric))


def answer_of(found: Sequence[Judgement], higher_is_better: bool = True) -> int:
    """Which of several networks is the best, by samples that chose none of them.

    It is the one of least loss among those whose metric is within one standard error of the best
    one: of the difference, by the jackknife (Breiman et al. 1984, Classification and Regression
    Trees, 3.4.3). So what a few samples more or less tell is not followed. Of networks that lose
    as much it is the first, unless another surely loses less.
    """
    running = [i for i, one in enumerate(found) if not one.failure]
    if not running:
        return 0
    sign = 1.0 if higher_is_better else -1.0
    scores = {i: sign * m for i in running if (m := found[i].metric) is not None}
    if scores:
        top = max(scores, key=lambda i: scores[i])

        def as_good(i: int) -> bool:
            error = jackknife(found[top].left_out - found[i].left_out, 0.0)
            return scores[top] - scores[i] <= error

        running = [i for i in scores if as_good(i)]
    best = running[0]
    for i in running[1:]:
        pair = found[best], found[i]
        loss = _change_of_loss(*pair)
        noise = _change_of(*(one.noise_db for one in pair))
        if loss.sure or (noise.sure and loss.gain >= -loss.error):
            best = i
    return best


def choices_of(
    found: Sequence[Judgement], group_of: npt.NDArray[np.int64], higher_is_better: bool = True
) -> list[int] | None:
    """Which of several networks the samples choose without each group in turn: see answer_of.

    The standard error within which two are alike is that of all groups: without one it would take
    the metric without each two.

    Args:
        group_of: the group of each sample, from 0, int64 [samples].

    Returns:
        None where there is one group, the metric cannot be computed without some, or the samples
        of an execution cannot be told apart.
    """
    count, groups = len(group_of), int(group_of.max()) + 1
    runs = [one for one in found if not one.failure]
    each_is_known = all(
        len(one.noise_db) in (0, count) and (one.metric is None or len(one.left_out) == groups)
        for one in runs
    )
    if groups < 2 or not each_is_known:
        return None

    def without(one: Judgement, group: int) -> Judgement:
        if one.failure:
            return one
        others = group_of != group
        return replace(
            one,
            metric=None if one.metric is None else float(one.left_out[group]),
            noise_db=one.noise_db[others] if len(one.noise_db) else one.noise_db,
            losses=one.losses[others] if len(one.losses) else one.losses,
        )

    return [
        answer_of([without(one, group) for one in found], higher_is_better)
        for group in range(groups)
    ]


def holds(condition: Condition | None, found: Judgement, *, surely: bool = False) -> bool:
    """Whether a target holds; `surely`: by more than the metric's standard error."""
    if condition is None or found.failure:
        return False
    if surely and condition.scope == "metric":
        sign = 1.0 if condition.operator.startswith(">") else -1.0
        condition = replace(condition, bound=condition.bound + sign * standard_error(found))
    if condition.scope == "metric":
        return check_condition(condition, [found.metric]).passed
    values = [getattr(m, condition.name) for m in found.outputs.values()]
    return check_condition(condition, values).passed


def standard_error(judgement: Judgement) -> float:
    """That of a network's metric; 0 where it cannot be said. A metric that is the same without any
    group of samples, as a perfect score is, has an error, too: see _NONE_OF."""
    if len(judgement.left_out) < 2:
        return 0.0
    least = _NONE_OF / max(1, len(judgement.noise_db))
    return jackknife(judgement.left_out, 0.0) or least


class _Change(NamedTuple):
    """By how much lower the values of the samples are, on average.

    Attributes:
        error: its standard error; inf of a single sample, of which nothing tells what is chance.
    """

    gain: float = 0.0
    error: float = 0.0

    @property
    def sure(self) -> bool:
        """It is lower by more than chance."""
        return self.gain > _ERRORS * self.error

    @property
    def times(self) -> float:
        """How many times as many samples would tell it from chance: its standard error falls with
        the root of their number. Inf where nothing says it."""
        return (_ERRORS * self.error / self.gain) ** 2 if self.gain > 0 else math.inf


def _change_of(before: Float64, after: Float64) -> _Change:
    if len(before) != len(after) or not np.all(np.isfinite(after)):
        return _Change(-math.inf)
    if not np.all(np.isfinite(before)):
        return _Change(math.inf)  # it was broken, and is not
    if not len(after):
        return _Change()
    gain = before - after
    count = len(gain)
    error = float(gain.std(ddof=1) / math.sqrt(count)) if count > 1 else math.inf
    return _Change(float(gain.mean()), error)


def _change_of_loss(before: Judgement, after: Judgement) -> _Change:
    """See _change_of, of the metric's losses: none where it is next to nothing."""
    change = _change_of(before.losses, after.losses)
    return _Change() if abs(change.gain) <= after.least_loss else change


def jackknife(differences: Float64, change: float) -> float:
    """The standard error of a difference, from what it is without each group in turn. Without
    groups any change may be chance."""
    count = len(differences)
    if count < 2:
        return change
    spread = differences - differences.mean()
    return math.sqrt((count - 1) / count * float(spread @ spread))
