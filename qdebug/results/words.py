"""How numbers and names are worded, wherever they are shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from rich.cells import cell_len

from qdebug.metrics.uncertainty import Interval
from qdebug.results.conditions import Condition
from qdebug.types import Fp16Kernels
from qdebug.wording import counted, printable

_MOST_DECIMALS = 9
"""More digits tell people nothing."""
_NO_SIGNAL = "no signal"
FP16_KERNELS = {
    Fp16Kernels.TENSORRT: "simulated as TensorRT's kernels compute them: sums in FP16",
    Fp16Kernels.EXACT: "simulated with exact sums; TensorRT's kernels sum in FP16",
}
"""How the simulation computed layers in FP16."""


def number(value: float | None, digits: int = 4) -> str:
    """A number with `digits` significant digits; words for what is not finite, "–" for None."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{value:.{digits}g}"


def interval(found: Interval | None) -> str:
    """Of a score, as it stands behind it: " (95% 0.6453 to 0.7652)"; "" where it is not known."""
    return f" (95% {score(found[0])} to {score(found[1])})" if found else ""


def score(value: float | None, decimals: int = 4) -> str:
    """The value of an end-to-end metric: with `decimals`, and of a tiny one with two digits."""
    if value is None or not math.isfinite(value):
        return number(value)
    if 0 < abs(value) < 1e-3:
        decimals = max(decimals, 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def apart(difference: float, samples: int, *, is_share: bool) -> str:
    """The size of a difference of a metric; of one that is a share of the samples also how many
    samples that are."""
    size = score(abs(difference))
    return f"{size} ({counted(round(abs(difference) * samples), 'sample')})" if is_share else size


def telling_decimals(values: Iterable[float | None], condition: Condition, least: int) -> int:
    """With how many decimals, `least` or more, each value is seen to meet a condition or to miss
    it: a rounded value must not stand on the other side of the bound."""
    finite = [v for v in values if v is not None and math.isfinite(v)]
    for decimals in range(least, _MOST_DECIMALS):
        rounded = replace(condition, bound=round(condition.bound, decimals))
        if all(rounded.holds_for(round(v, decimals)) == condition.holds_for(v) for v in finite):
            return decimals
    return _MOST_DECIMALS


def decibel(value: float | None) -> str:
    """An SQNR in dB with one decimal; "exact" where there is no error at all, "no signal" where
    there is an error of nothing but zeros."""
    if value == math.inf:
        return "exact"
    if value == -math.inf:
        return _NO_SIGNAL
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{round(value, 1) + 0.0:.1f}"  # no -0.0


def in_decibels(value: float | None) -> str:
    """As `decibel`, with its unit where it is a number."""
    text = decibel(value)
    return text if text in ("exact", "–", _NO_SIGNAL) else f"{text} dB"


def share(value: float | None) -> str:
    """A share as a percentage that shows small ones too; a gain may be negative."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if value < 0:
        return f"−{share(-value)}"
    if value < 1e-4:
        return "<0.01%"
    return f"{100 * value:.2g}%" if value < 0.995 else f"{100 * value:.0f}%"


def percent(value: float) -> str:
    """A share of an engine's work; "<1 %" and ">99 %" for what is nearly none and nearly all."""
    if 0.995 <= value < 1:
        return ">99 %"
    return f"{100 * value:.0f} %" if value >= 0.01 or value == 0 else "<1 %"


def magnitude(value: float) -> str:
    """A count that may be large, such as "1.2 M"."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f}"


def size(value: float) -> str:
    """A number of bytes, such as "1.2 MB"."""
    return f"{magnitude(value)}{'' if value >= 1e3 else ' '}B"


_WRITERS: Mapping[str, Callable[[float], str]] = {
    "ratio": "{:.5f}".format,
    "metric": "{:.4f}".format,
    "change": "{:+.4f}".format,
    "gain": "{:+.1f}".format,
    "tenths": "{:.1f}".format,
    "thousandths": "{:.3f}".format,
    "megabytes": lambda value: f"{value / 1e6:.1f}",
    "whole": "{:.0f}".format,
    "whole share": "{:.0%}".format,
    "percent": percent,
    "work": lambda macs: (
        f"{macs / 1e9:.3g} GMACs a sample" if macs >= 1e8 else f"{macs / 1e6:.3g} MMACs a sample"
    ),
    "count": magnitude,
    "bytes": size,
}
"""How a finite number of each unit is written, besides dB and shares, whose infinities have words
of their own: `change` of a metric, `gain` in dB."""


def figure(value: float | None, unit: str = "", digits: int = 4) -> str:
    """A value of this unit (see `measure.metrics.Metric` and `_WRITERS`); one without a unit has
    `digits` significant digits. "–" for None."""
    if unit in ("dB", "share"):
        return decibel(value) if unit == "dB" else share(value)
    if unit in _WRITERS and value is not None and math.isfinite(value):
        return _WRITERS[unit](value)
    return number(value, digits)


def first_names(names: Sequence[str], most: int | None) -> str:
    """The first `most` names, and how many more there are; None lists them all."""
    shown = [printable(n) for n in names[:most]]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more


def widest(texts: Sequence[str], least: int) -> int:
    """The width in cells of the widest text, at least `least`."""
    return max([least, *(cell_len(t) for t in texts)])
