"""A result in a sentence, from its JSON: where only that is at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from qdebug.display.summary import sentence
from qdebug.results.compare import CompareResult
from qdebug.results.words import in_decibels, number
from qdebug.wording import counted

Json = Mapping[str, Any]


def headline_of(result: Json) -> str:
    """The sentence.

    Raises:
        ValueError: the JSON is not that of a result.
    """
    kind = str(result["schema"]).removeprefix("qdebug.").partition("/")[0]
    try:
        return _HEADLINES[kind](result)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the JSON of {kind}: {error}") from error


def _name(result: Json) -> str:
    return PurePath(result["model"]["path"]).name


def _compare(result: Json) -> str:
    return sentence_of(CompareResult.from_dict(result))


def sentence_of(found: CompareResult) -> str:
    """What a comparison found: the page says beside it which model it is of, and whether the gate
    held."""
    return sentence(found) or found.headline()


def _calibrate(result: Json) -> str:
    best = result["best"]
    reached = in_decibels(result["methods"][best]["sqnr_db"])
    count = counted(result["methods"], "calibration")
    return f"{_name(result)}: {count}, best {best} ({reached} at the outputs)"


def _bisect(result: Json) -> str:
    pinned, target = counted(result["pinned"], "layer"), result.get("target_text")
    met = f"met with {pinned} pinned" if result["passed"] else f"not met, {pinned} pinned"
    return f"{_name(result)}: target {met} ({target or result['target']})"


def _repair(result: Json) -> str:
    before, after = (in_decibels(result["proof"][k]["sqnr_db"]) for k in ("start", "repaired"))
    pinned = f", {counted(result['pinned'], 'layer')} pinned" if result["pinned"] else ""
    return f"{_name(result)}: SQNR {before} before, {after} repaired{pinned}"


def _sweep(result: Json) -> str:
    rows = result["combinations"]
    built = sum(row["engine"] is not None for row in rows)
    best = "" if result["best"] is None else f", best #{result['best']}"
    return (
        f"{_name(result)} on {result['library']}: {built} of {len(rows)} combinations built{best}"
    )


def _ranges(result: Json) -> str:
    tensors, samples = len(result["tensors"]), result["calibration"]["samples"]
    return f"{_name(result)}: {counted(tensors, 'tensor')} over {counted(samples, 'sample')}"


def _inspect(result: Json) -> str:
    shares = (
        f"{s['products']} {s['precision'] or 'of unknown precision'}" for s in result["products"]
    )
    total = result["values"].get("total_ms")
    parts = ", ".join(
        f"{100 * g['share']:.0f} % in {g['name'].upper() or 'unknown'}"
        for g in result.get("by_precision", ())
        if g["ms"]
    )
    time = f" in {number(total, 3)} ms ({parts})" if total and parts else ""
    worst = [x for x in result.get("lints", ())[:1] if x["ms"] and time]
    most = "".join(f"; {x['title']} take {number(x['ms'], 3)} ms" for x in worst)
    return (
        f"{result['file']} ({result['source']}): {counted(result['layers'], 'layer')}{time}, "
        f"matrix products {', '.join(shares) or 'none'}{most}"
    )


_HEADLINES: Mapping[str, Callable[[Json], str]] = {
    "compare": _compare,
    "calibrate": _calibrate,
    "bisect": _bisect,
    "repair": _repair,
    "sweep": _sweep,
    "ranges": _ranges,
    "inspect": _inspect,
}
"""By the name of the command."""
