"""Whether there are enough samples, and whether those that are compared are like those that
calibrate, and others."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator

from qdebug.analyse.objects import refuse_nothing
from qdebug.commands.check.judging import Executed, ranges_of
from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import spread, whole
from qdebug.results.check import Finding, ValueRange
from qdebug.wording import counted, option

_HASHED = 4096
"""Samples of each set that are looked at for overlap."""
_COMPARED = 64
"""Samples of each set whose values are compared."""
_FAR = 0.5
"""Standard deviations that the means of two sets may differ by: those of the two halves of one set
of 64 pictures differ by 0.1 at most, those of pictures scaled otherwise by more than 1."""
_LOST = 5
_Z = 1.96
"""Of a normal distribution, 95% lie so many standard deviations around its mean."""


def sample_findings(
    samples: Samples, metric: TaskMetric | None, value: float | None, max_drop: float | None
) -> Iterator[Finding]:
    """Whether there are enough samples for what is to be told."""
    if metric is None or not metric.is_share or value is None:
        return
    grain = 1 / samples.count
    half = _wilson(value, samples.count)
    told = (
        f"{counted(samples.count, 'sample')}: one is {grain:.2g} of {metric.name}, whose 95% "
        f"interval is ±{half:.2g}."
    )
    drop = max_drop or 0.0
    if not drop:
        yield Finding("note", "sample-count", told)
        return
    # A drop d that is real shows where at least as many samples are lost as a sign test needs: 5
    # that are lost and none that are gained have a chance of 1/32.
    needed = math.ceil(_LOST / drop)
    few = samples.count < needed
    yield Finding(
        "warning" if few else "note",
        "sample-count",
        f"{told} {option('max_drop', f'{drop:g}')} needs at least {needed} samples to be told from "
        "chance.",
        "Give more samples." if few else "",
    )


def nothing_found(metric: TaskMetric, given: Executed, samples: int) -> Iterator[Finding]:
    """That FP32 finds nothing, of a metric that takes what it finds as the truth."""
    try:
        refuse_nothing(metric, given.outputs, samples)
    except MetricError as error:
        yield uncomputed(error)


def _wilson(share: float, samples: int) -> float:
    """Half of Wilson's 95% interval of a share of so many samples."""
    inner = share * (1 - share) / samples + (_Z / samples / 2) ** 2
    return _Z * math.sqrt(inner) / (1 + _Z**2 / samples)


def set_findings(compared: Samples, calibration: Samples) -> Iterator[Finding]:
    """Whether two sets share samples, or have values of unlike size."""
    shared = shared_samples(compared, calibration, _HASHED)
    if shared is not None:
        yield shared
        if shared.severity == "error":
            return
    first, second = (_values(each) for each in (compared, calibration))
    for name in first.keys() & second.keys():
        one, other = first[name], second[name]
        apart, ratio = abs(one.mean - other.mean), one.std / other.std if other.std else math.inf
        if not one.std and not other.std and not apart:
            continue  # one value for all samples, such as a sampling rate
        far = apart > _FAR * math.hypot(one.std, other.std) / math.sqrt(2)
        if far or not 1 / (1 + _FAR) < ratio < 1 + _FAR:
            yield Finding(
                "warning",
                "unlike-samples",
                f"Values of '{name}' are unlike: mean {one.mean:.3g}, standard deviation "
                f"{one.std:.3g} in {option('inputs')}; {other.mean:.3g} and {other.std:.3g} "
                f"in {option('calib_data')}.",
                "Prepare both alike, and take both from where the network will be used.",
            )


def shared_samples(compared: Samples, calibration: Samples, most: int) -> Finding | None:
    """Whether samples that are compared are among those that calibrate, by content; of the first
    `most` of each set."""
    ours, theirs = [*_digests(compared, most)], {x for x, _ in _digests(calibration, most)}
    in_both = [is_constant for digest, is_constant in ours if digest in theirs]
    shared = len(in_both)
    if not shared:
        return None
    if all(in_both):
        return Finding(
            "warning",
            "constant-samples",
            f"{shared} of {counted(len(ours), 'sample')} of {option(compared.spec.setting)} are in "
            f"{option(calibration.spec.setting)}, too: all of them hold one value only, as silence "
            "and empty pictures do.",
            "See that they are samples of the model's task, and no files that were left empty.",
        )
    return Finding(
        "error" if shared == len(ours) else "warning",
        "shared-samples",
        f"{shared} of {counted(len(ours), 'sample')} of {option(compared.spec.setting)} are in "
        f"{option(calibration.spec.setting)}, too: ranges that are fitted to what is compared "
        "flatter the result.",
        f"Give {option(calibration.spec.setting)} other samples of the same kind.",
    )


def _digests(samples: Samples, most: int) -> Iterator[tuple[bytes, bool]]:
    """A digest of each of the first samples, and whether its inputs hold one value each; feeds that
    are executed together count as one."""
    for batch in samples.batches():
        if batch.start >= most:
            return
        feeds = samples.feeds(batch.start, batch.count)
        rows = batch.count if samples.is_stacked else 1
        for row in range(rows):
            inputs = [array[row] if rows > 1 else array for array in feeds.values()]
            digest = hashlib.sha256(b"".join(array.tobytes() for array in inputs)).digest()
            yield digest, all(bool((x == x.flat[0]).all()) for x in inputs if x.size)


def _values(samples: Samples) -> dict[str, ValueRange]:
    """The values of each input of floating point, of samples that are spread over the set."""
    few = spread(whole(samples), _COMPARED)
    floats = {spec.name for spec in samples.inputs if spec.dtype.kind == "f"}
    ranges = ranges_of(samples.feeds(batch.start, batch.count) for batch in few.batches)
    return {one.name: one for one in ranges if one.name in floats}


def uncomputed(error: MetricError) -> Finding:
    """That a metric cannot be computed is found, and ends nothing."""
    one_by_one = re.sub(r"(?<=[^:])\n {4}", "; ", error.hint)  # the lines of a list
    return Finding("error", "metric", f"{error.message}.", " ".join(one_by_one.split()))
