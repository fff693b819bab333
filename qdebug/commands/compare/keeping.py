"""How much of the activations a run file keeps: what is asked for, or what is of bearable size.

What loses least comes first: a second sample is a second look at the same layers; float16 has three
digits, more than an INT8 error needs, but cannot show one of FP16 nor be a reference again; of a
tensor that is left out there is no picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qdebug.store.schema import FloatStorage, Keep
from qdebug.wording import counted, option

MOST_BYTES = 190_000_000
"""Of activations, where the user does not say what to keep: with the rest of it, a run file stays
below 200 MB."""
FILE_BYTES = 195_000_000
"""Of the whole file: where its histograms take much, less is left for activations."""
DEFAULT = Keep("worst", 2)


@dataclass(frozen=True)
class Kept:
    """What is kept, and about how many bytes that takes."""

    keep: Keep
    dtype: FloatStorage
    left_out: frozenset[str]
    size: float


def bearable(
    sizes: Mapping[str, float], samples: int, runs: int, *, may_round: bool, histograms: float = 0.0
) -> Kept:
    """What a run file keeps where the user does not say.

    Args:
        sizes: bytes of each tensor in one sample of one run.
        samples: that are compared.
        runs: of each sample: the reference, the candidate, an engine.
        may_round: float16 shows the errors well enough.
        histograms: bytes that the file holds besides.
    """
    whole = runs * sum(sizes.values())
    most = max(0.0, min(MOST_BYTES, FILE_BYTES - histograms))
    ways: list[tuple[Keep, FloatStorage, float]] = [
        (DEFAULT, "float32", min(samples, DEFAULT.count) * whole),
        (Keep("worst", 1), "float32", whole),
    ]
    if may_round:
        ways.append((Keep("worst", 1), "float16", whole / 2))
    keep, dtype, size = next((way for way in ways if way[2] <= most), ways[-1])
    share = size / whole if whole else 0.0
    left_out = set[str]()
    for tensor in sorted(sizes, key=lambda name: -sizes[name]):
        if size <= most:
            break
        left_out.add(tensor)
        size -= share * runs * sizes[tensor]
    return Kept(keep, dtype, frozenset(left_out), size)


def decided(
    asked: Keep | None,
    sizes: Mapping[str, float],
    samples: int,
    runs: int,
    *,
    may_round: bool,
    histograms: float = 0.0,
) -> tuple[Kept, str]:
    """What is kept, of what is `asked` for or None, and what the user must know of its size; "" for
    nothing. See `bearable`."""
    if asked is not None:
        count = samples if asked.kind == "all" else min(asked.count, samples)
        size = count * runs * sum(sizes.values())
        note = (
            f"The run file holds about {_shown(size)} of activations; without {option('keep')} it "
            "stays below 200 MB."
        )
        return Kept(asked, "float32", frozenset(), size), note if size > MOST_BYTES else ""
    kept = bearable(sizes, samples, runs, may_round=may_round, histograms=histograms)
    if kept.keep == DEFAULT:
        return kept, ""
    how = " in float16" if kept.dtype == "float16" else ""
    left = counted(kept.left_out, "tensor")
    but = f", without the {left} that are largest" if kept.left_out else ""
    every = runs * sum(sizes.values()) * min(samples, DEFAULT.count)
    return kept, (
        f"To stay below 200 MB, activations are kept of the worst sample only{how}"
        f"{but}: {option('keep', str(DEFAULT))} would take about {_shown(every)}."
    )


def _shown(size: float) -> str:
    return f"{size / 1e9:.2g} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
