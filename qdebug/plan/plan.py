"""A precision plan: for each layer its precision, for each quantized tensor its amax. Data only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from qdebug.errors import PlanError
from qdebug.formats.base import FloatArray, Format
from qdebug.formats.registry import (
    FORMAT_OF,
    INT8,
    RANGED,
    SCALED,
    WEIGHT_FORMAT_OF,
    WEIGHT_ONLY,
    order_of,
)
from qdebug.network.inline import Taken
from qdebug.network.layers import Layer, Layers
from qdebug.network.prepare import Model
from qdebug.plan.quantize import scale_of
from qdebug.plan.select import layer_aliases, matching_layers, nearest
from qdebug.types import Precision

GIVEN = "given"
"""The method of ranges that a quantized model has."""

BLOCK_SIZE = 128
"""Values of a weight that share a scale in W4 and W8, where a plan does not say: as NVIDIA's Model
Optimizer (INT4_BLOCKWISE_WEIGHT_ONLY_CFG) and onnxruntime.quantization (MatMulNBits) have it."""


class Granularity(StrEnum):
    """How many scales a weight has."""

    PER_CHANNEL = "per-channel"
    PER_TENSOR = "per-tensor"


LEAST_BLOCK = 16
"""The smallest block that MatMulNBits of ONNX Runtime takes."""


@dataclass(frozen=True)
class TensorRange:
    """The symmetric range of a quantized tensor.

    Attributes:
        amax: the magnitude that maps to the largest code, such as 127; one number per output
            channel for some weights.
        method: the calibrator that gave it, or "manual".
    """

    amax: float | tuple[float, ...]
    method: str = "manual"


@dataclass(frozen=True)
class PrecisionPlan:
    """What precision a network should run in.

    Attributes:
        precision: of every layer that `layers` does not name.
        fallback_precision: of layers that have no quantized form, where `precision` is one.
        layers: layer (or node) name, pattern or `op:TYPE` -> precision, for layers that differ from
            the default.
        tensors: tensor name -> range. Quantized layers need one for each activation they read; a
            weight's is taken from its values unless it is named here.
        weights: one scale per output channel, or one per weight.
        block_size: of W4 and W8: how many values of a weight, along what is summed over, share a
            scale.
        model_sha256: of the model file the plan was made for, or "" when any will do.
        calibration: where the ranges came from, for the reader.
        control_flow: the branch that stands in the place of an If of the model, by its name (see
            `network.inline`); the names of layers and tensors are those of what is inside.
    """

    precision: Precision
    fallback_precision: Precision = Precision.FP32
    layers: Mapping[str, Precision] = field(default_factory=dict)
    tensors: Mapping[str, TensorRange] = field(default_factory=dict)
    weights: Granularity = Granularity.PER_CHANNEL
    block_size: int = BLOCK_SIZE
    model_sha256: str = ""
    calibration: str = ""
    control_flow: Taken = field(default_factory=dict)

    def with_ranges(self, ranges: Mapping[str, TensorRange], calibration: str) -> PrecisionPlan:
        """This plan with `ranges` for the tensors it has none for."""
        return replace(self, tensors={**ranges, **self.tensors}, calibration=calibration)


@dataclass(frozen=True)
class Correction:
    """What a layer computes with in INT8 in place of its own constants, to make up for errors of
    quantization. In any other precision it computes with its own.

    Attributes:
        weight: what is quantized in place of the weight, float32 of its shape; None for its own.
        bias: what is added to the anchor's output, float32 [output channels]; None for nothing.
    """

    weight: npt.NDArray[np.float32] | None = None
    bias: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True)
class BoundPlan:
    """A plan that was checked against a model.

    Attributes:
        plan: the plan.
        precisions: the precision of every layer of the model, by layer name.
        calibrated: tensors whose range was found on this model just now, and not read from a file.
        corrections: by layer name, those of layers in INT8. The weight of such a layer has no other
            reader.
    """

    plan: PrecisionPlan
    layers: Layers
    precisions: Mapping[str, Precision]
    calibrated: frozenset[str] = frozenset()
    corrections: Mapping[str, Correction] = field(default_factory=dict)

    def layers_in(self, precision: Precision) -> list[Layer]:
        """Layers that run in `precision`, in execution order."""
        return [layer for layer in self.layers if self.precisions[layer.name] is precision]

    def quantized_layers(self) -> list[Layer]:
        """Layers whose operands are read through Q/DQ pairs, in execution order."""
        return [layer for layer in self.layers if self.precisions[layer.name] in SCALED]

    def quantized_inputs(self, layer: Layer) -> tuple[str, ...]:
        """The activations that `layer` reads through Q/DQ pairs."""
        precision = self.precisions[layer.name]
        return layer.quantized_inputs if precision in RANGED else ()

    def format_of(self, layer: Layer) -> Format:
        """What the activations that `layer` reads are rounded to."""
        return FORMAT_OF[self.precisions[layer.name]]

    def weight_format_of(self, layer: Layer) -> Format:
        """What the weight of `layer` is rounded to."""
        return WEIGHT_FORMAT_OF[self.precisions[layer.name]]

    def needed_ranges(self) -> list[str]:
        """Activations that quantized layers read, in execution order, each once."""
        reads = (t for layer in self.layers for t in self.quantized_inputs(layer))
        return list(dict.fromkeys(reads))

    def only_quantized(self, tensor: str) -> bool:
        """Whether all who read a tensor are layers that quantize it: it may be stored in codes."""
        layers = self.layers
        readers = (layers.of_node.get(n.name) for n in layers.graph.consumers.get(tensor, ()))
        return tensor not in layers.graph.outputs and all(
            reader is not None and tensor in self.quantized_inputs(reader) for reader in readers
        )

    def activation_scale(self, tensor: str, form: Format = INT8) -> FloatArray:
        """The scale, float32 [], of an activation that the plan has a range for, in a format.

        Raises:
            PlanError: the range is one of a weight's channels, or no range.
        """
        amax = self.plan.tensors[tensor].amax
        if isinstance(amax, tuple):
            raise PlanError(
                f"tensor '{tensor}' is an activation: it takes one amax, not {len(amax)}",
                "Give one number; only a weight can have one per output channel.",
                code="QD-PLAN-AMAX-COUNT",
            )
        return scale_of(amax, f"tensor '{tensor}'", form)

    def tensors_by_format(self, tensors: Iterable[str]) -> dict[Format, list[str]]:
        """These activations by what they are quantized to: where layers of several formats read
        one, the first in the order of precisions."""
        layers = sorted(self.quantized_layers(), key=lambda x: -order_of(self.precisions[x.name]))
        formats = {
            t: self.format_of(layer) for layer in layers for t in self.quantized_inputs(layer)
        }
        found: dict[Format, list[str]] = {}
        for tensor in tensors:
            found.setdefault(formats[tensor], []).append(tensor)
        return found

    def missing_ranges(self) -> list[str]:
        """Those of them that the plan has no amax for."""
        return [t for t in self.needed_ranges() if t not in self.plan.tensors]


def corrections_digest(bound: BoundPlan) -> str:
    """SHA-256 of the corrections of a plan, in hexadecimal."""
    found = hashlib.sha256()
    for name, one in sorted(bound.corrections.items()):
        for kind, values in (("weight", one.weight), ("bias", one.bias)):
            if values is not None:
                found.update(repr((name, kind, values.shape)).encode())
                found.update(values.tobytes())
    return found.hexdigest()


def bind_plan(plan: PrecisionPlan, model: Model, layers: Layers) -> BoundPlan:
    """Check `plan` against `model`.

    Names may be those of layers, of any node of a layer, or the user's names of folded nodes; see
    `matching_layers` for patterns and operators.

    Raises:
        PlanError: an unknown layer or tensor, two precisions for one layer, INT8 for a layer
            that has no INT8 form, or a plan made for another model.
    """
    if plan.model_sha256 and plan.model_sha256 != model.file.sha256:
        raise PlanError(
            f"the plan was made for another model (sha256 {plan.model_sha256[:12]}…, "
            f"{model.file.path} has {model.file.sha256[:12]}…)",
            "Name the model it was made for, or remove 'model' from the plan.",
            code="QD-PLAN-OTHER-MODEL",
        )
    check_control_flow(plan.control_flow, model)
    named = _named_precisions(plan, model, layers)
    _check_tensors(plan, model)
    precisions = {layer.name: named.get(layer.name, _default(plan, layer)) for layer in layers}
    return BoundPlan(plan, layers, precisions)


def check_control_flow(wanted: Taken, model: Model) -> None:
    """Refuse a plan, or ranges, that were made for other branches.

    Raises:
        PlanError: it was.
    """
    for name, taken in wanted.items():
        found = model.taken.get(name)
        if found != taken:
            here = "is left as it is" if found is None else f"is replaced by its {found}"
            raise PlanError(
                f"the plan was made with samples for which '{name}' is replaced by "
                f"its {taken}, and with these it {here}",
                "Give samples like those that the plan was made with, or make a plan for these.",
                code="QD-PLAN-CONTROL-FLOW",
            )


def _default(plan: PrecisionPlan, layer: Layer) -> Precision:
    return plan.precision if can_run_in(plan.precision, layer) else plan.fallback_precision


def can_run_in(precision: Precision, layer: Layer) -> bool:
    """Whether a layer has a form in a precision that a plan may ask for."""
    if precision in WEIGHT_ONLY:
        return layer.quantizable and layer.weight_in_blocks
    return layer.quantizable or precision not in SCALED


def _named_precisions(plan: PrecisionPlan, model: Model, layers: Layers) -> dict[str, Precision]:
    """What the plan asks for by name, pattern or operator. A name beats what only matches; of two
    patterns that match a layer, the later one holds.

    Raises:
        PlanError: a name of no layer, or two precisions for one.
    """
    aliases = layer_aliases(model, layers)
    matched: dict[str, Precision] = {}
    named: dict[str, tuple[str, Precision]] = {}
    for text, precision in plan.layers.items():
        chosen = matching_layers(text, aliases, layers)
        able = [layer for layer in chosen if can_run_in(precision, layer)]
        if not able:
            operators = ", ".join(dict.fromkeys(layer.op_type for layer in chosen))
            able_to = "Conv, ConvTranspose, Gemm and MatMul"
            if precision in WEIGHT_ONLY:
                able_to = "Gemm and MatMul with a constant right operand"
            raise PlanError(
                f"layer '{text}' ({operators}) cannot run in {precision.upper()}",
                f"Only {able_to} can: set it to bf16, fp16 or fp32.",
                code="QD-PLAN-NO-INT8",
            )
        if text not in aliases:
            matched |= {layer.name: precision for layer in able}
            continue
        name = able[0].name
        other = named.get(name)
        if other and other[1] is not precision:
            raise PlanError(
                f"'{other[0]}' and '{text}' are one fused layer, but the plan asks for "
                f"{other[1]} and {precision}",
                "Give the layer one precision.",
                code="QD-PLAN-CONFLICT",
            )
        named[name] = (text, precision)
    return matched | {name: precision for name, (_, precision) in named.items()}


def pinned(bound: BoundPlan, names: Iterable[str], precision: Precision) -> PrecisionPlan:
    """The plan of `bound` with these layers in `precision`, every layer that differs from the
    default by its own name."""
    precisions = {**bound.precisions, **dict.fromkeys(names, precision)}
    plan = bound.plan
    layers = {x.name: precisions[x.name] for x in bound.layers}
    differing = {x.name for x in bound.layers if layers[x.name] is not _default(plan, x)}
    return replace(plan, layers={n: p for n, p in layers.items() if n in differing})


def _check_tensors(plan: PrecisionPlan, model: Model) -> None:
    known = model.graph.tensors
    for name in plan.tensors:
        if name not in known:
            raise PlanError(
                f"the model has no tensor '{name}'", nearest(name, known), code="QD-PLAN-TENSOR"
            )
