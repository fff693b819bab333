"""What the layers' errors consist of, where a fault is planted whose part is known.

One fault at a time is planted into the networks of bench_diagnosis.py. At the layer it touches, the
part it makes has to be the largest, the inherited one included; at the INT8 layers that read this
layer, what is inherited. A case counts where its fault costs 3 dB or more at the outputs. Of the
networks without a fault follows how large the interaction and what is unexplained are.

    python scripts/bench/digit_zoo.py ZOO       # once; needs PyTorch
    python scripts/bench/bench_parts.py --zoo ZOO

Five to ten minutes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from bench_diagnosis import LEAST_COST_DB, compared, networks, planted, share
from common import planted_parser
from planted_channels import one_scale, unequal_channels
from planted_nodes import misplaced_pairs
from planted_ranges import wrong_ranges

from qdebug.metrics.parts import ErrorParts
from qdebug.results.compare import CompareResult

EXPECTED = {
    "amax-by-8": "clipping",
    "misplaced-pair": "clipping",
    "amax-times-8": "rounding",
    "channel-times-64": "rounding",
    "one-weight-scale": "weights",
}
"""The part that each kind of fault makes."""
PARTS = ("inherited", "weights", "clipping", "rounding", "unexplained")


@dataclass(frozen=True)
class Case:
    """The largest parts in one case: at the layer that the fault touches, all and of those that it
    adds itself; and at its readers."""

    kind: str
    touched: str
    added: str
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Healthy:
    """Layers of a network without a fault that do not run in FP32: how many, how many have parts,
    and of each of these what is unexplained and the interaction, as shares."""

    layers: int
    unexplained: tuple[float, ...]
    interaction: tuple[float, ...]


def largest(parts: ErrorParts | None, names: Sequence[str] = PARTS) -> str:
    """The name of the largest of these parts; "" without any."""
    if parts is None:
        return ""
    return max(names, key=lambda name: parts.share(name) or 0.0)


def cases_of(network: planted.Network) -> Iterator[Case]:
    """Every case of a network that counts."""
    base = compared(planted.healthy(network))
    faults = chain(
        wrong_ranges(network),
        unequal_channels(network),
        one_scale(network),
        misplaced_pairs(network),
    )
    for fault in faults:
        result = compared(dict(fault.settings))
        if planted.cost_db(result, base) < LEAST_COST_DB:
            continue
        touched = next((x for x in result.layers if x.name in fault.culprits), None)
        if touched is None:
            continue
        parts = {x.name: x.error_parts for x in result.layers if str(x.precision) == "int8"}
        readers = network.readers(touched.tensor) - fault.culprits
        found = tuple(largest(parts[name]) for name in sorted(readers) if name in parts)
        own = touched.error_parts
        yield Case(fault.kind, largest(own), largest(own, PARTS[1:]), found)


def healthy_of(result: CompareResult) -> Healthy:
    """The shares of a comparison without a fault."""
    own = [x for x in result.layers if str(x.precision) != "fp32"]
    parts = [x.error_parts for x in own if x.error_parts is not None and x.error_parts.total]
    return Healthy(
        len(own),
        tuple(p.share("unexplained") or 0.0 for p in parts),
        tuple(p.share("interaction") or 0.0 for p in parts),
    )


def examined(
    name: str, files: tuple[Path, Path, Path], samples: int
) -> tuple[list[Case], dict[str, Healthy]]:
    """All cases of a network, and its figures without a fault in each precision."""
    network = planted.load(name, *files, 4 if name == "face" else samples)
    healthy = {p: healthy_of(compared(planted.healthy(network, p))) for p in ("int8", "fp16")}
    return list(cases_of(network)), healthy


def main() -> None:
    """Run, and print the tables."""
    arguments = planted_parser(__doc__).parse_args()
    found = networks(arguments.zoo, arguments.assets)
    names = [name for name in found if name in (arguments.nets or found)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        jobs = [pool.submit(examined, n, found[n], arguments.samples) for n in names]
        results = [job.result() for job in jobs]
    table([case for cases, _ in results for case in cases])
    print()
    for precision in ("int8", "fp16"):
        print(summary(precision, [healthy[precision] for _, healthy in results]))


def table(cases: list[Case]) -> None:
    """Per kind of fault: cases, and where the part that it makes is the largest."""
    print(
        "| fault | its part | cases | largest at the layer | largest that the layer adds | "
        "inherited is largest at its readers |"
    )
    print("|---|---|---|---|---|---|")
    kinds: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        kinds[case.kind].append(case)
    for kind, items in sorted(kinds.items()):
        part = EXPECTED[kind]
        readers = [name == "inherited" for case in items for name in case.readers]
        print(
            f"| `{kind}` | {part} | {len(items)} | {share(x.touched == part for x in items)} | "
            f"{share(x.added == part for x in items)} | {share(readers)} of {len(readers)} |"
        )


def summary(precision: str, networks: list[Healthy]) -> str:
    """One line on the networks without a fault."""
    unexplained = [x for n in networks for x in n.unexplained]
    interaction = np.abs([x for n in networks for x in n.interaction])
    return (
        f"{precision}: {len(networks)} networks, {sum(n.layers for n in networks)} layers, "
        f"{len(unexplained)} with an error and its parts; {sum(x > 0 for x in unexplained)} with "
        f"anything unexplained, {max(unexplained, default=0.0):.2g} at most; interaction "
        f"{np.median(interaction):.1%} in the median, over a tenth in "
        f"{int((interaction > 0.1).sum())}, {interaction.max():.0%} at most"
    )


if __name__ == "__main__":
    main()
