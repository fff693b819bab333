"""What each precision costs by itself: the outputs' SQNR in the simulation, and the score.

    python scripts/bench/bench_formats.py [--nets digits_cnn face FOLDER …] [--samples N]

One row for each network: the SQNR of the worst output against FP32, in dB; of those of SCORES also
the score. Ranges are minmax, weights have a scale per output channel, what cannot be quantized
stays in FP32. FOLDER holds model.onnx, inputs.npz and calib.npz; `face` and `minilm` are folders of
../shared/assets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from common import ASSETS, BUNDLED, FOLDERS, data_of, parser_of

import qdebug
from qdebug.formats.registry import FORMAT_OF, WEIGHT_ONLY
from qdebug.types import Precision

SCORES: dict[str, dict[str, Any]] = {
    **{net: {"metric": "top1"} for net in BUNDLED},
    "face": {"metric": "box-f1-to-reference", "decode": "ssd"},
    "minilm": {"metric": "recall@1"},
}
"""By network. The face detector has no labels: what FP32 finds is the truth. MiniLM's share of
sentences whose nearest neighbour has the same topic."""


def main() -> None:
    """Print a table in Markdown."""
    parser = parser_of(__doc__, samples=1000)
    parser.add_argument("--nets", nargs="+", default=[*BUNDLED, *FOLDERS], metavar="NET")
    args = parser.parse_args()
    precisions = [p for p in FORMAT_OF if p is not Precision.FP32 and p not in WEIGHT_ONLY]
    print(f"| network | {' | '.join(p.upper() for p in precisions)} |")
    print(f"|---|{'---|' * len(precisions)}")
    for net in args.nets:
        rows = [_compared(net, str(p), args.samples) for p in precisions]
        cells = [
            f"{'' if row['score'] is None else format(row['score'], '.3f') + ', '}"
            f"{row['sqnr_db']:.1f} dB"
            for row in rows
        ]
        print(f"| {net} | {' | '.join(cells)} |", flush=True)


def _compared(net: str, precision: str, samples: int) -> dict[str, Any]:
    data = data_of(net)
    if net == "minilm":
        labels = np.load(ASSETS / "minilm_l6" / "labels.npz")
        data["inputs"] = {**np.load(data["inputs"]), **labels}
    result = qdebug.compare(
        **data,
        **SCORES.get(net, {}),
        samples=samples,
        precision=precision,
        method="minmax",
        effect="none",
    )
    score = result.metric
    return {
        "network": net,
        "precision": precision,
        "samples": result.samples,
        "sqnr_db": min(o.metrics.sqnr_db for o in result.outputs),
        "metric": score and score.name,
        "score": score and score.candidate,
        "fp32_score": score and score.reference,
    }


if __name__ == "__main__":
    main()
