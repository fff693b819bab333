"""The machine contract of `bisect`, schema qdebug.bisect/1."""

from __future__ import annotations

from typing import Any

from qdebug.report.engine import engine_to_json
from qdebug.report.numbers import finite
from qdebug.search.outcome import HELD_OUT, BisectResult, Check, PinnedLayer, Taken
from qdebug.search.problem import Measurement, Pins

BISECT_SCHEMA = "qdebug.bisect/1"


def bisect_to_json(result: BisectResult) -> dict[str, Any]:
    """`result` as JSON types. NaN and Inf become null, and "non_finite" names them."""
    search, cost = result.search, result.cost
    held_out = next((c for c in result.checks if c.on == HELD_OUT), None)
    return {
        "schema": BISECT_SCHEMA,
        "model": {"path": result.model_path, "sha256": result.model_sha256},
        "precision": str(result.precision),
        "strategy": result.strategy,
        "samples": result.samples,
        "target": result.target,
        "passed": result.passed,
        **finite(
            {
                "achieved": search.achieved.value if search.achieved else None,
                "baseline": search.baseline.value if search.baseline else None,
                "ceiling": search.ceiling.value if search.ceiling else None,
                "reference_metric": result.reference_metric,
            }
        ),
        "pinned": [layer.name for layer in result.pinned],
        "layers": [_layer(layer) for layer in result.pinned],
        "pinned_by_plan": {name: str(precision) for name, precision in result.by_plan},
        "candidates": result.candidates,
        "evaluations": search.evaluations,
        "minimal": search.minimal,
        "explanation": result.explanation,
        "cost": {
            "unit": cost.unit,
            "base": cost.base,
            "plan": cost.plan,
            "all_pinned": cost.all_pinned,
            "all_pinned_to": str(cost.all_pinned_to),
            "pinned_share": cost.pinned_share,
        },
        "taken": result.taken and _taken(result.taken),
        "pareto": [
            {
                "point": number,
                **_pins(p.pins),
                "cost": p.cost,
                "knee": p.knee,
                **finite({"noise": p.noise, "value": p.value}),
                "passed": p.passed,
            }
            for number, p in enumerate(search.pareto, start=1)
        ],
        "history": [
            {**_pins(e.pins), "replayed": e.replayed, **_measurement(e.measurement)}
            for e in search.history
        ],
        "verified_on": held_out and _check(held_out),
        "checks": [_check(c) for c in result.checks],
        "execution": result.fast,
        "engine": result.engine and engine_to_json(result.engine),
        "notes": list(result.notes),
    }


def _taken(taken: Taken) -> dict[str, Any]:
    """The point, and the answer that it stands in for."""
    answer = taken.answer
    achieved = answer.achieved
    own = (
        {**_pins(answer.pins), "cost": answer.cost, **_measurement(achieved)} if achieved else None
    )
    return {"point": taken.number, "points": len(answer.pareto), "answer": own}


def _pins(pins: Pins) -> dict[str, Any]:
    """The layers, and what each is pinned to."""
    to = {name: str(precision) for name, precision in sorted(pins)}
    return {"pinned": list(to), "to": to}


def _measurement(measured: Measurement) -> dict[str, Any]:
    values = {
        "value": measured.value,
        "passed": measured.passed,
        "seconds": measured.seconds,
        "noise": measured.noise,
        "verdict": str(measured.verdict),
    }
    return finite(values) | ({"failure": measured.failure} if measured.failure else {})


def _layer(layer: PinnedLayer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "op_type": layer.op_type,
        "from": str(layer.start),
        "to": str(layer.precision),
        "demanded": layer.demanded,
        **finite({"local_sqnr_db": layer.local_sqnr_db, "cost": layer.cost}),
        "without": layer.without and _measurement(layer.without),
        "causes": [
            {"label": c.label, "share": c.share, "evidence": c.evidence, "remedy": c.remedy}
            for c in layer.causes
        ],
    }


def _check(check: Check) -> dict[str, Any]:
    return {
        "on": check.on,
        "samples": check.samples,
        "took_part": check.took_part,
        **_measurement(check.answer),
        "baseline": _measurement(check.baseline),
        **finite({"reference_metric": check.reference_metric}),
    }
