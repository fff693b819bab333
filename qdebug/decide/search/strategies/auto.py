"""The default: predict the cheapest set that passes, verify, correct the prediction, shrink."""

from __future__ import annotations

from collections.abc import Sequence

from qdebug.decide.search.problem import Measurement
from qdebug.decide.search.strategies import small
from qdebug.decide.search.strategies.base import Ask, Choice, Chosen, Found, everything
from qdebug.decide.search.strategies.belief import Belief
from qdebug.decide.search.strategies.exchange import promising
from qdebug.decide.search.strategies.shrink import prove, shrink

_PATIENCE = 4
"""Proposals of the model that may fail in a row; more where there are more layers to correct."""
_ROUNDS = 3
"""Times that a set seen to need each layer may give way to a cheaper one."""
_WORTH = 2e-3
"""The share of the cost that a proposal must save."""


def auto(choices: Sequence[Choice], ask: Ask) -> Found:
    """The cheapest set that a model of the noise leads to, in which each layer is needed.

    While the model's predictions hold, its cheapest sets are asked for, and every answer corrects
    it. Where none of these passes, whole blocks of layers are left out first. What passes is shrunk
    by group testing, which needs no model, until it fails without any one of its layers. Then
    cheaper sets are tried; for a few layers, until there is none.
    """
    belief = Belief(choices, ask)
    best = everything(choices)
    while belief.trusted and (cheaper := _proposed(belief, best, _PATIENCE)) != best:
        best = cheaper
    if best == everything(choices) and len(choices) > small.MOST:
        best = _whole_blocks(belief, choices)
    best = shrink(belief, best)
    if len(choices) <= small.MOST:
        return small.optimum(belief, best)
    for _ in range(_ROUNDS):
        before = best
        while (cheaper := _exchanged(belief, best, _PATIENCE + len(choices) // 8)) != best:
            best = cheaper
        best = prove(belief, best if best == before else shrink(belief, best))
        if best == before:
            break
    return Found(best)


def _whole_blocks(belief: Belief, choices: Sequence[Choice]) -> Chosen:
    """A set of whole blocks that passes, without any of which it failed when that was asked for;
    layers in no block are blocks of their own. Of layers that are needed together, as those of
    attention may be, it asks fewer questions than if each were looked for by itself."""
    blocks: dict[str, list[Choice]] = {}
    for choice in choices:
        blocks.setdefault(choice.block or f" {choice.name}", []).append(choice)
    if len(blocks) == len(choices):
        return everything(choices)

    def ask(sets: Sequence[Chosen]) -> list[Measurement]:
        return belief.ask([frozenset(x.name for b in chosen for x in blocks[b]) for chosen in sets])

    whole = [
        Choice(name, sum(x.cost for x in block), sum(x.noise for x in block), block[0].noise_std)
        for name, block in blocks.items()
    ]
    found = shrink(Belief(whole, ask), everything(whole))
    return frozenset(x.name for name in found for x in blocks[name])


def _proposed(belief: Belief, best: Chosen, patience: int) -> Chosen:
    """The first that passes of the cheapest sets by the model, corrected each time; or `best`."""
    for _ in range(patience):
        proposal = belief.proposal()
        if proposal is None or belief.cost(proposal) >= belief.cost(best) * (1 - _WORTH):
            break
        if belief.passes(proposal):
            return proposal
    return best


def _exchanged(belief: Belief, best: Chosen, patience: int) -> Chosen:
    """The first that passes of the most promising sets, corrected each time; or `best`."""
    for _ in range(patience):
        candidate = promising(belief, best)
        if candidate is None:
            break
        if belief.passes(candidate):
            return candidate
    return best
