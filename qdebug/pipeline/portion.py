"""Which samples calibrate and which are held out to judge the result."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.errors import UsageError
from qdebug.model.samples import Batch, Samples


@dataclass(frozen=True)
class Portion:
    """Some executions of a set of samples."""

    samples: Samples
    batches: tuple[Batch, ...]

    @property
    def count(self) -> int:
        """How many samples they hold."""
        return sum(batch.count for batch in self.batches)

    @property
    def indices(self) -> list[int]:
        """The numbers of the samples, in order."""
        return [i for batch in self.batches for i in range(batch.start, batch.start + batch.count)]

    @property
    def key(self) -> str:
        """What tells this portion of these samples from any other."""
        if is_whole(self):
            return self.samples.digest
        return f"{self.samples.digest}:{','.join(map(str, self.indices))}"


def whole(samples: Samples) -> Portion:
    """All samples."""
    return Portion(samples, tuple(samples.batches()))


def finely(samples: Samples, executions: int) -> Samples:
    """`samples` in about so many executions at least, where the batch size is free."""
    if not samples.batch_is_free:
        return samples
    return samples.with_batch_size(min(samples.batch_size, max(1, samples.count // executions)))


def is_whole(portion: Portion) -> bool:
    """Whether it holds all of its samples."""
    return len(portion.batches) == len(list(portion.samples.batches()))


def first(portion: Portion, count: int | None) -> Portion:
    """The first batches of `portion`, up to `count` samples, but at least one; None for all."""
    kept: list[Batch] = []
    for batch in portion.batches:
        if kept and count is not None and sum(b.count for b in (*kept, batch)) > count:
            break
        kept.append(batch)
    return Portion(portion.samples, tuple(kept))


def split(samples: Samples, share: float) -> tuple[Portion, Portion]:
    """Calibration and held-out samples, `share` of them held out, spread evenly over the data.

    Raises:
        UsageError: there are too few samples to hold any out.
    """
    calibration: list[Batch] = []
    held_out: list[Batch] = []
    batches = list(samples.batches())
    for number, batch in enumerate(batches):
        due = int((number + 1) * share) > int(number * share)
        (held_out if due else calibration).append(batch)
    if not held_out or not calibration:
        raise UsageError(
            f"--holdout-share: {share:g} of {samples.count} samples in {len(batches)} batches "
            "is none, or all",
            "Give other samples with --holdout DATA.",
        )
    return Portion(samples, tuple(calibration)), Portion(samples, tuple(held_out))


def halves(portion: Portion) -> tuple[Portion, Portion]:
    """Its executions, in turns.

    Raises:
        UsageError: it is a single one.
    """
    if len(portion.batches) < 2:
        raise UsageError(
            "--mix: half of the held-out samples choose and the others judge, but there is one",
            "Hold out more: --holdout DATA or --holdout-share.",
        )
    first, second = portion.batches[::2], portion.batches[1::2]
    return Portion(portion.samples, first), Portion(portion.samples, second)
