"""What `auto` believes: which layers matter, and whether its predictions deserve trust."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from qdebug.decide.search.knapsack import cheapest
from qdebug.decide.search.model import Floats, Link, Mask, NoiseModel
from qdebug.decide.search.problem import ROUGH_STD, Measurement
from qdebug.decide.search.strategies.base import Ask, Choice, Chosen, everything

TRUSTED_FACTOR = 1.6
"""Predictions of noise are trusted while the last ones were within this factor."""
_RECENT = 3


class Belief:
    """Learns from every answer. The verdicts of a search never rest on it, only what to ask next.

    Attributes:
        model: of the noise; None where the answers hold none.
        link: from noise to verdict.
        risks: how likely it is that each layer is needed, by the estimates; they add up to 1.
        answers: to every set asked for, in order.
    """

    def __init__(self, choices: Sequence[Choice], ask: Ask) -> None:
        """Starts with the two answers that are free."""
        self.names = [choice.name for choice in choices]
        self.costs: Floats = np.array([choice.cost for choice in choices], np.float64)
        self._index = {name: i for i, name in enumerate(self.names)}
        self._cost_of = {choice.name: choice.cost for choice in choices}
        self._ask = ask
        self._errors: list[float] = []
        self._surprises: list[bool] = []
        self._estimates = _finite(np.array([choice.noise for choice in choices], np.float64))
        self.risks = dict(zip(self.names, _risks(self._estimates).tolist(), strict=True))
        self.answers: dict[Chosen, Measurement] = {}
        self.link = Link()
        self.model: NoiseModel | None = None
        nothing, all_of_it = self.ask([frozenset(), everything(choices)])
        if nothing.known_noise and all_of_it.known_noise is not None:
            self.model = NoiseModel(
                self._estimates.tolist(),
                nothing.known_noise,
                all_of_it.known_noise,
                max((choice.noise_std for choice in choices), default=ROUGH_STD),
            )

    def ask(self, sets: Sequence[Chosen]) -> list[Measurement]:
        """Ask, and learn from the answers."""
        answers = self._ask(sets)
        for chosen, answer in zip(sets, answers, strict=True):
            if chosen not in self.answers:
                self.answers[chosen] = answer
                self._learn(chosen, answer)
        return answers

    def passes(self, chosen: Chosen) -> bool:
        """The verdict on one set."""
        return self.ask([chosen])[0].passed

    @property
    def failed(self) -> list[Chosen]:
        """The sets that failed, those that could not be built included."""
        return [chosen for chosen, answer in self.answers.items() if not answer.passed]

    def cost(self, chosen: Collection[str]) -> float:
        """What raising them costs."""
        return math.fsum(self._cost_of[name] for name in chosen)

    def mask(self, chosen: Collection[str]) -> Mask:
        """As an array of shape (choices,)."""
        mask = np.zeros(len(self.names), np.bool_)
        mask[[self._index[name] for name in chosen]] = True
        return mask

    @property
    def trusted(self) -> bool:
        """Noise is measured, and the last predictions of it were good, and of the verdict not
        mostly wrong; before there were any, it takes an estimate for most layers."""
        if self.model is None:
            return False
        if not self._errors:
            return bool(np.mean(self._estimates > 0) > 0.5)
        if sum(self._surprises[-_RECENT:]) > _RECENT / 2:
            return False
        return float(np.median(self._errors[-_RECENT:])) <= math.log(TRUSTED_FACTOR)

    def expects(self, chosen: Chosen) -> bool:
        """Whether the set is known to pass, or the model, where there is one, says so."""
        if chosen in self.answers:
            return self.answers[chosen].passed
        if self.model is None:
            return False
        return float(self.model.predict(self.mask(chosen))) <= self.link.threshold()

    def chances(self, members: Mask, most: float) -> Floats:
        """How likely sets of shape (sets, layers) are to leave a noise of at most `most`, by the
        model, which there must be."""
        assert self.model is not None
        below = np.log(most / self.model.predict(members)) / self.model.deviation(members)
        return np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in below.tolist()])

    def proposal(self, margin: float = 0.0) -> Chosen | None:
        """The cheapest set that the model expects to pass; None where there is none, or no model.

        Args:
            margin: how far below the noise that may pass its noise is, as a logarithm. At 0, sets
                that failed and parts of these are left out.
        """
        if self.model is None:
            return None
        allowed = self.link.threshold() * math.exp(-margin) - self.model.base
        failed = [] if margin else [self.mask(chosen) for chosen in _largest(self.failed)]
        mask = cheapest(self.costs, self.model.contributions, allowed, failed)
        return None if mask is None else self._chosen(mask)

    def removal_order(self, chosen: Collection[str]) -> list[str]:
        """Those first that save most for their risk, or for the noise they are believed to add."""
        worth = (
            dict(zip(self.names, self.model.contributions.tolist(), strict=True))
            if self.trusted and self.model
            else self.risks
        )
        place = self._index
        return sorted(
            chosen,
            key=lambda n: (worth[n] / self._cost_of[n] if self._cost_of[n] else math.inf, place[n]),
        )

    def _chosen(self, mask: Mask) -> Chosen:
        return frozenset(name for name, there in zip(self.names, mask, strict=True) if there)

    def _learn(self, chosen: Chosen, answer: Measurement) -> None:
        most = self.link.threshold() if self.model else 0.0
        self.link.observe(answer)
        if self.model is None or answer.known_noise is None:
            return
        mask = self.mask(chosen)
        expected = float(self.model.predict(mask))
        floor = 1e-3 * most  # that a tiny noise is tinier still is no surprise
        self._errors.append(abs(math.log((answer.known_noise + floor) / (expected + floor))))
        self._surprises.append((expected <= most) != answer.passed)
        self.model.observe(mask, answer.known_noise)


def _largest(sets: Sequence[Chosen]) -> list[Chosen]:
    """Without those that are part of another."""
    return [s for s in sets if not any(s < other for other in sets)]


def _finite(estimates: Floats) -> Floats:
    """Infinite estimates as 100 times the largest other one."""
    finite = estimates[np.isfinite(estimates)]
    return np.minimum(estimates, 100 * (finite.max(initial=0.0) or 1.0))


def _risks(estimates: Floats) -> Floats:
    """How likely it is that each layer is needed, relative to others; they add up to 1.

    Proportional to 1/r for rank r of the estimates: a needed layer is then found in about log2(r)
    questions where the ranking is good, and in few more than log2(n) where it is worthless (Elias,
    Universal codeword sets, 1975). Ties share, so that without estimates all are the same.
    """
    order = np.argsort(-estimates, kind="stable")
    weight = 1.0 / np.arange(1, len(order) + 1)
    _, group = np.unique(-estimates[order], return_inverse=True)
    shared = (np.bincount(group, weight) / np.bincount(group))[group]
    risks = np.empty(len(order))
    risks[order] = shared / shared.sum()
    return risks
