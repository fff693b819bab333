"""What `compare` says another quantization gives, and what it gives: on other samples, in a run of
its own.

Each network is quantized badly in one way; of the fix that is named first, the SQNR that it
predicts stands beside that of a comparison with that setting on samples that nothing was chosen
on, and that of the network as it was:

    python scripts/bench/digit_zoo.py ZOO       # once; needs PyTorch
    python scripts/bench/bench_cures.py --zoo ZOO

A minute for each network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from bench_diagnosis import networks
from common import planted_parser

import qdebug
from qdebug.plan.plan import PrecisionPlan, TensorRange
from qdebug.results.compare import CompareResult, Cure
from qdebug.types import Array, Precision


@dataclass(frozen=True)
class Bad:
    """A way to quantize a network badly, by settings of `compare`."""

    name: str
    settings: dict[str, Any]


def ways(model: str, calibration: dict[str, Array]) -> Iterator[Bad]:
    """One scale for each weight, a calibrator that does not suit, ranges of another scale."""
    yield Bad("one scale per weight", {"weights": "per-tensor"})
    for method in ("entropy", "mean-max"):
        yield Bad(method, {"method": method})
    chosen = qdebug.calibrate(model, calib_data=calibration, method="minmax").chosen
    for factor in (8.0, 1 / 8):
        ranges = {t: TensorRange(np.max(r.amax) * factor) for t, r in chosen.ranges.items()}
        plan = PrecisionPlan(Precision.INT8, tensors=ranges)
        yield Bad(f"ranges × {factor:g}", {"plan": plan})


def named(cure: Cure, bad: Bad, seen: dict[str, Array]) -> dict[str, Any]:
    """The settings that a fix stands for, beside those that stay bad."""
    settings = dict(bad.settings)
    for change in cure.name.split(" + "):
        if change == "weights per-channel":
            settings["weights"] = "per-channel"
        elif change.startswith("method "):
            settings["method"] = change.removeprefix("method ")
        else:  # ranges calibrated again, on samples like those that were compared
            settings = {k: v for k, v in settings.items() if k not in ("plan", "method")}
            settings["calib_data"] = seen
    return settings


def sqnr(result: CompareResult) -> float:
    """Of the outputs, each by its worst part, from the mean of their noise."""
    noise = [10 ** (-min(o.part_sqnrs_db) / 10) for o in result.outputs]
    return float(-10 * np.log10(np.mean(noise)))


def main() -> None:
    """Run, and print a row for each case."""
    parser = planted_parser(__doc__)
    arguments = parser.parse_args()
    found = networks(arguments.zoo, arguments.assets)
    print("| network | quantized with | dB | named first | predicted dB | measured dB |")
    print("|---|---|---|---|---|---|")
    for name in arguments.nets or found:
        model, calib, samples = found[name]
        inputs = {k: v for k, v in np.load(samples).items() if k != "labels"}
        data = {k: v for k, v in np.load(calib).items() if k in inputs}
        count = min(arguments.samples, len(next(iter(inputs.values()))) // 2)
        seen, unseen = ({k: v[i : i + count] for k, v in inputs.items()} for i in (0, count))
        for bad in ways(str(model), data):
            how = {"calib_data": data} if "plan" not in bad.settings else {}
            result = qdebug.compare(str(model), inputs=seen, **how, **bad.settings)
            cure = result.cures[0] if result.cures and result.cures[0].helps else None
            cells = [name, bad.name, f"{sqnr(result):.1f}", "none", "–", "–"]
            if cure is not None:
                settings = how | named(cure, bad, seen)
                after = qdebug.compare(str(model), inputs=unseen, effect="none", **settings)
                cells[3:] = [cure.name, f"{cure.sqnr_db:.1f}", f"{sqnr(after):.1f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
