"""Show and serialise coverage: were the calibration samples enough, and like the held-out ones?"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from qdebug.measure.calibration import Coverage
from qdebug.report.tables import print_indented
from qdebug.report.view import number, printable, share

_MOST_STRETCHES = 3


def print_coverage(console: Console, coverage: Coverage, over: str = "") -> None:
    """Growth of the ranges with the number of samples, held-out excess where there are held-out
    data, and samples that stretch a range alone. `over` says of which tensors."""
    growth = coverage.growth
    steps = ", ".join(
        f"{count}: {100 * median:.0f}/{100 * lowest:.0f}%"
        for count, median, lowest in zip(growth.samples, growth.median, growth.lowest, strict=True)
    )
    console.print()
    console.print(Text("Coverage", style="bold").append(f" {over}" if over else "", style="dim"))
    print_indented(console, f"range by number of samples (median/lowest tensor): {steps}", 2)
    if len(growth.samples) < 2:
        print_indented(console, "one sample does not tell how the ranges grow with more", 2)
    elif growth.enough < growth.samples[-1]:
        first = "sample gives" if growth.enough == 1 else f"{growth.enough} samples give"
        print_indented(console, f"the first {first} every tensor most of its range", 2)
    else:  # nothing less reached the mark
        told = "some ranges still grew with the last samples: more might widen them"
        print_indented(console, told, 2)
    beyond = [e for e in coverage.held_out if e.ratio > 1]
    if beyond:
        worst = beyond[0]
        told = (
            f"held-out data leave the largest range seen in {len(beyond)} of "
            f"{len(coverage.held_out)} tensors, most in {printable(worst.tensor)} "
            f"({number(worst.ratio, 3)} times, {share(worst.samples_beyond)} of the samples)"
        )
        print_indented(console, told, 2)
    elif coverage.held_out:
        told = "held-out data stay within the largest range seen in every tensor"
        print_indented(console, told, 2)
    for stretch in coverage.stretched_by_one_sample[:_MOST_STRETCHES]:
        told = (
            f"sample {stretch.sample} alone stretches {printable(stretch.tensor)}: amax "
            f"{number(stretch.amax, 3)}, without it {number(stretch.without, 3)}"
        )
        print_indented(console, told, 2)
