"""Encodings for Qualcomm's converter (`qairt-converter --quantization_overrides FILE`, and those of
QNN and SNPE before it), in the form that AIMET exports, version 0.6.1.

An encoding is a grid of unsigned codes: min = scale · offset, max = scale · (offset + 2^bits − 1).
A symmetric range of signed codes is the same grid with offset −2^(bits − 1), so that INT16
activations here are what QNN calls UINT16. Nothing of it was run with Qualcomm's tools.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import PlanError
from qdebug.formats.base import FloatArray, Format
from qdebug.plan.export.source import ExportSource, Rendered, in_utf8
from qdebug.plan.lower import quantized_layer
from qdebug.types import Precision
from qdebug.wording import counted

_VERSION = "0.6.1"


def render_qnn(source: ExportSource, path: Path) -> Rendered:
    """The encodings of every quantized activation and weight, by the names of the user's file.

    Raises:
        PlanError: nothing is quantized, or two layers read one tensor in two formats.
    """
    bound, known = source.bound, source.nodes.tensors
    activations: dict[str, list[dict[str, Any]]] = {}
    weights: dict[str, list[dict[str, Any]]] = {}
    lost: dict[str, None] = {}
    for layer in bound.quantized_layers():
        item = quantized_layer(bound, layer)
        for tensor, scale in item.activations.items():
            found = encodings_of(scale, item.format)
            if activations.setdefault(tensor, found) != found:
                raise PlanError(
                    f"tensor '{tensor}' is read in {item.format.label} and in another format, and "
                    "an encoding is of the tensor itself",
                    "Give the layers that read it one precision.",
                    code="QD-PLAN-EXPORT-FORMAT",
                )
        if layer.weight is not None and item.weight is not None:
            weights[layer.weight] = encodings_of(item.weight.scale, item.weight.format)
    for tensors in (activations, weights):
        for tensor in [t for t in tensors if t not in known]:
            lost[tensor] = None
            del tensors[tensor]
    if not activations:
        raise PlanError(
            f"{source.name}: no quantized tensor is in the model file",
            "The target 'onnx' can express any plan.",
            code="QD-PLAN-NOTHING-TO-QUANTIZE",
        )
    data = {
        "version": _VERSION,
        "activation_encodings": activations,
        "param_encodings": weights,
        "excluded_layers": [],
    }
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return Rendered({path: in_utf8(text)}, _notes(source, tuple(lost)))


def encodings_of(scale: FloatArray, form: Format) -> list[dict[str, Any]]:
    """One encoding for each scale, of a symmetric range."""
    return [
        {
            "bitwidth": form.bits,
            "dtype": "int",
            "is_symmetric": "True",
            "scale": float(s),
            "offset": int(form.lowest),
            "min": float(s) * form.lowest,
            "max": float(s) * form.largest,
        }
        for s in np.atleast_1d(scale)
    ]


def _notes(source: ExportSource, lost: tuple[str, ...]) -> tuple[str, ...]:
    bound = source.bound
    notes = [
        "Outputs of layers have no encodings here. With --float_fallback the converter leaves in "
        "floating point what lacks one; qairt-quantizer with --input_list calibrates the rest.",
    ]
    others = [x.name for x in bound.layers if x.quantizable and x not in bound.quantized_layers()]
    if others:
        notes.append(
            f"{counted(others, 'layer')} that could be quantized and are not (first "
            f"'{others[0]}') stay in floating point only with --float_fallback."
        )
    if bound.layers_in(Precision.FP16):
        notes.append("Which layers are in FP16 is the converter's --float_bitwidth, for all.")
    if lost:
        notes.append(
            f"The encodings of {counted(lost, 'tensor')} that the model file does not have are not "
            f"written (first '{lost[0]}')."
        )
    return tuple(notes)
