"""A network and how it is quantized: what remedies change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import onnx

from qdebug.network.graph import Graph
from qdebug.network.layers import Layer, Layers, find_layers
from qdebug.network.prepare import Model
from qdebug.plan.lower import lower, quantized_layer
from qdebug.plan.plan import GIVEN, BoundPlan, Correction, PrecisionPlan, TensorRange, bind_plan
from qdebug.plan.rewrite.qdq import QuantizedLayer, weight_axis


@dataclass(frozen=True)
class Quantized:
    """A network in FP32, and how it is quantized. Never changed: each method gives another one.

    Attributes:
        model: computes what the user's network computes, within 1e-4 of its outputs' magnitude.
        bound: the precision of its layers, the ranges of their operands, and corrections.
    """

    model: Model
    bound: BoundPlan

    @property
    def graph(self) -> Graph:
        """The network in FP32."""
        return self.model.graph

    @property
    def layers(self) -> Layers:
        """Its layers."""
        return self.bound.layers

    def weighted(self) -> tuple[Layer, ...]:
        """Quantized layers that have a weight which nothing else reads, in execution order: those
        that a correction may be given to."""
        readers = self.graph.consumers
        return tuple(
            layer
            for layer in self.bound.quantized_layers()
            if layer.weight is not None and len(readers.get(layer.weight, ())) == 1
        )

    def quantized(self, layer: str) -> QuantizedLayer:
        """A layer with the scales of its operands and its correction.

        Raises:
            PlanError: a range is missing.
        """
        return quantized_layer(self.bound, self.layers.by_name[layer])

    def axis(self, layer: Layer) -> int | None:
        """The axis of the output channels in a layer's weight; None where it has none."""
        assert layer.weight is not None
        return weight_axis(self.graph.by_name[layer.name], self.graph, layer.weight)

    def proto(self) -> onnx.ModelProto:
        """The network with Q/DQ.

        Raises:
            PlanError: a range is missing.
        """
        return lower(self.bound).graph.proto

    def with_ranges(self, ranges: Mapping[str, TensorRange]) -> Quantized:
        """With these ranges in place of those that the tensors had."""
        plan = replace(self.bound.plan, tensors={**self.bound.plan.tensors, **ranges})
        return replace(self, bound=replace(self.bound, plan=plan))

    def with_corrections(self, corrections: Mapping[str, Correction]) -> Quantized:
        """With these corrections, by layer, in place of those that the layers had."""
        known = {**self.bound.corrections, **corrections}
        return replace(self, bound=replace(self.bound, corrections=known))

    def with_own_weights(self, layers: Collection[str] | None = None) -> Quantized:
        """Without corrections of some layers, all where that is None, and without ranges that
        their weights had in a model that was given."""
        names = self.layers.by_name if layers is None else layers
        weights = {self.layers.by_name[name].weight for name in names}
        plan = self.bound.plan
        ranges = {t: r for t, r in plan.tensors.items() if t not in weights or r.method != GIVEN}
        kept = {n: c for n, c in self.bound.corrections.items() if n not in names}
        bound = replace(self.bound, plan=replace(plan, tensors=ranges), corrections=kept)
        return replace(self, bound=bound)

    def rewritten(self, proto: onnx.ModelProto, stale: frozenset[str] = frozenset()) -> Quantized:
        """With another FP32 network of the same function, whose layers keep their names.

        Ranges of tensors that it does not have, and of those that are `stale` because their values
        are others, are dropped: see `missing_ranges` of `bound`. So are corrections of layers whose
        weight is stale: they start again from FP32.
        """
        graph = Graph.inferred(proto)
        origins = {n.name: self.model.origins.get(n.name, (n.name,)) for n in graph.nodes}
        model = replace(self.model, graph=graph, origins=origins)
        layers = find_layers(graph)
        plan = self.bound.plan
        named = {name: p for name, p in plan.layers.items() if name in layers.by_name}
        ranges = {t: r for t, r in plan.tensors.items() if t in graph.tensors and t not in stale}
        bound = bind_plan(replace(plan, layers=named, tensors=ranges), model, layers)
        kept = {
            name: correction
            for name, correction in self.bound.corrections.items()
            if self.layers.by_name[name].weight not in stale
        }
        return Quantized(model, replace(bound, corrections=kept))


def quantized(model: Model, bound: BoundPlan) -> Quantized:
    """The start of a repair: `model` as `bound` quantizes it. Layers are named one by one, so that
    a rewrite which adds or joins nodes changes no precision; ranges that the plan was given for
    weights stay. The plan is for this network, not for the user's file, with its branches."""
    layers = {layer.name: bound.precisions[layer.name] for layer in bound.layers}
    plan: PrecisionPlan = replace(bound.plan, layers=layers, model_sha256="", control_flow={})
    return Quantized(model, replace(bound, plan=plan))
