"""What other tools quantized: what qdebug says of it against plain float64 arithmetic.

The models of NNCF, AIMET, Model Optimizer and PyTorch are those of tests/producers
(scripts/make_quantized_models.py makes them); ONNX Runtime quantizes the bundled CNN here. For
each: top-1 by ONNX Runtime itself and by `qdebug compare`, how many tensors are matched and
proven, the largest difference of a tensor's SQNR from that of a float64 evaluation of both graphs,
and how many causes that evaluation contradicts. Takes two minutes.

    python scripts/bench/bench_producers.py [--samples 64] [--only nncf dynamic]
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from common import parser_of

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from producers import ONNX_RUNTIME, TOOLS, judge, quantized_by_onnx_runtime  # noqa: E402

import qdebug  # noqa: E402

JUDGED = 16


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__, samples=64)
    parser.add_argument("--only", nargs="+", default=[*TOOLS, *ONNX_RUNTIME], help="these")
    arguments = parser.parse_args()
    data = np.load(ROOT / "calib_data" / "digits_holdout.npz")
    images, labels = data["input"][: arguments.samples], data["labels"][: arguments.samples]
    print(
        "| Made by | Top-1 FP32 | Top-1 INT8 | By ONNX Runtime itself | Matched | Proven "
        "| Largest difference | Causes judged | False |\n|---|---|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, reference, quantized in _models(arguments.only, Path(folder)):
            print(f"| {name} | {_row(reference, quantized, images, labels)} |", flush=True)


def _models(only: Collection[str], folder: Path) -> Iterator[tuple[str, Path, Path]]:
    made = ROOT / "tests" / "producers"
    manifest = json.loads((made / "manifest.json").read_text(encoding="utf-8"))
    for tool in filter(only.__contains__, TOOLS):
        entry = manifest[tool]
        how = {"torch_pt2e": " (PT2E)", "torch_fake_quantize": " (fake quantization)"}.get(tool, "")
        label = f"{entry['package']} {entry['version']}{how}"
        yield label, made / "fp32.onnx", made / f"{tool}.onnx"
    version = importlib.metadata.version("onnxruntime")
    cnn = ROOT / "calib_data" / "digits_cnn.onnx"
    for way in filter(only.__contains__, ONNX_RUNTIME):
        yield f"onnxruntime {version}, {way}", cnn, quantized_by_onnx_runtime(way, cnn, folder)


def _row(reference: Path, quantized: Path, images: Any, labels: Any) -> str:
    whole = qdebug.compare(
        str(quantized),
        inputs={"input": images, "labels": labels},
        reference=str(reference),
        metric="top1",
    )
    few = images[:JUDGED]
    how = {"inputs": {"input": few}, "reference": str(reference)}
    found = qdebug.compare(str(quantized), **how, effect="none")  # causes of the layers' own errors
    verdict = judge(onnx.load(reference), onnx.load(quantized), few, found.to_dict())
    assert whole.metric is not None
    cells = [
        f"{whole.metric.reference:.3f}",
        f"{whole.metric.candidate:.3f}",
        _top1(quantized, images, labels),
        f"{verdict.tensors} of {verdict.of}",
        str(verdict.proven),
        f"{verdict.worst_db:.5f} dB",
        str(verdict.judged) if verdict.judged else "–",
        str(len(verdict.wrong)) if verdict.judged else "–",
    ]
    return " | ".join(cells)


def _top1(path: Path, images: Any, labels: Any) -> str:
    """By ONNX Runtime with its default settings: integer kernels, fused."""
    try:
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception:  # its fusion refuses scales of shape [1]
        return "refused"
    name, batch = session.get_inputs()[0].name, session.get_inputs()[0].shape[0]
    step = 1 if batch == 1 else len(images)
    parts = [
        session.run(None, {name: images[i : i + step]})[0] for i in range(0, len(images), step)
    ]
    return f"{np.mean(np.concatenate(parts).argmax(1) == labels):.3f}"


if __name__ == "__main__":
    main()
