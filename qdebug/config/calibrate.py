"""Settings of `qdebug calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator

from qdebug.calibrators.registry import METHODS
from qdebug.config.candidate import FallbackName, WeightsName
from qdebug.config.resolve import Positive, Share, values_of
from qdebug.errors import UsageError


def _methods(given: object) -> tuple[str, ...]:
    """Names of calibrators, from a list or separated by commas."""
    names = values_of(given)
    if not names:
        raise UsageError(
            "--method names no calibrator", "Give one or more with commas, or leave it out."
        )
    return names


@dataclass(frozen=True)
class CalibrateSettings:
    """Everything `qdebug calibrate` can be told. Names are those of the flags.

    Attributes:
        model: the ONNX file.
        calib_data: DATA to calibrate on.
        method: names of calibrators, tried all.
        calibrator: the user's own, each `file.py:function`.
        holdout: DATA to judge on; None holds out `holdout_share` of `calib_data`.
        metric: end-to-end accuracy on the held-out samples.
        mix: also try the best method of each tensor.
        from_cache: a file with ranges to judge beside the methods.
        weights, fallback_precision: as of `compare`.
        weight_method: how weights get their ranges: the largest magnitude, or least squared error.
        samples, batch_size: as of `compare`.
        cache: reuse what an earlier pass over the same model and data gathered.
        output, trt_cache: where to write the best ranges, as scales and for TensorRT 10.
        force: replace existing files.
    """

    model: str
    calib_data: str
    method: Annotated[tuple[str, ...], BeforeValidator(_methods)] = METHODS
    calibrator: tuple[str, ...] = ()
    holdout: str | None = None
    holdout_share: Share = 0.2
    metric: str | None = None
    mix: bool = False
    from_cache: str | None = None
    weights: WeightsName = "per-channel"
    weight_method: Literal["max", "mse"] = "max"
    fallback_precision: FallbackName = "fp32"
    samples: Positive | None = None
    batch_size: Positive | None = None
    cache: bool = True
    output: str | None = None
    trt_cache: str | None = None
    force: bool = False
