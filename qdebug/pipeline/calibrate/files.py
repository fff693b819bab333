"""The files that a calibration is written to."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.measure.calibration import CalibrateResult, MethodResult
from qdebug.plan.quantize import scale_of
from qdebug.plan.rangesfile import scales_to_yaml
from qdebug.plan.trtcache import DEFAULT_KIND, DEFAULT_VERSION, CalibrationCache, cache_text
from qdebug.report.files import check_new, write_text


@dataclass(frozen=True)
class CalibratedFiles:
    """Where to write; checked when it is made, before any work.

    Raises:
        StoreError: a file exists and `force` is False, or cannot be written.
    """

    scales: str | None
    trt_cache: str | None
    force: bool

    def __post_init__(self) -> None:
        for path, flag in ((self.scales, "--output"), (self.trt_cache, "--trt-cache")):
            if path:
                check_new(path, flag, force=self.force)

    def write(self, result: CalibrateResult) -> list[str]:
        """Write the best ranges to the files asked for; return their paths."""
        written = []
        if self.scales:
            text = scales_to_yaml(
                {**result.chosen.ranges, **result.weights},
                method=result.best,
                calibration=f"{result.calibration_samples} samples of {result.source}",
                model_path=result.model.path,
                model_sha256=result.model.sha256,
            )
            write_text(self.scales, text, "--output")
            written.append(self.scales)
        if self.trt_cache:
            write_text(self.trt_cache, cache_text(_cache(result.chosen)), "--trt-cache")
            written.append(self.trt_cache)
        return written


def _cache(method: MethodResult) -> CalibrationCache:
    scales = {name: float(scale_of(entry.amax)) for name, entry in method.ranges.items()}
    return CalibrationCache(DEFAULT_VERSION, DEFAULT_KIND, scales)
