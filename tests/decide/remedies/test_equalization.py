"""Equalization: whole streams of channels, by the weights on both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from repair_networks import IMAGES, Builder

from qdebug.decide.remedies.equalization import REMEDY
from qdebug.network.prepare import Model


def uneven(channel: int = 0) -> Model:
    """Two residual blocks whose stream has one channel far beyond the others."""
    b = Builder(0, spread=0.1)

    def wide(x: str, ins: int) -> str:
        made = b.conv(x, ins, 8)
        for operand in b.nodes[-1].input[1:]:
            b.constants[operand][channel] *= 60
        return made

    x = b.add("Relu", wide("x", 3))
    for _ in range(2):
        b.conv(x, 8, 8)
        b.constants[b.nodes[-1].input[1]][:, channel] /= 60
        inner = b.add("Relu", b.nodes[-1].output[0])
        x = b.add("Relu", b.add("Add", wide(inner, 8), x))
    b.conv(x, 8, 4)
    b.constants[b.nodes[-1].input[1]][:, channel] /= 60
    return b.model(IMAGES, b.nodes[-1].output[0])


@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
def test_an_uneven_residual_stream_is_evened_out(weights: str, case: Callable[..., Any]) -> None:
    at = case(uneven(), weights=weights)
    (proposal,) = REMEDY.propose(at.study, at.start, REMEDY.layers(at.start))
    before = [n.op_type for n in at.start.graph.nodes]
    assert [n.op_type for n in proposal.result.graph.nodes] == before
    assert at.noise(proposal.result) < 0.05 * at.noise(at.start)
