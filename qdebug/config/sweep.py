"""Settings of `qdebug sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Field

from qdebug.calibrators.registry import DEFAULT_METHOD
from qdebug.config.candidate import WeightsName
from qdebug.config.engine import BackendName, TypingName
from qdebug.config.resolve import Positive, Workspace, values_of

ValueT = TypeVar("ValueT", bound=str)
MixName = Literal["int8", "fp16", "fp32", "int8+fp16"]
LevelName = Literal["default", "0", "1", "2", "3", "4", "5"]
SwitchName = Literal["off", "on"]


Axis = Annotated[tuple[ValueT, ...], BeforeValidator(values_of), Field(min_length=1)]
"""Values to try, one after the other."""


@dataclass(frozen=True)
class SweepSettings:
    """Everything `qdebug sweep` can be told. Names are those of the flags.

    What is built is the product of the axes: precisions and plans, weights, and those of the
    builder. A value "default" leaves the choice to the library.

    Attributes:
        model: the ONNX file.
        inputs: DATA to run.
        backend: the library that builds.
        precision: an axis; "int8+fp16" is INT8 with FP16 for layers without an INT8 form. () takes
            int8 where there is no plan either.
        plan: plan files, each another value of the same axis.
        weights: an axis, for what has INT8 layers; () takes the plan's, or per-channel.
        compute_capability: an axis; "8.6+8.9" is one engine for both. () builds for the GPU that
            is present, or for 8.9 where there is none.
        optimization_level: an axis, the builder's level.
        tactic_sources: an axis, each "default", "none" or names of trt.TacticSource joined by "+".
        typing, tf32, sparsity, refit, version_compatible: axes.
        workspace, timing_cache, plugin, provider: as of `compare`, the same for all.
        reference: the FP32 model of one that carries Q/DQ.
        calibration, calib_data, method, samples, calib_samples, batch_size, metric: as of
            `compare`.
        cache: reuse what was calibrated, built and measured earlier.
        fail_on: gate conditions, for every combination.
        save_engines: a folder for every engine, and the log of its build, by its number.
        output: a CSV file to write; None writes none.
        force: replace existing files.
    """

    model: str
    inputs: str
    backend: BackendName = "tensorrt-rtx"
    precision: Axis[MixName] = ()
    plan: tuple[str, ...] = ()
    weights: Axis[WeightsName] = ()
    compute_capability: Axis[str] = ()
    optimization_level: Axis[LevelName] = ("default",)
    tactic_sources: Axis[str] = ("default",)
    typing: Axis[TypingName] = ("strong",)
    tf32: Axis[SwitchName] = ("off",)
    sparsity: Axis[SwitchName] = ("off",)
    refit: Axis[SwitchName] = ("off",)
    version_compatible: Axis[SwitchName] = ("off",)
    workspace: Workspace | None = None
    timing_cache: str | None = None
    plugin: tuple[str, ...] = ()
    provider: str | None = None
    reference: str | None = None
    calibration: str | None = None
    calib_data: str | None = None
    method: str = DEFAULT_METHOD
    samples: Positive | None = None
    calib_samples: Positive | None = None
    batch_size: Positive | None = None
    metric: str | None = None
    cache: bool = True
    fail_on: tuple[str, ...] = ()
    save_engines: str | None = None
    output: str | None = None
    force: bool = False
