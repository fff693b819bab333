"""What is compared: the FP32 reference, the lowered candidate, and their layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx

from qdebug.errors import PlanError, UsageError
from qdebug.formats.base import Format
from qdebug.formats.registry import BY_ONNX_TYPE, CAST, INT8, SCALED
from qdebug.network.codes import format_of_codes
from qdebug.network.graph import Graph
from qdebug.network.layers import Layer, Layers, find_layers
from qdebug.network.outputparts import OutputParts, output_parts
from qdebug.network.prepare import Model, unnamed_notes
from qdebug.plan.correspond import Alignment, Proof, align
from qdebug.plan.imported import Imported, import_quantized
from qdebug.plan.lints import (
    SaturatedBias,
    invalid_scales,
    saturated_biases,
    saturation_notes,
    scale_notes,
)
from qdebug.plan.lower import lower
from qdebug.plan.plan import BoundPlan, PrecisionPlan
from qdebug.plan.quantize import QUANTIZERS, ROUNDING_INSIDE, Grid, grid_of
from qdebug.plan.rewrite.constants import ConstantValues
from qdebug.plan.rewrite.cut import INSERTED_OPS
from qdebug.plan.rewrite.restore import Absorbed, restore
from qdebug.plan.unconverted import unconverted_notes
from qdebug.types import Precision
from qdebug.wording import option


@dataclass(frozen=True)
class ModelPair:
    """A reference and a candidate whose tensors are matched.

    Attributes:
        model: the user's model.
        reference: computes in FP32.
        candidate: computes as planned.
        tensors: reference tensor -> candidate tensor.
        layers: of the reference.
        precisions: what each layer of the candidate runs in, by name.
        grids: what the Q/DQ pairs of the candidate round activations to, by reference tensor.
        plan: the plan that was lowered; None for a model that is already quantized.
        calibrated: reference tensors whose range was found on this model just now.
        notes: what the reader of the result must know.
        aligned: how the tensors of a quantized model and of its FP32 model were matched; None where
            the candidate was made from the reference, or the reference from the candidate.
        proof: which of these matches samples prove.
        guessed: activations that were put back without an FP32 model to tell them.
    """

    model: Model
    reference: Graph
    candidate: Graph
    tensors: Mapping[str, str]
    layers: Layers
    precisions: Mapping[str, Precision]
    grids: Mapping[str, Grid]
    plan: PrecisionPlan | None
    calibrated: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    aligned: Alignment | None = None
    proof: Proof | None = None
    guessed: tuple[Absorbed, ...] = ()

    @property
    def precision(self) -> Precision:
        """What the candidate is in, before layers that were kept higher: the plan's, or that of a
        model which was taken as it is."""
        if self.plan is not None:
            return self.plan.precision
        scaled = Counter(p for p in self.precisions.values() if p in SCALED)
        if scaled:
            return scaled.most_common(1)[0][0]
        cast = Counter(p for p in self.precisions.values() if p in CAST)
        if cast:
            return cast.most_common(1)[0][0]
        return Precision.INT8 if self.model.quantized else Precision.FP32

    @cached_property
    def parts(self) -> Mapping[str, OutputParts]:
        """Of each output that consists of parts."""
        return output_parts(self.reference)

    @cached_property
    def saturated(self) -> Mapping[str, SaturatedBias]:
        """The INT32 biases of the candidate that saturate, by the node that reads each."""
        return saturated_biases(self.candidate) if self.plan is None else {}

    @cached_property
    def invalid_scales(self) -> Mapping[str, str]:
        """Scales of the candidate that are not positive numbers, by the node that reads what they
        dequantize, for people."""
        return invalid_scales(self.candidate) if self.plan is None else {}

    @property
    def imported(self) -> Imported:
        """The candidate, which is quantized, as what rounds the operands of its nodes.

        Raises:
            PlanError: as `check`.
        """
        return import_quantized(self.candidate, self.reference, biases=True)

    def unrounded(self) -> tuple[Graph, Mapping[str, str]]:
        """What the candidate computes if the tensors that were matched are the same quantities: the
        error of quantization, however large, is gone, and a wrong match stays. And the nodes with
        constants that are no roundings of the FP32 model's, with what is other, for people.

        Raises:
            ModelError: it computes on codes directly.
            PlanError: as `check`.
        """
        plain = import_quantized(self.candidate, self.reference)
        return Graph.inferred(plain.network), plain.changed

    @property
    def refuted(self) -> frozenset[str]:
        """Reference tensors whose namesake in the candidate is something else."""
        return frozenset(u.tensor for u in self.proof.refuted) if self.proof else frozenset()

    def reads(self, layer: str) -> frozenset[str]:
        """The reference tensors that a layer reads, except those between its own nodes."""
        nodes = [self.reference.by_name[n] for n in self.layers.by_name[layer].nodes]
        own = {t for node in nodes for t in node.outputs}
        return frozenset(t for node in nodes for t in node.reads if t not in own)


def planned_pair(model: Model, bound: BoundPlan) -> ModelPair:
    """The model against itself in the precisions of a plan.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    lowered = lower(bound)
    precisions = {x.name: _lowered_precision(bound, lowered.graph, x) for x in bound.layers}
    return ModelPair(
        model=model,
        reference=model.graph,
        candidate=lowered.graph,
        tensors=lowered.tensors,
        layers=bound.layers,
        precisions=precisions,
        grids=lowered.grids,
        plan=bound.plan,
        calibrated=bound.calibrated,
        notes=(
            *model.notes,
            *unnamed_notes(model, list(precisions)),
            *unconverted_notes(bound, precisions),
        ),
    )


def _lowered_precision(bound: BoundPlan, lowered: Graph, layer: Layer) -> Precision:
    """What a layer really runs in: an operator without an FP16 or BF16 form stays FP32, and what is
    in one of them in the model itself stays so."""
    if bound.precisions[layer.name] in SCALED:
        return bound.precisions[layer.name]
    return _cast_precision(lowered, lowered.by_name[layer.name].outputs)


def _cast_precision(graph: Graph, tensors: Sequence[str]) -> Precision:
    """FP16 or BF16 where one of the tensors is, else FP32."""
    kinds = (BY_ONNX_TYPE.get(graph.types.get(t, onnx.TensorProto.FLOAT)) for t in tensors)
    found = (form.precision for form in kinds if form is not None and form.precision in CAST)
    return next(found, Precision.FP32)


def quantized_pair(
    model: Model,
    reference: Graph | None = None,
    reference_path: str | None = None,
    guessed: Sequence[Absorbed] = (),
) -> ModelPair:
    """A quantized model as it is, against the FP32 model it was made from.

    Activations that its quantizers absorbed are put back, which changes none of its codes.

    Args:
        model: the quantized model.
        reference: the FP32 model; None stands for the model itself without its Q/DQ.
        reference_path: where it was read from, for messages.
        guessed: without `reference`, the activations that were absorbed.

    Raises:
        UsageError: the two have different inputs.
        PlanError: the reference given shares no tensor with the model.
        ModelError: the model has no FP32 form.
    """
    candidate, missing, aligned = model.graph, tuple(guessed), None
    if reference is not None:
        _check_inputs(model, reference, reference_path)
        aligned = align(reference, candidate)
        candidate, missing = aligned.graph, aligned.absorbed
    if missing:
        candidate = Graph.inferred(restore(candidate, missing), data_prop=False)
    notes = (*scale_notes(model.graph), *_restored_note(missing, known=reference is not None))
    if reference is None:
        _check_rounds_activations(model)
        notes += saturation_notes(saturated_biases(model.graph))
        reference = Graph.inferred(import_quantized(candidate).network, data_prop=False)
        notes += (
            f"The model is quantized ({_form(model)}): it is compared with itself, unquantized. "
            "That hides "
            f"the rounding of weights stored as {_stored_formats(candidate)}, which is in no "
            "layer's share either; "
            f"{option('reference', 'FP32.onnx')} shows it.",
        )
    notes += _inside_notes(candidate, alone=aligned is None)
    layers = find_layers(reference)
    known = set(candidate.producers)
    tensors = {t: t for t in reference.activations() if t in known}
    if not tensors:
        raise PlanError(
            f"{reference_path} and {model.file.path} have no tensor in common",
            "Give the FP32 model that the quantized one was made from.",
            code="QD-PLAN-NO-COMMON-TENSOR",
        )
    precisions = {x.name: _found_precision(candidate, reference, x) for x in layers}
    return ModelPair(
        model=model,
        reference=reference,
        candidate=candidate,
        tensors=tensors,
        layers=layers,
        precisions=precisions,
        grids=_found_grids(candidate),
        plan=None,
        notes=(*model.notes, *unnamed_notes(model, list(precisions)), *notes),
        aligned=aligned,
        guessed=tuple(guessed),
    )


def _check_rounds_activations(model: Model) -> None:
    """Refuse a model that hides all that its quantization costs.

    Raises:
        UsageError: nothing but constants is quantized in it.
    """
    constants = ConstantValues(model.graph)
    if any(
        node.op_type in QUANTIZERS and not constants.is_constant(node.inputs[0])
        for node in model.graph.nodes
    ):
        return
    raise UsageError(
        f"{model.file.path}: only weights are quantized ({_stored_formats(model.graph)}), and what "
        "they were before is not in the file",
        f"Give the FP32 model that it was made from: {option('reference', 'FP32.onnx')}.",
        code="QD-USAGE-REFERENCE-NEEDED",
    )


def _form(model: Model) -> str:
    """How a file is quantized, for people."""
    kinds = {node.op_type for node in model.file.proto.graph.node}
    return "Q/DQ" if "DequantizeLinear" in kinds else "integer operators"


def _inside_notes(candidate: Graph, *, alone: bool) -> tuple[str, ...]:
    """On operators that round inside; `alone` without the FP32 model."""
    found = Counter(n.op_type for n in candidate.nodes if n.op_type in ROUNDING_INSIDE)
    if not found:
        return ()
    listed = ", ".join(f"{name} ({count})" for name, count in found.items())
    if alone:
        return (
            f"What {listed} costs is in no figure, since both models have it: "
            f"{option('reference', 'FP32.onnx')} shows it.",
        )
    return (
        f"{listed} rounds inside, where nothing can be left out: what that costs is in the error "
        "of its outputs, and in no layer's gain.",
    )


def _stored_formats(graph: Graph) -> str:
    """The formats of constants that are stored as codes, for people."""
    formats = {
        form.label
        for node in graph.nodes
        if node.op_type == "DequantizeLinear" and node.inputs[0] in graph.initializers
        if (form := format_of_codes(graph, node)) is not None
    }
    return " and ".join(sorted(formats)) or "codes"


def _restored_note(missing: Sequence[Absorbed], *, known: bool) -> tuple[str, ...]:
    """What to say of activations that were put back; `known` from the FP32 model, else guessed."""
    if not missing:
        return ()
    count = Counter(item.what for item in missing)
    listed = ", ".join(f"{n} {what}" for what, n in count.most_common())
    how = (
        "which changes no quantized value."
        if known
        else "since their ranges start at 0 and negative values were seen. "
        f"{option('reference', 'FP32.onnx')} would tell for sure."
    )
    return (f"{listed} that the quantizer absorbed into ranges were put back, {how}",)


def _check_inputs(model: Model, reference: Graph, reference_path: str | None) -> None:
    given = {spec.name: spec.dtype for spec in model.graph.inputs}
    for spec in reference.inputs:
        found = given.get(spec.name)
        if found != spec.dtype:
            kind = "none of that name" if found is None else f"it as {found}"
            raise UsageError(
                f"{option('reference')}: {reference_path} has an input '{spec.name}' "
                f"({spec.dtype}), but {model.file.path} has {kind}",
                "Give the FP32 model that the quantized one was made from.",
                code="QD-USAGE-REFERENCE-INPUTS",
            )


def _found_precision(graph: Graph, reference: Graph, layer: Layer) -> Precision:
    """What a layer of a quantized model runs in: the widest format of what is dequantized on the
    way from the tensors that both models have to its output, since that is what a kernel multiplies
    in; where nothing is, that of its output."""
    known = {spec.name for spec in reference.inputs} | set(reference.producers)
    own = {t for n in layer.nodes for t in reference.by_name[n].outputs}
    waiting, seen, formats = [layer.output], set[str](), list[Format]()
    in_blocks = True
    while waiting:
        tensor = waiting.pop()
        node = graph.producers.get(tensor)
        if node is None or node.name in seen:
            continue
        inserted = node.op_type in INSERTED_OPS
        if tensor in known and tensor not in own and not inserted:
            continue
        seen.add(node.name)
        if node.op_type in ROUNDING_INSIDE:
            formats.append(INT8)
            in_blocks = False
        elif node.op_type == "DequantizeLinear":
            form = format_of_codes(graph, node)
            formats += [form] if form is not None else []
            in_blocks &= bool(graph.attributes(node).get("block_size"))
        else:
            waiting += node.reads
    if formats:
        if in_blocks and all(form.bits == INT8.bits for form in formats):
            return Precision.W8  # the weight alone, as of MatMulNBits: blocks are of constants
        widest = max(formats, key=lambda f: f.bits).precision
        mixed = widest is Precision.INT16 and min(f.bits for f in formats) == INT8.bits
        return Precision.A16W8 if mixed else widest
    computed = layer.output  # before it is cast to what the model gives
    while (node := graph.producers.get(computed)) and node.op_type == "Cast" != layer.op_type:
        computed = node.inputs[0]
    return _cast_precision(graph, [computed])


def _found_grids(graph: Graph) -> dict[str, Grid]:
    """What each QuantizeLinear of an activation rounds to, where it has one scale."""
    grids = {}
    for node in graph.nodes:
        if node.op_type == "QuantizeLinear" and node.inputs[0] not in graph.initializers:
            grid = grid_of(graph, node)
            if grid is not None and grid.axis is None:
                grids[node.inputs[0]] = grid
    return grids
