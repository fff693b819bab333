"""The ranges of a plan, for tools that read the user's own ONNX file."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.plan.export.nodes import FileNodes
from qdebug.plan.export.source import Source, counted
from qdebug.plan.plan import BoundPlan
from qdebug.plan.quantize import scale_of


@dataclass(frozen=True)
class FileScales:
    """Scales of the activations that the user's file has, by tensor name.

    Attributes:
        lost: activations with a range that are not in the file.
    """

    scales: dict[str, float]
    lost: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is lost, for people."""
        if not self.lost:
            return ()
        return (
            f"The ranges of {counted(self.lost, 'tensor')} that the model file does not have, "
            f"first '{self.lost[0]}', are not written.",
        )


def file_scales(source: Source) -> FileScales:
    """The scales of a plan's activations.

    Raises:
        PlanError: an amax is not valid.
    """
    bound = source.bound
    weights = set(weight_ranges(bound))
    known = FileNodes(source.model, bound.layers).tensors
    scales, lost = {}, []
    for name, entry in bound.plan.tensors.items():
        if name in weights or isinstance(entry.amax, tuple):
            continue
        if name in known:
            scales[name] = float(scale_of(entry.amax, f"tensor '{name}'"))
        else:
            lost.append(name)
    return FileScales(scales, tuple(lost))


def weight_ranges(bound: BoundPlan) -> list[str]:
    """Weights that the plan has a range for."""
    return [t for t in bound.plan.tensors if t in bound.layers.graph.initializers]
