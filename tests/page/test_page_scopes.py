"""Blocks of a network, from names and from what repeats."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdebug.page.scopes import named_scopes, repeated_scopes, scopes_of


def chain(count: int) -> list[tuple[int, ...]]:
    """Each node reads the one before it."""
    return [(k - 1,) if k else () for k in range(count)]


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("/blocks/blocks.0/conv/Conv", ("blocks", "blocks.0", "conv")),
        ("model/dense/MatMul", ("model", "dense")),
        ("net::layer1::conv", ("net", "layer1")),
        ("layer1.0.conv1", ("layer1", "0")),
    ],
)
def test_names_spell_scopes(name: str, scope: tuple[str, ...]) -> None:
    found = named_scopes([name, name, "Flat_1"], ["", "", "t"])
    assert found == [scope, scope, ()]


def test_flat_names_spell_none() -> None:
    assert named_scopes(["Conv_1", "Relu_2", "a/b"], ["1", "2", "3"]) is None


def test_numbered_types_are_no_blocks() -> None:
    """Names of PaddlePaddle's exporter would put all convolutions into one block."""
    ops = ["Conv", "HardSwish", "Mul"] * 4
    names = [f"{op}.{k // 3}" for k, op in enumerate(ops)]
    tensors = [f"p2o.pd_op.{op.lower()}.{k // 3}.0" for k, op in enumerate(ops)]
    assert scopes_of(names, tensors, ops, chain(12))[:4] == [
        *[("block 1 of 4",)] * 3, ("block 2 of 4",),
    ]  # fmt: skip
    blocks = [f"stage.{k // 3}.{op}" for k, op in enumerate(ops)]
    assert scopes_of(blocks, tensors, ops, chain(12))[3] == ("stage", "1")


def test_nodes_that_an_optimizer_made_are_where_they_belong() -> None:
    names = ["/m/a/Conv", "/m/a/Add", "Gemm_1", "Reshape_2", "/m/b/Relu", "/m/b/Mul"]
    tensors = ["", "", "/m/b/fc/MatMul_output_0", "made_up", "", ""]
    assert named_scopes(names, tensors) == [
        ("m", "a"), ("m", "a"), ("m", "b", "fc"), ("m", "b"), ("m", "b"), ("m", "b"),
    ]  # fmt: skip
    assert named_scopes(names, [""] * 6)[2:4] == [("m",), ("m",)]


def test_repeated_blocks() -> None:
    ops = ["Stem", "Pool", *["Conv", "Relu", "Add"] * 4, "Gemm"]
    names = [f"n_{k}" for k in range(len(ops))]
    scopes = scopes_of(names, names, ops, chain(len(ops)))
    assert scopes[:2] == [(), ()] and scopes[-1] == ()
    assert scopes[2:5] == [("block 1 of 4",)] * 3
    assert scopes[11:14] == [("block 4 of 4",)] * 3


def test_two_repeats_are_no_block() -> None:
    assert repeated_scopes(["Conv", "Relu", "Add"] * 2, chain(6)) == [()] * 6
    assert repeated_scopes(["Conv", "Relu"] * 5, chain(10)) == [()] * 10


def test_several_stretches_are_stages() -> None:
    ops = [*["Conv", "Relu", "Conv"] * 3, "Pool", *["MatMul", "Add", "Softmax"] * 5]
    scopes = repeated_scopes(ops, chain(len(ops)))
    assert scopes[0] == ("stage 1 of 2", "block 1 of 3")
    assert scopes[9] == ()
    assert scopes[-1] == ("stage 2 of 2", "block 5 of 5")


def test_a_block_begins_where_fewest_tensors_cross() -> None:
    """A residual edge spans Conv, Relu, Conv, Add: a block must not cut it."""
    ops = ["Add", *["Conv", "Relu", "Conv", "Add"] * 4]
    reads = chain(len(ops))
    for add in range(4, len(ops), 4):
        reads[add] = (add - 1, add - 4)
    scopes = repeated_scopes(ops, reads)
    assert scopes[0] == ()
    for block in range(4):
        members = scopes[1 + 4 * block : 5 + 4 * block]
        assert members == [(f"block {block + 1} of 4",)] * 4


@given(st.lists(st.sampled_from("abc"), max_size=60))
def test_blocks_hold_the_same_operators(ops: list[str]) -> None:
    scopes = repeated_scopes(ops, chain(len(ops)))
    blocks: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for op, scope in zip(ops, scopes, strict=True):
        if scope:
            blocks.setdefault(scope[:-1], {}).setdefault(scope[-1], []).append(op)
    for family in blocks.values():
        members = list(family.values())
        assert len(members) >= 3
        assert all(one == members[0] for one in members)


def test_two_thousand_nodes_take_no_time() -> None:
    ops = [f"Op{k % 40}" for k in range(2000)]
    started = time.process_time()
    scopes = repeated_scopes(ops, chain(2000))
    assert time.process_time() - started < 1
    assert scopes[-1] == ("block 50 of 50",)
