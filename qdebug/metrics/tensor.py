"""The metrics of tensors: how far one is from its reference.

A metric of tensors is one field of `Metrics`: from that entry follow its place in the JSON, its
column in the table of layers, the gate conditions that may name it, and its row in the reference
pages. Nothing here imports numpy when it is imported: the command line's `--help` reads it too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from qdebug.metrics.sums import ErrorSums

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Metric:
    """What is known of a metric of tensors besides its values.

    Attributes:
        name: in the JSON and in gate conditions; a unit is its suffix.
        meaning: in one line.
        formula: over ref, the reference's values, and cand, the candidate's.
        unit: "dB", "share" (of 1), "ratio", "count", "index", or "" for the tensor's own unit.
        better: "higher" or "lower" where it measures a quality; else "".
        column: its head in the table of layers; "" leaves it out.
        output_column: likewise in the tables of `sweep` and `calibrate`, which show the worst
            output's; only for a metric that has `better`.
        of: its value from a tensor's totals; None where a layer has it besides its tensor's.
    """

    name: str
    meaning: str
    formula: str
    unit: str = ""
    better: str = ""
    column: str = ""
    output_column: str = ""
    of: Callable[[ErrorSums], object] | None = None

    @property
    def can_be_gated(self) -> bool:
        """Whether a gate condition may name it: an index has no order."""
        return self.unit != "index"

    def worst(self, outputs: Mapping[str, Metrics]) -> float | None:
        """Its value for the worst of `outputs`; NaN where one is broken, None where there is
        none."""
        values = [v for m in outputs.values() if (v := getattr(m, self.name)) is not None]
        if any(map(math.isnan, values)):
            return math.nan
        return (max if self.better == "lower" else min)(values, default=None)


def sqnr_db(signal_sq: float, error_sq: float) -> float:
    """Signal-to-quantization-noise ratio 10·log10(Σref² / Σerr²) in dB from two energies; +inf
    without any noise, and -inf for noise without a signal."""
    if error_sq == 0:
        return math.inf
    if signal_sq == 0:
        return -math.inf
    # Two logarithms: the ratio of two float64 energies may overflow, their logarithms cannot.
    return 10 * (math.log10(signal_sq) - math.log10(error_sq))


def noise_db(noise: float) -> float:
    """The SQNR of noise Σerr²/Σref² in dB; NaN of infinite noise, which stands for NaN or Inf."""
    return sqnr_db(1.0, noise) if math.isfinite(noise) else math.nan


def sqnr_of(sums: ErrorSums) -> float:
    """See Metrics.sqnr_db."""
    return math.nan if sums.mismatched_non_finite else sqnr_db(sums.ref_sq, sums.sq_err)


def _metric(
    of: Callable[[ErrorSums], ValueT],
    meaning: str,
    formula: str,
    *,
    unit: str = "",
    better: str = "",
    column: str = "",
    output_column: str = "",
) -> ValueT:
    """A field of `Metrics`, with all that there is to say about it (see Metric)."""
    about = Metric("", meaning, formula, unit, better, column, output_column, of)
    told = {"metric": about, "description": f"{meaning}: {formula}"}
    return cast(ValueT, field(metadata=told))


def _unless_broken(of: Callable[[ErrorSums], float]) -> Callable[[ErrorSums], float]:
    """`of`, but NaN where the candidate holds NaN or Inf and the reference does not."""
    return lambda sums: math.nan if sums.mismatched_non_finite else of(sums)


def _cosine(sums: ErrorSums) -> float:
    if sums.sq_err == 0:
        return 1.0
    norms = math.sqrt(sums.ref_sq) * math.sqrt(sums.cand_sq)
    return max(-1.0, min(1.0, sums.dot / norms)) if norms else 0.0


def _worst_sample_db(sums: ErrorSums) -> float | None:
    if sums.worst_sample is None:
        return None
    if math.isinf(sums.worst_ratio):
        return math.nan if sums.mismatched_non_finite else -math.inf
    return sqnr_db(1.0, sums.worst_ratio)


def _worst_channel(sums: ErrorSums) -> int | None:
    worst = sums.worst_channel()
    return None if worst is None else worst[0]


def _worst_channel_db(sums: ErrorSums) -> float | None:
    worst = sums.worst_channel()
    return None if worst is None else sqnr_db(1.0, worst[1])


def worst_part_sqnr(sums: ErrorSums) -> float:
    """The lowest SQNR of a part of an output in dB, of all of it where it has no parts; NaN where
    the output is broken."""
    return min(part_sqnrs(sums), default=sqnr_of(sums))


def part_sqnrs(sums: ErrorSums) -> list[float]:
    """The SQNR of each part of an output in dB, NaN where the output is broken; none where it has
    no parts."""
    broken = bool(sums.mismatched_non_finite)
    return [math.nan if broken else sqnr_db(*energies) for energies in sums.part_energies()]


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """How far a candidate tensor is from its reference, over all samples.

    Totals are float64. A metric of the error is NaN when the candidate holds NaN or Inf where the
    reference does not. None stands for what was not measured: `clipped_fraction` where no Q/DQ pair
    reads the tensor, a worst sample without samples, a worst channel without channels.
    """

    max_abs_err: float = _metric(
        _unless_broken(lambda sums: sums.max_abs_err),
        "largest error",
        "max abs(ref − cand)",
        better="lower",
    )
    mean_abs_err: float = _metric(
        _unless_broken(lambda sums: sums.abs_err / max(sums.count, 1)),
        "mean error",
        "Σ abs(ref − cand) / n",
        better="lower",
    )
    rmse: float = _metric(
        _unless_broken(lambda sums: math.sqrt(sums.sq_err / max(sums.count, 1))),
        "root mean square error",
        "√(Σ (ref − cand)² / n)",
        better="lower",
    )
    sqnr_db: float = _metric(
        sqnr_of,
        "signal-to-quantization-noise ratio; infinite where nothing differs",
        "10·log₁₀(Σ ref² / Σ (ref − cand)²)",
        unit="dB",
        better="higher",
        column="cum. dB",
        output_column="SQNR dB",
    )
    cosine: float = _metric(
        _unless_broken(_cosine),
        "cosine similarity; 1 where nothing differs",
        "Σ ref·cand / √(Σ ref² · Σ cand²)",
        unit="ratio",
        better="higher",
        output_column="cosine",
    )
    ref_amax: float = _metric(
        lambda sums: sums.ref_amax,
        "largest finite magnitude of the reference",
        "max abs(ref)",
        column="range",
    )
    cand_amax: float = _metric(
        lambda sums: sums.cand_amax,
        "largest finite magnitude of the candidate",
        "max abs(cand)",
    )
    clipped_fraction: float | None = _metric(
        lambda sums: None if sums.clipped is None else sums.clipped / max(sums.count, 1),
        "values beyond the range of the Q/DQ pair that reads the tensor",
        "#(abs(cand) > amax) / n",
        unit="share",
        better="lower",
    )
    nan_count: int = _metric(
        lambda sums: sums.nan_count,
        "NaN values in the candidate",
        "#(cand = NaN)",
        unit="count",
        better="lower",
    )
    inf_count: int = _metric(
        lambda sums: sums.inf_count,
        "infinite values in the candidate",
        "#(cand = ±Inf)",
        unit="count",
        better="lower",
    )
    worst_sample: int | None = _metric(
        lambda sums: sums.worst_sample,
        "the sample with the lowest SQNR, counted from 0",
        "argmin over samples of sqnr_db",
        unit="index",
    )
    worst_sample_sqnr_db: float | None = _metric(
        _worst_sample_db,
        "the SQNR of that sample",
        "min over samples of sqnr_db",
        unit="dB",
        better="higher",
    )
    worst_channel: int | None = _metric(
        _worst_channel,
        "the channel with the lowest SQNR among those that carry a signal, counted from 0",
        "argmin over channels of sqnr_db",
        unit="index",
    )
    worst_channel_sqnr_db: float | None = _metric(
        _worst_channel_db,
        "the SQNR of that channel",
        "min over channels of sqnr_db",
        unit="dB",
        better="higher",
    )

    worst_part_sqnr_db: float = _metric(
        worst_part_sqnr,
        "the lowest SQNR among the parts of an output, such as boxes and scores; where it has "
        "none, its own",
        "min over parts of sqnr_db",
        unit="dB",
        better="higher",
    )

    @property
    def is_finite(self) -> bool:
        """Whether the candidate is finite wherever the reference is."""
        return not math.isnan(self.sqnr_db)


METRICS: tuple[Metric, ...] = tuple(
    replace(f.metadata["metric"], name=f.name) for f in fields(Metrics)
)
"""The metrics that every compared tensor has: the model's outputs, and the layers'."""

METRIC = {metric.name: metric for metric in METRICS}
"""The same by name."""
OUTPUT_METRICS = tuple(metric for metric in METRICS if metric.output_column)
"""Those that `sweep` and `calibrate` show of the worst output."""


LAYER_METRICS = (
    Metric(
        "gain_db",
        "by how much the outputs' SQNR rises when only this layer runs in FP32; negative where it "
        "falls",
        "−10 · log10(1 − output_share)",
        unit="dB",
        better="lower",
        column="gain dB",
    ),
    Metric(
        "output_share",
        "the part of the outputs' noise power that goes when only this layer runs in FP32: these "
        "parts need not add up to 1",
        "gain / noise of the outputs; see Effect",
        unit="share",
        better="lower",
    ),
    Metric(
        "alone_sqnr_db",
        "SQNR of the outputs when only this layer runs as planned",
        "−10 · log10 of Effect.alone",
        unit="dB",
        better="higher",
        column="alone dB",
    ),
    Metric(
        "local_sqnr_db",
        "SQNR of a layer's output when it reads the reference's activations: its own error",
        "sqnr_db of the isolated layer",
        unit="dB",
        better="higher",
        column="local dB",
    ),
    *METRICS,
    Metric(
        "input_clipped_fraction",
        "the largest clipped_fraction among the tensors that an INT8 layer reads",
        "max over inputs of clipped_fraction",
        unit="share",
        better="lower",
        column="clip",
    ),
)
"""Those of a layer: its output's, and some of its own. In the order of the table's columns."""

_OF_PARTS = "worst_part_sqnr_db"
"""Only outputs have parts."""
EFFECT_METRICS = ("gain_db", "output_share", "alone_sqnr_db")
"""Those of LAYER_METRICS that say what a layer costs at the model's outputs."""

GATED: Mapping[str, tuple[str, ...]] = {
    "output": tuple(m.name for m in METRICS if m.can_be_gated),
    "part": ("sqnr_db",),
    "layer": tuple(m.name for m in LAYER_METRICS if m.can_be_gated and m.name != _OF_PARTS),
    "tensor": tuple(m.name for m in METRICS if m.can_be_gated and m.name != _OF_PARTS),
    "stage": ("framework.sqnr_db", "quantization.sqnr_db", "kernels.sqnr_db"),
    "metric": (),
}
"""What a gate condition may name, by scope: a "part" is one of an output, or all of it where it has
none; a "stage" is a step from the framework to the engine; "metric", the end-to-end one, has no
figures to choose from."""


def metrics_of(sums: ErrorSums) -> Metrics:
    """The metrics that follow from a tensor's totals."""
    values = {metric.name: metric.of(sums) for metric in METRICS if metric.of}
    return Metrics(**values)  # type: ignore[arg-type]


def gate_usage() -> str:
    """The metrics that gate conditions may name, as a help text lists them."""
    own = ", ".join(name for name in GATED["layer"] if name not in GATED["output"])
    stages = ", ".join(f"stage.{name}" for name in GATED["stage"])
    return f"{', '.join(GATED['output'])}; of layers also {own}; {stages}"
