"""Figures by node for Google's Model Explorer: one file of custom node data for each figure.

The form is `GraphNodeData` of its module `model_explorer.node_data_builder`: `results` by the name
of a node or of a tensor that it computes, each with a `value`, and a `gradient` from the smallest
value to the largest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from qdebug.display.exports import ExportedRun
from qdebug.formats.registry import BITS
from qdebug.results.compare import LayerResult

_WORST, _BEST = "#b2182b", "#f7f7f7"
_LESS_IS_WORSE = ((0.0, _WORST), (1.0, _BEST))
_MORE_IS_WORSE = ((0.0, _BEST), (1.0, _WORST))
_BY_BITS = {4: "#d7191c", 8: "#fdae61", 16: "#abd9e9", 32: "#f7f7f7"}


def render(run: ExportedRun) -> dict[str, bytes]:
    """A file for each figure that some layer has."""
    figures: dict[str, tuple[Callable[[LayerResult], float | None], Any]] = {
        "output_share": (lambda layer: layer.output_share, _MORE_IS_WORSE),
        "local_sqnr_db": (lambda layer: layer.local_sqnr_db, _LESS_IS_WORSE),
        "sqnr_db": (lambda layer: layer.metrics.sqnr_db, _LESS_IS_WORSE),
    }
    files = {}
    for name, (value, gradient) in figures.items():
        results = _results(run, _finite_of(value))
        if results:
            stops = [{"stop": stop, "bgColor": colour} for stop, colour in gradient]
            files[name] = {"results": results, "gradient": stops}
    files["precision"] = {
        "results": _results(
            run,
            lambda layer: {
                "value": str(layer.precision),
                "bgColor": _BY_BITS[BITS[layer.precision]],
            },
        )
    }
    return {
        f".{name}.json": json.dumps(data, ensure_ascii=False, indent=1).encode()
        for name, data in files.items()
    }


def _finite(value: float | None) -> dict[str, Any] | None:
    return {"value": value} if value is not None and math.isfinite(value) else None


def _finite_of(
    of: Callable[[LayerResult], float | None],
) -> Callable[[LayerResult], Mapping[str, Any] | None]:
    return lambda layer: _finite(of(layer))


def _results(
    run: ExportedRun, value: Callable[[LayerResult], Mapping[str, Any] | None]
) -> dict[str, Any]:
    """The value of a layer for each of its nodes, and for the tensors that these compute: a node
    that qdebug made of several has another name in the user's model, but the same tensors."""
    found: dict[str, Any] = {}
    for layer in run.result.layers:
        shown = value(layer)
        if shown is None:
            continue
        for node in layer.nodes:
            found |= dict.fromkeys([node, *run.tensors.get(node, ())], shown)
    return found
