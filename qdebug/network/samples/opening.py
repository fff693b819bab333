"""From the DATA argument to samples: which format it is, and whether it fits the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qdebug.errors import SampleError
from qdebug.inmemory import InMemory
from qdebug.network.dataformats import data_usage, format_of_file
from qdebug.network.samples.damage import reading
from qdebug.network.samples.feeds import open_feeds
from qdebug.network.samples.readers.folder import read_folder
from qdebug.network.samples.readers.python import open_script, split_spec
from qdebug.network.samples.samples import Origin, RawSamples, Reader, Samples, Source
from qdebug.network.samples.stacked import open_stacked
from qdebug.network.samples.stamps import stamps_of
from qdebug.network.samplespec import SampleSpec
from qdebug.types import TensorSpec
from qdebug.wording import option

_PART = re.compile(r"\[\d*:\d*\]$")


def open_samples(
    data: str,
    inputs: Sequence[TensorSpec],
    *,
    limit: int | None = None,
    batch_size: int | None = None,
) -> Samples:
    """The samples of `data`; see SampleSpec and `opened`."""
    return opened(SampleSpec(data, limit, batch_size), inputs)


def opened(spec: SampleSpec, inputs: Sequence[TensorSpec]) -> Samples:
    """Samples for a model of these inputs, in the model's order; see the package for axes.

    Raises:
        SampleError: the data cannot be read, or does not fit the model.
    """
    data, limit = spec.data, spec.limit
    if not inputs:
        raise SampleError(
            f"{data}: the model has no inputs, so samples cannot be given to it.",
            "Check that this is the model that you mean: 'qdebug inspect' lists its inputs.",
            code="QD-SAMPLES-NO-INPUTS",
        )
    if limit is not None and limit < 1:
        raise SampleError(
            f"{option(spec.limited_by or 'samples')} is {limit}; it must be at least 1.",
            code="QD-SAMPLES-COUNT",
        )
    source = data.value if isinstance(data, InMemory) else open_source(data, inputs)
    stamps = {} if isinstance(data, InMemory) else stamps_of(Path(data))
    origin = Origin()
    if isinstance(source, RawSamples):
        prepared = source.prepared(spec, inputs)
        source, spec, origin = prepared.arrays, prepared.spec, prepared.origin
    if isinstance(source, Samples):
        samples = source.first(limit)
        samples.check_inputs(inputs)
    else:
        reader: Reader
        if isinstance(source, Mapping):
            reader, layout, extras = open_stacked(source, inputs, data, limit)
        else:
            reader, layout, extras = open_feeds(source, inputs, data, limit)
        origin = replace(origin, stamps=stamps)
        samples = Samples(reader, layout, extras.read_from(stamps), inputs, spec, origin)
    _check_full_batches(samples, data, spec.limited_by)
    return samples if spec.batch_size is None else samples.with_batch_size(spec.batch_size)


def open_source(spec: str, inputs: Sequence[TensorSpec]) -> Source:
    """What a path, or `script.py:function`, holds, none of it read yet.

    Raises:
        SampleError: it is not there, is damaged, or of no known format.
    """
    named = split_spec(spec)
    path = named[0] if named else Path(spec)
    with reading(path, "Check its permissions."):
        if not path.exists():
            raise SampleError(
                f"{path}: no such file or directory.",
                "Give the samples of a part as files of their own, or script.py:function."
                if _PART.search(spec)
                else f"Give {data_usage()}.",
                code="QD-SAMPLES-NOT-FOUND",
            )
        if named:
            return open_script(*named)
        if path.is_dir():
            return read_folder(path, inputs)
        data_format = format_of_file(path)
        if data_format is None:
            raise SampleError(
                f"{path}: unknown kind of data.", f"Give {data_usage()}.", code="QD-SAMPLES-FORMAT"
            )
        return data_format.reader.read_file(path, inputs)


def _check_full_batches(samples: Samples, where: str, limited_by: str) -> None:
    rest = samples.left_over
    if not rest:
        return
    full = samples.count - rest
    raise SampleError(
        f"{where}: {samples.count} samples do not fill the model's batches of "
        f"{samples.batch_size}.",
        f"Use {option(limited_by, str(full))}."
        if full and limited_by
        else f"Give {full or samples.batch_size} samples, or another multiple.",
        code="QD-SAMPLES-BATCH",
    )
