"""What calibration costs apart from running the model: the histograms in GB/s, each method per
tensor. bench_calibrate.py has the whole.

    python scripts/bench/bench_calibrators.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
from common import best, parser_of

from qdebug.calibrators import gather
from qdebug.calibrators.gather import Accumulator, histogram_of
from qdebug.calibrators.registry import METHODS, parse_method
from qdebug.types import Array


def main() -> None:
    """Print the tables."""
    parser = parser_of(__doc__, rounds=20)
    parser.add_argument("--sizes", nargs="+", type=int, default=[20_000, 200_000, 2_000_000])
    arguments = parser.parse_args()
    _bench_histograms(arguments.sizes, arguments.rounds)
    _bench_methods(max(arguments.sizes), arguments.rounds)


def _data(size: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    gauss = rng.standard_normal(size, dtype=np.float32)
    images = (rng.integers(0, 256, size) / 255).astype(np.float32)
    return {"gauss": gauss, "relu": np.maximum(gauss, 0), "images": images}


@contextmanager
def _without_native() -> Iterator[None]:
    native, gather.native = gather.native, None
    try:
        yield
    finally:
        gather.native = native


def _bench_histograms(sizes: Sequence[int], rounds: int) -> None:
    print("one core                  compiled       numpy   merge     of another range")
    for size in sizes:
        for name, values in _data(size).items():
            compiled = best(partial(_known(values).add, values), rounds)
            with _without_native():
                plain = best(partial(_known(values).add, values), 3)
            histogram, other = histogram_of(values), histogram_of(values * np.float32(3.1))
            same = best(partial(histogram.merge, histogram), rounds) * 1e6
            wider = best(partial(histogram.merge, other), rounds) * 1e6
            rates = [values.nbytes / seconds / 1e9 for seconds in (compiled, plain)]
            print(
                f"  {size:8} {name:8} {rates[0]:12.2f} GB/s {rates[1]:6.2f} GB/s"
                f" {same:5.0f} µs {wider:6.0f} µs"
            )


def _known(values: Array) -> Accumulator:
    accumulator = Accumulator()  # that has its bins already, as in all but the first batches
    accumulator.add(values)
    return accumulator


def _bench_methods(size: int, rounds: int) -> None:
    print("amax of one tensor, ms")
    for name, values in _data(size).items():
        histogram = histogram_of(values)
        times = {m: best(partial(parse_method(m).amax, histogram), rounds) * 1e3 for m in METHODS}
        listed = "  ".join(f"{method} {ms:.2f}" for method, ms in times.items())
        total = 300 * sum(times.values()) / 1e3
        kilobytes = histogram.table.nbytes / 1e3
        print(f"  {name:8} {listed}   300 tensors: {total:.2f} s, histogram {kilobytes:.0f} kB")


if __name__ == "__main__":
    main()
