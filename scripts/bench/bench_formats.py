"""What each precision costs by itself: the outputs' SQNR in the simulation, and the score.

    python scripts/bench/bench_formats.py [--nets digits_cnn face FOLDER …] [--samples N]

One row for each network: the SQNR of the worst output against FP32, in dB, and for the bundled
networks top-1. Ranges are minmax, weights have a scale per output channel, what cannot be quantized
stays in FP32. FOLDER holds model.onnx, inputs.npz and calib.npz; `face` and `minilm` are folders of
../shared/assets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common import DATA, parser_of

import qdebug
from qdebug.formats.registry import FORMAT_OF, WEIGHT_ONLY
from qdebug.types import Precision

ASSETS = DATA.parents[1] / "shared" / "assets"
FOLDERS = {"face": ASSETS / "ultraface_slim", "minilm": ASSETS / "minilm_l6"}
BUNDLED = ("digits_cnn", "digits_encoder")


def main() -> None:
    """Print a table in Markdown."""
    parser = parser_of(__doc__, samples=1000)
    parser.add_argument("--nets", nargs="+", default=[*BUNDLED, *FOLDERS], metavar="NET")
    args = parser.parse_args()
    precisions = [p for p in FORMAT_OF if p is not Precision.FP32 and p not in WEIGHT_ONLY]
    print(f"| network | {' | '.join(p.upper() for p in precisions)} |")
    print(f"|---|{'---|' * len(precisions)}")
    for net in args.nets:
        cells = [_cell(net, str(p), args.samples) for p in precisions]
        print(f"| {net} | {' | '.join(cells)} |", flush=True)


def _cell(net: str, precision: str, samples: int) -> str:
    data: dict[str, Any] = {"metric": "top1"}
    if net in BUNDLED:
        data |= {"model": DATA / f"{net}.onnx", "inputs": DATA / "digits_holdout.npz"}
        data |= {"calib_data": DATA / "digits_calib.npz"}
    else:
        folder = FOLDERS.get(net, Path(net))
        data = {"model": folder / "model.onnx", "inputs": folder / "inputs.npz"}
        data |= {"calib_data": folder / "calib.npz"}
    result = qdebug.compare(**data, samples=samples, precision=precision, effect="none")
    worst = min(o.metrics.sqnr_db for o in result.outputs)
    score = "" if result.metric is None else f"{result.metric.candidate:.3f}, "
    return f"{score}{worst:.1f} dB"


if __name__ == "__main__":
    main()
