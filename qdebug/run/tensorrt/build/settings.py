"""How an engine is built. Data only; nothing here needs TensorRT."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qdebug.errors import UsageError
from qdebug.types import TensorSpec

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ShapeRange:
    """The shapes one input may have: at least, the one to be fast for, and at most."""

    min: Shape
    opt: Shape
    max: Shape


@dataclass(frozen=True)
class BuildSettings:
    """What the builder is told. None leaves a choice to the library.

    Attributes:
        compute_capabilities: (major, minor) of the GPUs to build for, RTX only; () builds for the
            GPU that is present.
        workspace_bytes: limit of scratch memory.
        optimization_level: the builder's, 0 to 5: how long it searches for fast kernels.
        tactic_sources: names of `trt.TacticSource`; an empty tuple allows none.
        timing_cache: file with measured kernel times, read and extended by every build so that
            repeated builds choose alike. TensorRT for RTX measures none and ignores it.
        tf32: let FP32 layers compute in TF32 (10 bits of mantissa) on Ampere and later. Off, since
            it hides what a comparison is to show.
        sparsity: use kernels for weights with 2:4 sparsity.
        profile: the shapes of each input that has dynamic axes.
        plugins: shared objects with plugins, loaded before the model is parsed.
        refit: weights can be replaced later.
        version_compatible: the engine runs under later versions of the library.
        unfused_debug_tensors: mark every tensor that fusion leaves as a debug tensor.
    """

    compute_capabilities: tuple[tuple[int, int], ...] = ()
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    timing_cache: Path | None = None
    tf32: bool = False
    sparsity: bool = False
    profile: Mapping[str, ShapeRange] | None = None
    plugins: tuple[Path, ...] = ()
    refit: bool = False
    version_compatible: bool = False
    unfused_debug_tensors: bool = False

    def __post_init__(self) -> None:
        level = self.optimization_level
        if level is not None and not 0 <= level <= 5:
            raise UsageError(
                f"--optimization-level: {level} is not within 0 to 5",
                "The higher, the longer the builder searches; its default is 3.",
            )
        if self.workspace_bytes is not None and self.workspace_bytes <= 0:
            raise UsageError(
                f"--workspace: {self.workspace_bytes} bytes are none", "Write for example 4G."
            )


def parse_compute_capability(text: str) -> tuple[int, int]:
    """`8.9` -> (8, 9).

    Raises:
        UsageError: not of that form.
    """
    major, dot, minor = text.strip().partition(".")
    if not (dot and major.isdigit() and minor.isdigit() and len(minor) == 1):
        raise UsageError(
            f"--compute-capability: '{text}' is no compute capability",
            "Give one like 8.9; several with commas.",
        )
    return int(major), int(minor)


def profile_for(
    inputs: Sequence[TensorSpec], shapes: Iterable[Mapping[str, Shape]]
) -> dict[str, ShapeRange]:
    """A profile that admits all of `shapes` (of single executions), fast for the first of them.

    Args:
        inputs: of the model; only those with dynamic axes get an entry.
        shapes: shape by input name, one mapping per execution; others than inputs are ignored.
            Not asked for where no input has dynamic axes.

    Raises:
        UsageError: no shapes for an input with dynamic axes.
    """
    dynamic = [s for s in inputs if not all(isinstance(axis, int) for axis in s.shape)]
    seen = list(shapes) if dynamic else []
    profile = {}
    for spec in dynamic:
        found = [tuple(s[spec.name]) for s in seen if spec.name in s]
        if not found:
            raise UsageError(
                f"input '{spec.name}' has dynamic axes, and no shape is known for it",
                "Give samples (--inputs): the engine is built for their shapes.",
            )
        if any(len(shape) != len(spec.shape) for shape in found):
            raise UsageError(f"input '{spec.name}' takes {len(spec.shape)} axes, samples differ")
        columns = list(zip(*found, strict=True))
        profile[spec.name] = ShapeRange(
            tuple(map(min, columns)), found[0], tuple(map(max, columns))
        )
    return profile
