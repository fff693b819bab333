"""Figures of ranges, drawn with matplotlib (an extra: it is imported when a figure is wanted)."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qdebug.display.names import shorten_names, tail
from qdebug.errors import required
from qdebug.outputfiles import write_bytes
from qdebug.results.ranges import RangesResult, TensorDynamics, even_bins
from qdebug.results.words import number, share
from qdebug.wording import counted, option, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 161
_DPI = 140
_COLOURS = ("#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#111111")
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
_FILL, _LINE = "#4c78a8", "#1f3b5c"
_BANDS = ((50.0, 99.0, 0.65), (99.0, 99.9, 0.4), (99.9, 99.99, 0.2))
"""Percentiles of |x| from and to, and how dark."""
_HARDEST = 3
_MOST_NAMES = 48
_LONGEST_NAME, _LONGEST_TITLE = 40, 80
_RELATIVE_FLOOR = 1e-5
_FAR_BEYOND = 1e6
"""Times the median amax."""
_SETTINGS: Any = {
    "svg.fonttype": "none",  # names stay text: they can be searched, in any script
    "svg.hashsalt": "qdebug",  # equal input, equal file
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}


def require_matplotlib() -> None:
    """Find out before a long run whether figures can be drawn.

    Raises:
        UsageError: matplotlib is not installed.
    """
    required("matplotlib", option("plot"), code="QD-USAGE-MATPLOTLIB")


def tensor_figure(tensor: TensorDynamics) -> Figure:
    """The signed histogram of one tensor, with log counts, and where its calibrators end it."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        figure, axes = _figure(9.0, 4.2)
        bins = even_bins(tensor.histogram, _BINS)
        axes.set_yscale("log")
        if bins.counts.any():  # a log scale warns of nothing to show
            axes.stairs(bins.counts, bins.edges, fill=True, color=_FILL, alpha=0.75)
        axes.set_ylim(0.7, max(10, 2 * int(bins.counts.max())))
        _draw_marks(axes, tensor)
        axes.set_xlabel("value")
        axes.set_ylabel(f"values per bin of {number(bins.edges[1] - bins.edges[0], 2)}, log scale")
        zeros = f"{share(tensor.zero_share)} zeros" if tensor.histogram.count else "none finite"
        facts = (
            f"{tensor.histogram.count} values of {counted(len(tensor.sample_amax), 'sample')}, "
            f"{zeros}, amax/rms {number(tensor.crest_factor, 3)}"
        )
        _titles(axes, tensor.name, facts)
        if tensor.calibrators:
            axes.legend(
                title="amax by", loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False
            )
    return figure


def overview_figure(result: RangesResult) -> Figure:
    """Percentiles and amax of |x| of every tensor, in the order of execution."""
    import matplotlib

    tensors = result.by_position
    with matplotlib.rc_context(_SETTINGS):
        figure, axes = _figure(min(16.0, max(7.5, 4.5 + 0.22 * len(tensors))), 6.4)
        amax = np.array([t.amax if t.amax > 0 else math.nan for t in tensors])
        largest = _ceiling(amax)
        lines = {p: np.array([t.percentile(p) for t in tensors]) for p in (50.0, 99.0, 99.9, 99.99)}
        positive = [v for values in lines.values() for v in values if v > 0]
        floor = max(min([largest, *positive]) / 2, largest * _RELATIVE_FLOOR)
        places = np.arange(len(tensors))
        for low, high, dark in _BANDS:
            axes.bar(
                places,
                np.maximum(np.nan_to_num(lines[high]), floor)
                - np.maximum(np.nan_to_num(lines[low]), floor),
                bottom=np.maximum(np.nan_to_num(lines[low]), floor),
                width=0.8,
                color=_FILL,
                alpha=dark,
                linewidth=0,
                label=f"{low:g}% to {high:g}%",
            )
        inside = np.where(amax <= largest, amax, math.nan)
        axes.plot(places, inside, "_", color=_LINE, markersize=7, markeredgewidth=1.6, label="amax")
        _draw_hardest(axes, [(i, t) for i, t in enumerate(tensors) if t.amax <= largest])
        axes.set_yscale("log")
        axes.set_ylim(floor, largest * 2)
        beyond = amax > largest
        if beyond.any():
            label = f"beyond, up to {number(float(np.nanmax(amax)), 2)}"
            tops = np.full(np.count_nonzero(beyond), largest * 1.6)
            axes.plot(places[beyond], tops, "^", color=_LINE, markersize=5, label=label)
        axes.set_xlim(-0.7, len(tensors) - 0.3)
        _name_places(axes, tensors)
        axes.set_ylabel("|x|, log scale")
        axes.grid(axis="y", alpha=0.3, linewidth=0.6)
        model = printable(Path(result.model.path or result.source.path).name)
        facts = f"percentiles of |x| over {counted(result.calibration.samples, 'sample')}"
        if any(lines[50.0] == 0):
            facts += "; a bar stands on the axis where half of the values are 0"
        _titles(axes, f"Ranges of {model}", facts)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def save_figure(figure: Figure, path: Path, *, force: bool) -> str:
    """Write a figure whole or not at all, as its suffix says; return the path.

    Raises:
        StoreError: it cannot be written, or exists and `force` is False.
    """
    import matplotlib

    drawn, kind = io.BytesIO(), path.suffix[1:]
    metadata = {"Date": None} if kind == "svg" else {}
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # A script that the font lacks: boxes in a PNG, and no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(drawn, format=kind, dpi=_DPI, metadata=metadata)
    write_bytes(str(path), drawn.getvalue(), option("plot"), force=force)
    return str(path)


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Without pyplot, which would keep it and look for a display: PNGs are drawn by Agg."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _titles(axes: Axes, title: str, facts: str) -> None:
    """Names may hold a "$", which is not the start of a formula."""
    axes.set_title(
        f"{tail(printable(title), _LONGEST_TITLE)}\n{facts}",
        loc="left",
        fontsize=10,
        parse_math=False,
    )


def _draw_marks(axes: Axes, tensor: TensorDynamics) -> None:
    signs = [s for s, there in ((-1, tensor.low < 0), (1, tensor.high > 0)) if there]
    styles = zip(cycle(_COLOURS), cycle(_DASHES), strict=False)
    for mark, (colour, dash) in zip(tensor.calibrators or (), styles, strict=False):
        label = f"{mark.method}: {number(mark.amax, 3)}"
        for sign in signs:
            axes.axvline(sign * mark.amax, color=colour, linestyle=dash, linewidth=1.4, label=label)
            label = "_"  # once in the legend


def _ceiling(amax: npt.NDArray[np.float64]) -> float:
    """The largest amax to draw: a few that are far beyond the rest, such as the -3.4e38 of an
    attention mask, would leave no room for all others."""
    if not np.isfinite(amax).any():
        return 1.0
    usual = amax[amax <= _FAR_BEYOND * np.nanmedian(amax)]
    return float(usual.max())


def _draw_hardest(axes: Axes, tensors: Sequence[tuple[int, TensorDynamics]]) -> None:
    rated = [(t.crest_factor, place, t.amax) for place, t in tensors if t.crest_factor > 0]
    worst = sorted(rated, reverse=True)[:_HARDEST]
    if worst:
        axes.plot(
            [place for _, place, _ in worst],
            [amax for _, _, amax in worst],
            "o",
            color=_COLOURS[0],
            markersize=6,
            markerfacecolor="none",
            label="highest amax/rms",
        )


def _name_places(axes: Axes, tensors: list[TensorDynamics]) -> None:
    step = math.ceil(len(tensors) / _MOST_NAMES)
    places = range(0, len(tensors), step)
    names = shorten_names([printable(tensors[i].name) for i in places], _LONGEST_NAME)
    axes.set_xticks(list(places))
    axes.set_xticklabels(names, rotation=90, fontsize=7, parse_math=False)
    every = "" if step == 1 else f", one name in {step}"
    axes.set_xlabel(f"tensor, in the order of execution{every}")
