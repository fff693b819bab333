"""What the samples of a command are, and how they became inputs of the model."""

from __future__ import annotations

from pathlib import Path

import onnx

from qdebug.errors import UsageError
from qdebug.inmemory import InMemory
from qdebug.network.dataformats import format_of_file
from qdebug.network.graph import Graph
from qdebug.network.inputshapes import fix_shapes
from qdebug.network.load import read_model
from qdebug.network.samples.parts import split_part
from qdebug.network.samples.readers.python import split_spec
from qdebug.network.samplespec import SampleSpec
from qdebug.result import ReadData
from qdebug.types import TensorSpec
from qdebug.wording import option


def read_data(*specs: SampleSpec) -> tuple[ReadData, ...]:
    """Of samples that are no arrays: what they are, and what was done to them.

    Raises:
        QdebugError: the model or the samples cannot be read, or do not fit each other.
    """
    found: dict[str, ReadData] = {}
    inputs: tuple[TensorSpec, ...] = ()
    for spec in specs:
        if spec.setting in found or not _needs_reading(spec.data):
            continue
        inputs = inputs or inputs_of(spec)
        samples = spec.open(inputs)
        how = samples.spec.preprocessing
        if samples.told:
            guess = how is not None and how.guess
            found[spec.setting] = ReadData(spec.setting, spec.data, samples.told, guess)
    return tuple(found.values())


def _needs_reading(data: str) -> bool:
    """Whether it may be no arrays: looking costs little, and runs no code of the user's."""
    if isinstance(data, InMemory):
        return False
    data = data if Path(data).exists() else split_part(data)[0]
    if split_spec(data):
        return False
    path = Path(data)
    if path.is_dir():
        return True
    if not path.is_file():
        return False
    data_format = format_of_file(path)
    return data_format is not None and data_format.raw


def inputs_of(spec: SampleSpec) -> tuple[TensorSpec, ...]:
    """The inputs of the model that samples are for, with the shapes that the user gave them.

    Raises:
        ModelError: it cannot be read.
        UsageError: a shape does not fit.
    """
    file = read_model(spec.model)
    proto = onnx.ModelProto()
    proto.CopyFrom(file.proto)
    fix_shapes(file.path, proto.graph, spec.shapes)
    weights = {tensor.name for tensor in proto.graph.initializer}
    return tuple(x for x in Graph(proto).inputs if x.name not in weights)


def require_samples(inputs: object, **settings: object) -> None:
    """Refuse settings, by name, that say something of samples where there are none.

    Raises:
        UsageError: one of them has a value.
    """
    given = [name for name, value in settings.items() if value is not None]
    if inputs is None and given:
        raise UsageError(
            f"{option(given[0])} needs samples, and none are given",
            f"Add {option('inputs', 'DATA')}, or drop {option(given[0])}.",
            code="QD-USAGE-REQUIRED",
        )
