"""How well `compare` finds what each layer costs at the outputs, and what that takes.

The truth is exact leave-one-out on all samples (`--effect exact`). Against it: `--effect fast`, and
the ranking by local error. Per network: whether the first layer is right (close: the true first
leads it by less than a tenth), the part of the true best five's gain that the five listed first
hold, and the rank correlation over the layers that make more than 2 % of the error each. And the
CPU time that the effects add, in passes of the FP32 model over 16 samples (all, if there are less).

With `--quantized`, what ONNX Runtime's quantize_static makes of each network by default is compared
with its FP32 model.

    python scripts/bench/bench_effect.py [--folder DIR]     # networks of digit_zoo.py in DIR too
    python scripts/bench/bench_effect.py --samples 32       # on the first 32 samples of each
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from common import DATA, parser_of
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from scipy.stats import spearmanr

import qdebug
from qdebug.analyse.effect import effects as effect

ASSETS = Path(__file__).resolve().parents[3] / "shared" / "assets"
LEADS, MATTERS = 1.1, 0.02


@dataclass(frozen=True)
class Net:
    """A network with its samples."""

    name: str
    model: Path
    inputs: Path
    calib: Path


def main() -> None:
    """Print a table row for each network."""
    ort.set_default_logger_severity(3)
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, help="what digit_zoo.py wrote")
    parser.add_argument("--nets", nargs="+", metavar="NET", help="only these; default: all")
    parser.add_argument("--samples", type=int, help="default: all")
    parser.add_argument(
        "--as-if-large", action="store_true", help="without the more that tiny networks get"
    )
    parser.add_argument("--precision", choices=["int8", "fp16", "mixed"], default="int8")
    parser.add_argument("--quantized", action="store_true", help="as ONNX Runtime quantizes them")
    arguments = parser.parse_args()
    if arguments.as_if_large:
        effect._LEAST_MACS = 0.0
    print(
        "| network | layers | samples | outputs dB | fast: first, best five, Spearman | "
        "local: first, best five, Spearman | fast, FP32 passes | rest of compare |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for net in networks(arguments.folder):
        if arguments.nets and net.name not in arguments.nets:
            continue
        with TemporaryDirectory() as folder:
            more: dict[str, Any] = {"samples": arguments.samples}
            if arguments.quantized:
                more |= {"reference": str(net.model), "model": str(quantized(net, Path(folder)))}
            elif arguments.precision == "fp16":
                more |= {"model": str(net.model), "precision": "fp16"}
            else:
                more |= {"model": str(net.model), "calib_data": str(net.calib)}
            if arguments.precision == "mixed":
                more["fallback_precision"] = "fp16"
            print(row(net, more), flush=True)


def networks(folder: Path | None) -> list[Net]:
    """The bundled networks, those of the assets and of the folder."""
    holdout, calib = DATA / "digits_holdout.npz", DATA / "digits_calib.npz"
    found = [Net(n, DATA / f"{n}.onnx", holdout, calib) for n in ("digits_cnn", "digits_encoder")]
    for name in ("ultraface_slim", "minilm_l6"):
        path = ASSETS / name
        if path.is_dir():
            found.append(Net(name, path / "model.onnx", path / "inputs.npz", path / "calib.npz"))
    for model in sorted(folder.glob("*.onnx")) if folder else ():
        stem = str(model.with_suffix(""))
        found.append(Net(model.stem, model, Path(f"{stem}_holdout.npz"), Path(f"{stem}_calib.npz")))
    return found


class _Reader(CalibrationDataReader):
    """A few samples, one by one."""

    def __init__(self, net: Net) -> None:
        data, session = np.load(net.calib), ort.InferenceSession(str(net.model))
        self._feeds = iter(
            {i.name: data[i.name][k : k + 1].astype(_TYPES[i.type]) for i in session.get_inputs()}
            for k in range(min(32, len(data[session.get_inputs()[0].name])))
        )

    def get_next(self) -> Any:
        """See CalibrationDataReader."""
        return next(self._feeds, None)


def quantized(net: Net, folder: Path) -> Path:
    """What ONNX Runtime makes of a network by default, as Q/DQ."""
    source, made = folder / "fp32.onnx", folder / "quantized.onnx"
    onnx.save(onnx.load(net.model), source)  # it writes beside the model that it reads
    quantize_static(source, made, _Reader(net))
    return made


def row(net: Net, how: Mapping[str, Any]) -> str:
    """What one network gives, compared like that."""

    def compared(mode: str) -> tuple[qdebug.CompareResult, float]:
        before = cpu_seconds()
        result = qdebug.compare(inputs=str(net.inputs), effect=mode, **how)
        return result, cpu_seconds() - before

    compared("none")  # what is imported, and calibrated, once
    plain, rest = compared("none")
    exact, _ = compared("exact")
    fast, whole = compared("fast")
    assert exact.effect is not None and exact.effect.noise > 0
    truth = {x.name: (x.effect.gain or 0.0) / exact.effect.noise for x in exact.layers if x.effect}
    shares = {x.name: x.output_share or 0.0 for x in fast.layers if x.effect}
    local = {x.name: -(x.local_sqnr_db or math.inf) for x in plain.layers if x.name in truth}
    passes = (whole - rest) / fp32_seconds(net, min(16, plain.samples))
    return (
        f"| {net.name} | {len(truth)} | {plain.samples} | {worst_db(plain):.1f} | "
        f"{against(truth, shares)} | {against(truth, local)} | {passes:.0f} | {rest:.1f} s |"
    )


def against(truth: Mapping[str, float], ranked_by: Mapping[str, float]) -> str:
    """First layer, share of the best five's gain, rank correlation."""
    best = sorted(truth, key=lambda n: -truth[n])
    listed = sorted(truth, key=lambda n: -ranked_by.get(n, -math.inf))
    close = truth[listed[0]] * LEADS >= truth[best[0]]
    first = "right" if listed[0] == best[0] else "close" if close else "wrong"
    five = sum(truth[n] for n in listed[:5]) / sum(truth[n] for n in best[:5])
    matter = [n for n in truth if truth[n] > MATTERS]
    rank = math.nan
    if len(matter) > 2:
        rank = spearmanr([truth[n] for n in matter], [ranked_by.get(n, -1e9) for n in matter])[0]
    return f"{first}, {100 * five:.0f} %, {rank:.2f}"


def worst_db(result: qdebug.CompareResult) -> float:
    """SQNR of the worst output."""
    return min(t.metrics.sqnr_db for t in result.outputs)


def fp32_seconds(net: Net, samples: int) -> float:
    """CPU seconds of the FP32 model over so many samples: the least of five."""
    data = np.load(net.inputs)
    session = ort.InferenceSession(str(net.model), providers=["CPUExecutionProvider"])
    feeds = {
        i.name: data[i.name][:samples].astype(_TYPES[i.type], copy=False)
        for i in session.get_inputs()
    }
    runs = [feeds]
    if isinstance(session.get_inputs()[0].shape[0], int):  # one by one
        runs = [{n: a[k : k + 1] for n, a in feeds.items()} for k in range(samples)]
    least = math.inf
    for _ in range(5):
        before = cpu_seconds()
        for one in runs:
            session.run(None, one)
        least = min(least, cpu_seconds() - before)
    return max(least, 1e-4)


_TYPES = {
    "tensor(float)": np.float32,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


def cpu_seconds() -> float:
    """Of this process, all threads."""
    return time.process_time()


if __name__ == "__main__":
    main()
