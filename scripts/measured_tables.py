"""Tables of figures that benchmarks measured and kept as JSON in docs/validation/figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "validation" / "figures"
NETWORKS = {
    "digits_cnn": "bundled CNN",
    "digits_encoder": "bundled encoder",
    "face": "face detector",
    "ultraface_slim": "face detector",
    "minilm": "MiniLM-L6",
    "minilm_l6": "MiniLM-L6",
    "mobile": "MobileNet-like",
    "yolo": "YOLOv8n",
    "resnet": "ResNet-50-like",
    "digits_resnet": "ResNet of digits",
    "digits_mobilenet_v2_wide": "MobileNetV2 of digits",
    "digits_yolox": "YOLOX of digits",
    "digits_vit": "ViT of digits",
    "digits_unet": "U-Net of digits",
}
"""What the documentation calls them."""
PROVIDERS = {
    'OpenVINO,load_config={"CPU":{"INFERENCE_PRECISION_HINT":"f32"}}': "OpenVINO, FP32",
    "QNN,backend_type=htp": "QNN",
    "CUDA,use_tf32=0": "CUDA, no TF32",
    "nv_tensorrt_rtx": "TensorRT-RTX",
}
"""By the argument of the benchmark; what is not here stands for itself."""
SCORES = {"top1": "top-1", "box-f1-to-reference": "F1", "recall@1": "recall@1"}
PRECISIONS = ("int8", "fp8", "a16w8", "bf16", "fp16")

Row = Mapping[str, Any]
Lines = Iterator[Sequence[str]]


def format_costs() -> tuple[Sequence[str], Lines]:
    """Score, SQNR and engine of each network in each format."""
    engines = {(NETWORKS[r["network"]], r["precision"]): r for r in _read("gpu_formats")}

    def cells() -> Lines:
        for name, rows in _by_network("formats").items():
            first = next(iter(rows.values()))
            score = f"{name}, {SCORES[first['metric']]} ({first['fp32_score']:.3f} in FP32)"
            yield score, *(_cost(rows[p], engines.get((name, p))) for p in PRECISIONS)

    return ("", *(p.upper() for p in PRECISIONS)), cells()


def format_costs_simulated() -> tuple[Sequence[str], Lines]:
    """The same without engines."""

    def cells() -> Lines:
        for name, rows in _by_network("formats").items():
            yield name, *(_cost(rows[p], None) for p in PRECISIONS)

    return ("network", *(p.upper() for p in PRECISIONS)), cells()


def gpu_formats() -> tuple[Sequence[str], Lines]:
    """Every engine that ran on the GPU with quantized or rounded activations."""
    heads = ("network", "", "simulated", "engine", "between", "tensors within 1 dB", "latency")

    def cells() -> Lines:
        before = ""
        for row in _read("gpu_formats"):
            if row["precision"] not in PRECISIONS:
                continue
            name = NETWORKS[row["network"]]
            within = "–" if row["within"] is None else f"{row['within']} of {row['tensors']}"
            figures = (_number(row[k]) for k in ("simulated_db", "engine_db", "between_db"))
            yield (
                *("" if name == before else name, row["precision"].upper(), *figures),
                *(within, f"{row['latency_ms']:.2f} ms"),
            )
            before = name

    return heads, cells()


def providers() -> tuple[Sequence[str], Lines]:
    """What ran on execution providers of packages."""
    heads = (
        *("network", "provider", "", "FP32, provider against CPU", "quantization", "kernels"),
        *("within 1 dB", "nodes left to the CPU"),
    )

    def cells() -> Lines:
        for row in _read("providers"):
            if "refused" in row:
                continue
            name = PROVIDERS.get(row["provider"], row["provider"])
            left = row["nodes"].get("CPUExecutionProvider", 0)
            yield (
                *(NETWORKS[row["network"]], name, row["precision"].upper()),
                *(_number(row[k]) for k in ("fp32_db", "quantization_db", "kernel_db")),
                f"{row['within']} of {row['tensors']}",
                f"{left} of {sum(row['nodes'].values())}",
            )

    return heads, cells()


def _cost(row: Row, engine: Row | None) -> str:
    """Such as "0.988, 25.8 dB (26.3 → 26.3 dB, 0.64 ms)"."""
    text = f"{row['score']:.3f}, {row['sqnr_db']:.1f} dB"
    if engine is None:
        return text
    ran = f"{_number(engine['simulated_db'])} → {_number(engine['engine_db'])}"
    return f"{text} ({ran}, {engine['latency_ms']:.2f} ms)"


def _number(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.1f}"


def _by_network(name: str) -> dict[str, dict[str, Row]]:
    found: dict[str, dict[str, Row]] = {}
    for row in _read(name):
        found.setdefault(NETWORKS[row["network"]], {})[row["precision"]] = row
    return found


def _read(name: str) -> list[Row]:
    rows: list[Row] = json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))
    return rows
