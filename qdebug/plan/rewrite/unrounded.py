"""Isolated layers that compute in FP32, with the weights of the lowered model, and whose Q/DQ pairs
clip and do not round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from qdebug.formats.registry import FP32
from qdebug.network.graph import Graph, Node
from qdebug.plan.quantize import grid_of, quantizer_of
from qdebug.plan.rewrite.bypass import Pair
from qdebug.plan.rewrite.cut import LocalGraph
from qdebug.plan.rewrite.edit import Editor, copy_node
from qdebug.plan.rewrite.raise_fp32 import raise_to_fp32


@dataclass(frozen=True)
class UnroundedLayers:
    """See `without_rounding`.

    Attributes:
        proto: has the outputs of the isolated layers, and their inputs.
        slack: one more input, FP32 []: how far beyond its range each pair clips; 0 as planned,
            infinity not at all. "" where no pair has a range.
        ranges: by what a pair restores: the least and the largest value that it gives.
        unknown: layers that read a pair whose range is not known: here it neither clips nor is it
            left out.
    """

    proto: onnx.ModelProto
    slack: str
    ranges: Mapping[str, tuple[float, float]]
    unknown: frozenset[str]


def without_rounding(local: LocalGraph, pairs: Mapping[str, Sequence[Pair]]) -> UnroundedLayers:
    """Isolated layers without any rounding but that of their weights.

    Args:
        pairs: the Q/DQ pairs of each layer.

    Raises:
        PlanError: as `check`.
    """
    graph = Graph(raise_to_fp32(local.proto))
    every = {p.restored: p for of_layer in pairs.values() for p in of_layer}
    ranges = {t: found for t, p in every.items() if (found := _range(graph, p)) is not None}
    replaced = {t for t, p in every.items() if p.dynamic or t in ranges}
    editor = Editor(graph)
    slack = editor.tensor_name("slack") if ranges else ""
    if slack:
        value = helper.make_tensor_value_info(slack, TensorProto.FLOAT, ())
        editor.proto.graph.input.append(value)
    for proto in graph.proto.graph.node:
        restored = proto.output[0]
        node = graph.by_name[proto.name]
        if restored in ranges:
            _clip(editor, every[restored], ranges[restored], slack)
        elif restored in replaced:
            editor.add("Identity", every[restored].quantized, output=restored, name=proto.name)
        elif not _is_idle(graph, node, replaced):
            editor.emit(copy_node(proto))
    unknown = frozenset(
        layer
        for layer, of_layer in pairs.items()
        if any(p.restored not in replaced for p in of_layer)
    )
    return UnroundedLayers(editor.finish("the graph of unrounded layers"), slack, ranges, unknown)


def _range(graph: Graph, pair: Pair) -> tuple[float, float] | None:
    """The least and the largest value that a pair gives; None where they are not known, where they
    differ among channels, and for a range that is taken from the values."""
    if pair.dynamic:
        return None
    quantizer = quantizer_of(graph, graph.producers[pair.restored])
    grid = grid_of(graph, quantizer) if quantizer is not None else None
    if grid is None or grid.axis is not None:
        return None
    scale, zero, form = float(grid.scale), int(grid.zero_point), grid.format
    return (
        max((form.lowest - zero) * scale, FP32.lowest),
        min((form.largest - zero) * scale, FP32.largest),
    )


def _clip(editor: Editor, pair: Pair, bounds: tuple[float, float], slack: str) -> None:
    """What a pair gives, clipped `slack` beyond its bounds."""
    low, high = (
        editor.initializer(np.array(bound, np.float32), f"{pair.restored}_{what}")
        for what, bound in zip(("low", "high"), bounds, strict=True)
    )
    least = editor.add("Sub", low, slack, output=editor.tensor_name(f"{pair.restored}_least"))
    most = editor.add("Add", high, slack, output=editor.tensor_name(f"{pair.restored}_most"))
    raised = editor.tensor_name(f"{pair.restored}_raised")
    editor.add("Max", pair.quantized, least, output=raised)
    editor.add("Min", raised, most, output=pair.restored)


def _is_idle(graph: Graph, node: Node, replaced: set[str]) -> bool:
    """Whether a node only quantizes for pairs that are replaced."""
    readers = [r for t in node.outputs for r in graph.consumers.get(t, ())]
    return bool(readers) and all(r.outputs[0] in replaced for r in readers)
