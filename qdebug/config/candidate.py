"""What every command that runs a candidate is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qdebug.calibrators.registry import DEFAULT_METHOD
from qdebug.config.engine import EngineSettings
from qdebug.config.resolve import Positive

PrecisionName = Literal["int8", "fp16", "fp32"]
FallbackName = Literal["fp16", "fp32"]
Fp16KernelsName = Literal["tensorrt", "exact"]
WeightsName = Literal["per-channel", "per-tensor"]


@dataclass(frozen=True)
class CandidateSettings(EngineSettings):
    """A model, samples, and the precisions to run it in. Names are those of the flags.

    Attributes:
        model: the ONNX file.
        inputs: DATA to run.
        precision: None takes the plan's, or int8.
        fallback_precision: of layers without an INT8 form; None takes the plan's, or fp32.
        weights: None takes the plan's, or per-channel.
        plan: a plan file; layers and ranges that it names are kept.
        calibration: a file with ranges.
        calib_data: DATA to calibrate on; None calibrates on `inputs`.
        method: the calibrator.
        samples, calib_samples: how many to use; None uses all.
        batch_size: for a dynamic batch axis; None chooses.
        metric: end-to-end accuracy.
        fp16_kernels: how the simulation computes FP16 layers: as TensorRT's kernels do, or exactly.
        cache: reuse what an earlier calibration pass over the same model and data gathered.
    """

    model: str
    inputs: str
    precision: PrecisionName | None = None
    fallback_precision: FallbackName | None = None
    weights: WeightsName | None = None
    plan: str | None = None
    calibration: str | None = None
    calib_data: str | None = None
    method: str = DEFAULT_METHOD
    samples: Positive | None = None
    calib_samples: Positive | None = None
    batch_size: Positive | None = None
    metric: str | None = None
    fp16_kernels: Fp16KernelsName = "tensorrt"
    cache: bool = True
