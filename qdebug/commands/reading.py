"""What the samples of a command are, and how they became inputs of the model."""

from __future__ import annotations

from pathlib import Path

from qdebug.errors import UsageError
from qdebug.inmemory import InMemory
from qdebug.network.dataformats import format_of_file
from qdebug.network.graph import Graph
from qdebug.network.inputshapes import fix_shapes
from qdebug.network.load import read_model
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples.readers.python import split_spec
from qdebug.network.samplespec import SampleSpec, given_specs
from qdebug.result import ReadData
from qdebug.types import TensorSpec
from qdebug.wording import option


def read_data(*specs: SampleSpec | None) -> tuple[ReadData, ...]:
    """Of samples that are no arrays: what they are, and what is done to them. To be called before
    anything is measured, which an error would lose.

    Raises:
        QdebugError: the model or the samples cannot be read, or do not fit each other.
    """
    data: dict[str, ReadData] = {}
    inputs: tuple[TensorSpec, ...] = ()
    for spec in given_specs(*specs):
        if spec.setting in data or not _needs_reading(spec.data):
            continue
        inputs = inputs or _inputs_of(spec)
        samples = spec.open(inputs)
        how = samples.spec.preprocessing
        if samples.origin.told:
            guess = how is not None and how.guess
            data[spec.setting] = ReadData(spec.setting, spec.data, samples.origin.told, guess)
    return tuple(data.values())


def _needs_reading(data: str) -> bool:
    """Whether it may be no arrays: looking costs little, and runs no code of the user's."""
    if isinstance(data, InMemory):
        return False
    try:
        return _holds_no_arrays(data)
    except OSError:  # such as a name that is too long, which its reader refuses
        return False


def _holds_no_arrays(data: str) -> bool:
    if split_spec(data):
        return False
    path = Path(data)
    if path.is_dir():
        return True
    if not path.is_file():
        return False
    data_format = format_of_file(path)
    return data_format is not None and data_format.raw


def _inputs_of(spec: SampleSpec) -> tuple[TensorSpec, ...]:
    """The inputs of the model that samples are for, with the shapes that the user gave them.

    Raises:
        ModelError: it cannot be read.
        UsageError: a shape does not fit.
    """
    file = read_model(spec.model)
    fix_shapes(file.path, file.proto.graph, spec.shapes)
    return sample_inputs(Graph(file.proto))


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
