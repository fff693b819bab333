"""Settings of `qdebug calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qdebug.config.candidate import RestName, WeightsName
from qdebug.config.resolve import Positive


@dataclass(frozen=True)
class CalibrateSettings:
    """Everything `qdebug calibrate` can be told. Names are those of the flags.

    Attributes:
        model: the ONNX file.
        calib_data: DATA to calibrate on.
        methods: names of calibrators, tried all.
        calibrators: the user's own, each `file.py:function`.
        holdout: DATA to judge on; None holds out `holdout_share` of `calib_data`.
        metric: end-to-end accuracy on the held-out samples.
        mix: also try the best method of each tensor.
        from_cache: a file with ranges to judge beside the methods.
        weights, rest: as of `compare`.
        weight_method: how weights get their ranges: the largest magnitude, or least squared error.
        samples, batch_size: as of `compare`.
        cache: reuse what an earlier pass over the same model and data gathered.
    """

    model: str
    calib_data: str
    methods: tuple[str, ...] = ("minmax", "percentile", "entropy", "mse", "mean-max")
    calibrators: tuple[str, ...] = ()
    holdout: str | None = None
    holdout_share: float = 0.2
    metric: str | None = None
    mix: bool = False
    from_cache: str | None = None
    weights: WeightsName = "per-channel"
    weight_method: Literal["max", "mse"] = "max"
    rest: RestName = "fp32"
    samples: Positive | None = None
    batch_size: Positive | None = None
    cache: bool = True
