"""The machine contract of `compare`, schema qdebug.compare/1."""

from __future__ import annotations

from typing import Any

from qdebug.measure.metrics import METRIC_NAMES, Metrics
from qdebug.measure.result import CompareResult, LayerResult, TensorResult
from qdebug.report.engine import engine_to_json
from qdebug.report.numbers import finite

COMPARE_SCHEMA = "qdebug.compare/1"


def compare_to_json(result: CompareResult) -> dict[str, Any]:
    """`result` as JSON types. NaN and Inf become null, and "non_finite" names them."""
    task = result.task
    divergence = result.first_divergence
    return {
        "schema": COMPARE_SCHEMA,
        "model": {"path": result.model_path, "sha256": result.model_sha256},
        "backend": result.backend,
        "precision": result.precision,
        "fp16_kernels": result.fp16_kernels and str(result.fp16_kernels),
        "samples": result.samples,
        "local_samples": result.local_samples,
        "verdict": {
            "passed": result.passed,
            "conditions": [
                finite({"expression": c.expression, "value": c.value, "passed": c.passed})
                for c in result.verdict.conditions
            ],
        },
        "metric": task
        and finite({"name": task.name, "reference": task.reference, "candidate": task.candidate}),
        "outputs": [{"tensor": t.name, **_metrics(t.metrics)} for t in result.outputs],
        "layers": [_layer(layer) for layer in result.layers],
        "tensors": [_tensor(t) for t in result.tensors],
        "first_divergence": divergence
        and finite(
            {
                "tensor": divergence.tensor,
                "layer": divergence.layer,
                "sqnr_db": divergence.sqnr_db,
                "threshold_db": divergence.threshold_db,
            }
        ),
        "skipped": [{"tensor": s.tensor, "reason": s.reason} for s in result.skipped],
        "notes": list(result.notes),
        "timings_s": dict(result.timings_s),
        "engine": result.engine and engine_to_json(result.engine),
    }


def _layer(layer: LayerResult) -> dict[str, Any]:
    values = {
        **_raw_metrics(layer.metrics),
        "local_sqnr_db": layer.local_sqnr_db,
        "input_clipped_fraction": layer.input_clipped_fraction,
    }
    return {
        "name": layer.name,
        "op_type": layer.op_type,
        "precision": str(layer.precision),
        "tensor": layer.tensor,
        "nodes": list(layer.nodes),
        **finite(values),
        "rank": layer.rank,
        "causes": [
            {"label": c.label, "share": c.share, "evidence": c.evidence, "remedy": c.remedy}
            for c in layer.causes
        ],
    }


def _tensor(tensor: TensorResult) -> dict[str, Any]:
    return {"name": tensor.name, **_metrics(tensor.metrics)}


def _metrics(metrics: Metrics) -> dict[str, Any]:
    return finite(_raw_metrics(metrics))


def _raw_metrics(metrics: Metrics) -> dict[str, Any]:
    return {name: getattr(metrics, name) for name in METRIC_NAMES}
