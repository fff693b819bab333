"""Execution providers of ONNX Runtime: FP32 on the provider against the CPU, then a candidate
against the simulation.

    python scripts/bench/bench_providers.py --providers OpenVINO QNN,backend_type=htp CUDA
        [--nets digits_cnn face FOLDER …] [--precisions int8 a16w8]

A provider's options follow its name, separated by commas. FOLDER holds model.onnx, inputs.npz and
calib.npz; `face` and `minilm` are folders of ../shared/assets. One sample at a time, since some
providers take fixed shapes only. What a provider refuses is a row with the reason.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from common import BUNDLED, FOLDERS, data_of, parser_of

import qdebug
from qdebug.errors import QdebugError


def main() -> None:
    """Print a line for each provider, network and precision."""
    parser = parser_of(__doc__, samples=8)
    parser.add_argument("--providers", nargs="+", required=True, metavar="NAME[,KEY=VALUE…]")
    parser.add_argument("--nets", nargs="+", default=[*BUNDLED, *FOLDERS], metavar="NET")
    parser.add_argument("--precisions", nargs="+", default=["int8"], metavar="P")
    parser.add_argument("--fp16-kernels", default="tensorrt", choices=["tensorrt", "exact"])
    args = parser.parse_args()
    for net in args.nets:
        for provider in args.providers:
            for precision in args.precisions:
                row = {"network": Path(net).name, "provider": provider, "precision": precision}
                row |= _compared(net, provider, precision, args)
                print(", ".join(f"{k}: {v}" for k, v in row.items()), flush=True)


def _compared(net: str, provider: str, precision: str, args: argparse.Namespace) -> dict[str, Any]:
    """What a comparison says of the provider, in dB of the worst output."""
    name, *options = provider.split(",")
    try:
        result = qdebug.compare(
            **data_of(net),
            precision=precision,
            samples=args.samples,
            batch_size=1,
            method="minmax",
            effect="none",
            backend="onnxruntime",
            fp16_kernels=args.fp16_kernels,
            provider=name,
            provider_option=options,
        )
    except QdebugError as error:
        return {"refused": error.message, "code": error.code}
    engine = result.engine
    if engine is None or engine.execution is None:
        return {"refused": engine.not_executed_because if engine else " ".join(result.notes)}
    done = engine.execution
    return {
        "library": engine.library,
        "device": engine.built_for,
        "fp32_db": min(done.preflight.fp32_db.values()),
        "quantization_db": done.worst_quantization_db,
        "kernel_db": done.worst_kernel_db,
        "within": round((done.agreement.within or 0) * done.agreement.tensors),
        "tensors": done.agreement.tensors,
        "rank": done.agreement.spearman,
        "nodes": {part.provider: len(part.nodes) for part in engine.providers},
        "latency_ms": done.latency_ms,
    }


if __name__ == "__main__":
    main()
