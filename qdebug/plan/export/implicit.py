"""The implicit way of TensorRT 10 (and 8): precision constraints on layers of the FP32 model, and a
calibration cache. The second lowering of a plan; TensorRT 11 and RTX know only the explicit one.

A layer is constrained where the builder would otherwise be free to take another precision: INT8
layers never (the builder takes INT8 where it is fastest), FP16 and FP32 layers where a lower
precision is switched on for them. (NvInfer.h: ILayer::setPrecision, ILayer::setOutputType,
BuilderFlag::kOBEY_PRECISION_CONSTRAINTS.)
"""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.model.graph import Graph
from qdebug.model.layers import Layer
from qdebug.plan.export.nodes import FileNode, FileNodes
from qdebug.plan.export.ranges import weight_ranges
from qdebug.plan.export.source import Source, counted
from qdebug.plan.plan import BoundPlan, Granularity
from qdebug.types import Precision

_UNPINNABLE = frozenset({"Cast", "If", "Loop", "Scan"})
"""A Cast is what its type says; control flow becomes layers of its own, without these names."""


@dataclass(frozen=True)
class Pin:
    """A constraint on the layers that TensorRT makes of one node.

    Attributes:
        stored: what its outputs are constrained to: FP32 where they are the model's, whose types
            are its interface. None where only INT8 layers read them: the node may then write INT8
            itself, in the scale that its readers use.
    """

    node: FileNode
    precision: Precision
    stored: Precision | None

    @property
    def trt_name(self) -> str:
        """The name that TensorRT's ONNX parser gives to the first layer of the node, if no other
        has taken it (getNodeName in onnx-tensorrt's importerUtils)."""
        return self.node.name or f"node_of_{self.node.float_outputs[0]}"


@dataclass(frozen=True)
class Implicit:
    """A plan as constraints.

    Attributes:
        pins: in the file's order.
        int8, fp16: builder flags.
        notes: what of the plan is not in it.
    """

    pins: tuple[Pin, ...]
    int8: bool
    fp16: bool
    notes: tuple[str, ...]


def implicit_form(source: Source) -> Implicit:
    """The constraints of a plan."""
    bound = source.bound
    used = set(bound.precisions.values())
    int8, fp16 = Precision.INT8 in used, Precision.FP16 in used
    nodes = FileNodes(source.model, bound.layers)
    pinned = [layer for layer in bound.layers if _is_pinned(source, layer, int8, fp16)]
    pins = [pin for layer in pinned for pin in _pins(bound, layer, nodes.by_layer[layer.name])]
    pins.sort(key=lambda pin: pin.node.index)
    lost = [layer.name for layer in pinned if layer.name in nodes.absent]
    return Implicit(tuple(pins), int8, fp16, (*_lost_note(lost), *_weight_notes(bound, int8)))


def dynamic_inputs(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Inputs with dynamic axes -> their shape with 1 for each of them."""
    return {
        spec.name: tuple(d if isinstance(d, int) else 1 for d in spec.shape)
        for spec in graph.inputs
        if not all(isinstance(d, int) for d in spec.shape)
    }


def _is_pinned(source: Source, layer: Layer, int8: bool, fp16: bool) -> bool:
    precision = source.bound.precisions[layer.name]
    if precision is Precision.INT8 or layer.op_type in _UNPINNABLE:
        return False
    could_be_int8 = int8 and (layer.quantizable or _is_named(source, layer))
    return could_be_int8 or (fp16 and precision is Precision.FP32)


def _is_named(source: Source, layer: Layer) -> bool:
    origins = (name for node in layer.nodes for name in source.model.origins.get(node, ()))
    return not source.bound.plan.layers.keys().isdisjoint((*layer.nodes, *origins))


def _pins(bound: BoundPlan, layer: Layer, nodes: tuple[FileNode, ...]) -> list[Pin]:
    precision = bound.precisions[layer.name]
    ends = set(bound.layers.graph.outputs)
    pins = []
    for node in nodes:
        stored: Precision | None = precision
        if not node.all_float or (
            layer.output in node.float_outputs and bound.only_quantized(layer.output)
        ):
            stored = None
        elif ends.intersection(node.float_outputs):
            stored = Precision.FP32
        if node.float_outputs:
            pins.append(Pin(node, precision, stored))
    return pins


def _lost_note(lost: list[str]) -> tuple[str, ...]:
    if not lost:
        return ()
    return (
        f"{counted(lost, 'layer')} of the plan in no node of the model file, first '{lost[0]}': "
        "not constrained in the implicit way. The explicit model has them.",
    )


def _weight_notes(bound: BoundPlan, int8: bool) -> tuple[str, ...]:
    if not int8:
        return ()
    notes = []
    weights = weight_ranges(bound)
    if weights:
        notes.append(
            f"The plan's ranges of {counted(weights, 'weight')}, first '{weights[0]}', are not in "
            "the implicit way: TensorRT takes the scales of weights from their values."
        )
    elif bound.plan.weights is Granularity.PER_TENSOR:
        notes.append(
            "One scale per weight is not in the implicit way: TensorRT takes one per output "
            "channel."
        )
    return tuple(notes)
