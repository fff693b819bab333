"""How well a bounded amount of work finds the layers that cost most, on networks of any size.

Every layer of each network is measured on all of 60 samples, alone and left out, once. What a
larger network could afford is then drawn from these figures as `compare --effect fast` does, from
20 different starts each: so many layers alone on so many samples, so many leaders left out on so
many others. Work is in passes of one sample through the FP32 model, without what sessions take.

    python scripts/bench/bench_effect_draws.py --folder zoo     # networks of digit_zoo.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
from bench_effect import LEADS, networks, quantized
from common import parser_of

import qdebug
from qdebug.analyse.effect import effects as effect
from qdebug.analyse.effect.runs import ALONE, LEFT_OUT, LEFT_OUT_ON_KERNELS, Energies
from qdebug.metrics.effect import (
    EffectMode,
    EffectRuns,
    chances_of,
    drawn,
    effects_of,
    rank_key,
)
from qdebug.types import Array

SAMPLES, STARTS = 60, range(0, 60, 3)


@dataclass(frozen=True)
class Way:
    """How the work is divided: see the constants of effects.py; `passes` is that of 16 samples."""

    passes: int
    samples: int
    alone: int
    on_kernels: bool

    def amounts(self, layers: int) -> Any:
        """How many layers on how many samples, for a network that is neither tiny nor huge."""
        name = "_PASSES_ON_KERNELS" if self.on_kernels else "_PASSES"
        setattr(effect, name, self.passes / 16)
        effect._SAMPLES, effect._ALONE_SAMPLES = self.samples, self.alone
        subset, any_pair = SimpleNamespace(count=SAMPLES), SimpleNamespace(layers=())
        how = {"on_kernels": self.on_kernels}
        return effect._amounts(any_pair, subset, layers, EffectMode.FAST, **how)  # type: ignore


def main() -> None:
    """Print a table row for each way."""
    ort.set_default_logger_severity(3)
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, help="what digit_zoo.py wrote")
    parser.add_argument("--nets", nargs="+", metavar="NET", help="only these; default: all")
    arguments = parser.parse_args()
    nets = measured(arguments.folder, arguments.nets)
    effect.macs_per_sample = lambda *_: 1e11  # type: ignore[assignment]
    effect._MOST_MACS, effect.CHEAP_MACS = 1e30, 0.0
    effect._PASSES_OF_COMPARE = effect._OF_COMPARE_ON_KERNELS = 0
    effect._RATED_SAMPLES = 0  # as many alone as each way says
    print(
        f"{len(nets)} networks of {min(map(layers_of, nets))} to {max(map(layers_of, nets))} layers"
    )
    print("| kernels | passes | leaders on | alone on | work | first | close | best five |")
    print("|---|---|---|---|---|---|---|---|")
    for on_kernels, all_passes in ((False, (960, 640)), (True, (320, 208, 160))):
        for passes in all_passes:
            for samples, alone in ((16, 8), (16, 4), (32, 8), (32, 4)):
                print(row(Way(passes, samples, alone, on_kernels), nets), flush=True)


def layers_of(runs: EffectRuns) -> int:
    """How many have an effect."""
    return len(runs.pinned)


def measured(folder: Path | None, names: Sequence[str] | None) -> list[EffectRuns]:
    """All runs of each network that has so many samples, as planned and as ONNX Runtime quantizes
    it."""
    found: list[EffectRuns] = []
    run_all = effect._run_all

    def kept(*given: Any) -> Any:
        done = run_all(*given)
        found.append(done.runs(Energies.noise))
        return done

    effect._run_all = kept
    for net in networks(folder):
        if net.name not in (names or [net.name]) or net.name == "minilm_l6":
            continue
        planned = {"model": str(net.model), "calib_data": str(net.calib)}
        with TemporaryDirectory() as place:
            made = {"reference": str(net.model), "model": str(quantized(net, Path(place)))}
            for form in (planned, made):
                qdebug.compare(inputs=str(net.inputs), effect="exact", samples=SAMPLES, **form)
    effect._run_all = run_all
    return [runs for runs in found if len(runs.whole) == SAMPLES]


def row(way: Way, nets: Sequence[EffectRuns]) -> str:
    """How often the first layer is the true one, or close to it, what the first five hold, and the
    work of a network on average."""
    results, work = [], 0.0
    for runs in nets:
        amounts = way.amounts(layers_of(runs))
        cost = LEFT_OUT_ON_KERNELS if way.on_kernels else LEFT_OUT
        work += ALONE * layers_of(runs) * amounts.alone + cost * amounts.leaders * amounts.left_out
        results += [of_draw(runs, amounts, start) for start in STARTS]
    first, close, best = np.mean(results, axis=0)
    return (
        f"| {'yes' if way.on_kernels else 'no'} | {way.passes} | {way.samples} | {way.alone} | "
        f"{work / len(nets):.0f} | {first:.0%} | {close:.0%} | {best:.1%} |"
    )


def of_draw(runs: EffectRuns, amounts: Any, start: int) -> tuple[bool, bool, float]:
    """What is found on samples that are drawn as if those from `start` on came first."""
    whole = np.roll(runs.whole, start)

    def taken(values: Array, rows: Array, chances: Array) -> Array:
        return np.roll(values, start)[rows] / chances

    few, many = draw(whole, amounts.alone), draw(whole, amounts.left_out)
    alone = {n: taken(x, *few) for n, x in runs.alone.items()}
    leaders = sorted(alone, key=lambda n: -alone[n].sum())[: amounts.leaders]
    some = EffectRuns(
        whole=taken(runs.whole, *many),
        pinned={n: taken(runs.pinned[n], *many) for n in leaders if n in runs.pinned},
        alone=alone,
        whole_alone=taken(runs.whole, *few),
        unseen=1 - many[1],
    )
    effects, noise = effects_of(some), float(some.whole.sum())
    names = sorted(effects, key=lambda n: rank_key(effects[n], noise))
    truth = {n: float((runs.whole - x).sum()) for n, x in runs.pinned.items()}
    best = sorted(truth.values(), reverse=True)
    own = [truth.get(n, 0.0) for n in names[:5]]
    return own[0] == best[0], best[0] < LEADS * own[0], sum(own) / sum(best[:5])


def draw(noise: Array, count: int) -> tuple[Array, Array]:
    """The numbers of samples, and the chances that they were drawn, as `compare` draws them."""
    if count >= len(noise):
        return np.arange(len(noise)), np.ones(len(noise))
    chances = chances_of(noise, max(1.0, count))
    rows = np.array(drawn(chances))
    return rows, chances[rows]


if __name__ == "__main__":
    main()
