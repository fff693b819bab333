"""What a training framework's own outputs say of the ONNX model; a part of the JSON of
`compare`."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.result import MaybeText, in_json
from qdebug.types import Skipped


@dataclass(frozen=True)
class FrameworkTensor:
    """An array of the framework, and the tensor of the ONNX model that it was compared with.

    Attributes:
        name: in the framework: of an output, of a module.
        tensor: in the ONNX model.
        how: what they were matched by: name, order, scope; "folded" for a module whose operator
            was folded into the one before.
        sqnr_db: of the ONNX model's values against the framework's; NaN where they are not finite.
        max_abs_err: largest difference. amax: the framework's largest magnitude.
        worst_sample: the sample with the lowest SQNR.
        agrees: they differ by no more than rounding explains; null where rounding explains so much
            that a wrong export could not be told from a right one.
    """

    name: str
    tensor: str
    how: str
    sqnr_db: float
    max_abs_err: float
    amax: float
    worst_sample: int | None
    agrees: bool | None


@dataclass(frozen=True)
class FrameworkResult:
    """The framework against the ONNX model in FP32, on the same samples.

    Attributes:
        data: where the framework's outputs came from.
        samples: how many were compared.
        limit_db: rounding explains differences of the outputs down to this SQNR: of FP32, or of the
            half type that they were stored in.
        outputs: each that the framework gives.
        modules: its other arrays, in the ONNX model's order of execution.
        last_agreeing, first_differing: the tensors between which the difference begins; null where
            nothing differs, or no activations were given.
        unmatched: arrays of the framework that belong to no tensor, and why.
        score: the end-to-end metric of the framework's outputs; null without one, and where not
            every output is given.
    """

    data: str
    samples: int
    limit_db: float
    outputs: tuple[FrameworkTensor, ...]
    modules: tuple[FrameworkTensor, ...]
    last_agreeing: MaybeText
    first_differing: MaybeText
    unmatched: tuple[Skipped, ...]
    score: float | None = None

    @property
    @in_json
    def agrees(self) -> bool | None:
        """Every output agrees; null where no output differs and some cannot be told."""
        states = {output.agrees for output in self.outputs}
        return False if False in states else None if None in states else True

    @property
    def compared(self) -> tuple[FrameworkTensor, ...]:
        """All that were compared."""
        return (*self.modules, *self.outputs)

    @property
    def worst(self) -> FrameworkTensor:
        """The output with the lowest SQNR."""
        return min(self.outputs, key=lambda output: (output.agrees is not False, output.sqnr_db))
