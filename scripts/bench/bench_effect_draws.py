"""How well a bounded amount of work finds the layers that cost most, on networks of any size.

Every layer of each network is measured on all of 60 samples, alone and left out, once. What a
larger network could afford is then drawn from these figures as `compare --effect fast` does, from
20 different starts each: so many layers alone on so many samples, so many leaders left out on so
many others. Work is in passes of one sample through the FP32 model, without what sessions take.

    python scripts/bench/bench_effect_draws.py --folder zoo     # networks of digit_zoo.py
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
from bench_effect import LEADS, networks, quantized
from bench_task import captured
from common import parser_of

from qdebug.analyse.compared import Compared
from qdebug.analyse.effect.effects import (
    Amounts,
    Division,
    float_outputs,
    left_out_passes,
    sized,
)
from qdebug.analyse.effect.leave_out import High, candidates_of
from qdebug.analyse.effect.runs import ALONE, Drawn, Energies, Reference, Runs
from qdebug.metrics.effect import EffectRuns, chances_of, drawn, effects_of, rank_key
from qdebug.types import Array

CACHE_BYTES = 1 << 28
"""For activations that runs start from."""
SAMPLES, STARTS = 60, range(0, 60, 3)


@dataclass(frozen=True)
class Way:
    """How much work is done, in passes, and how it is divided."""

    passes: int
    division: Division
    on_kernels: bool

    def amounts(self, layers: int) -> Amounts:
        """How many layers on how many samples, for a network that is neither tiny nor huge."""
        each = left_out_passes(self.on_kernels)
        return self.division.amounts(self.passes, layers, SAMPLES, each)


def main() -> None:
    """Print a table row for each way."""
    ort.set_default_logger_severity(3)
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, help="what digit_zoo.py wrote")
    parser.add_argument("--nets", nargs="+", metavar="NET", help="only these; default: all")
    arguments = parser.parse_args()
    nets = measured(arguments.folder, arguments.nets)
    print(
        f"{len(nets)} networks of {min(map(layers_of, nets))} to {max(map(layers_of, nets))} layers"
    )
    print("| kernels | passes | leaders on | alone on | work | first | close | best five |")
    print("|---|---|---|---|---|---|---|---|")
    for on_kernels, all_passes in ((False, (960, 640)), (True, (208, 176, 160))):
        for passes in all_passes:
            for samples, alone in ((16, 4), (32, 4), (32, 2), (40, 2)):
                division = Division(samples, alone, rated=0)  # alone on as many as each way says
                print(row(Way(passes, division, on_kernels), nets), flush=True)


def layers_of(runs: EffectRuns) -> int:
    """How many have an effect."""
    return len(runs.pinned)


def measured(folder: Path | None, names: Sequence[str] | None) -> list[EffectRuns]:
    """All runs of each network that has so many samples, as planned and as ONNX Runtime quantizes
    it."""
    found: list[EffectRuns] = []
    for net in networks(folder):
        if net.name not in (names or [net.name]) or net.name == "minilm_l6":
            continue
        planned = {"model": str(net.model), "calib_data": str(net.calib)}
        with TemporaryDirectory() as place:
            made = {"reference": str(net.model), "model": str(quantized(net, Path(place)))}
            for form in (planned, made):
                how: dict[str, Any] = {**form, "samples": SAMPLES}
                found.append(all_runs(captured(str(net.inputs), how)))
    return [runs for runs in found if len(runs.whole) == SAMPLES]


def all_runs(compared: Compared) -> EffectRuns:
    """Every layer alone and left out, on all samples."""
    context, pair = compared.context, compared.pair
    candidates = candidates_of(context, pair)
    assert candidates is not None
    with closing(context.backend.open(pair.reference.proto, ())) as session:
        reference = Reference(pair, session, float_outputs(pair, session))
        everything = Drawn(sized(context, session, compared.subset))
        runs = Runs(context, candidates, reference, everything, CACHE_BYTES)
        alone = runs.run([runs.everything - {n} for n in runs.names], beside=runs.everything)
        pinned = runs.run([High({n}) for n in runs.names], beside=High())
        whole = runs.known[High()].noise()
    return EffectRuns(
        whole=whole,
        pinned=noise_of(runs.names, pinned),
        alone=noise_of(runs.names, alone),
        whole_alone=whole,
        unseen=0.0,
    )


def noise_of(names: Sequence[str], found: Sequence[Energies | None]) -> dict[str, Array]:
    """By layer and sample; without those that do not run."""
    return {n: one.noise() for n, one in zip(names, found, strict=True) if one is not None}


def row(way: Way, nets: Sequence[EffectRuns]) -> str:
    """How often the first layer is the true one, or close to it, what the first five hold, and the
    work of a network on average."""
    results, work = [], 0.0
    for runs in nets:
        amounts = way.amounts(layers_of(runs))
        cost = left_out_passes(way.on_kernels)
        work += ALONE * layers_of(runs) * amounts.alone + cost * amounts.leaders * amounts.left_out
        results += [of_draw(runs, amounts, start) for start in STARTS]
    first, close, best = np.mean(results, axis=0)
    return (
        f"| {'yes' if way.on_kernels else 'no'} | {way.passes} | {way.division.left_out} | "
        f"{way.division.alone} | "
        f"{work / len(nets):.0f} | {first:.0%} | {close:.0%} | {best:.1%} |"
    )


def of_draw(runs: EffectRuns, amounts: Amounts, start: int) -> tuple[bool, bool, float]:
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
