"""Samples as a user names them. Importing this module imports no reader, nor numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qdebug.errors import given_by

if TYPE_CHECKING:
    from qdebug.network.inputshapes import InputShapes
    from qdebug.network.preprocessing import Preprocessing
    from qdebug.network.samples.samples import Samples
    from qdebug.types import TensorSpec

FOLDER = "folder"
"""The group of a picture that is the folder it is in, where no column of the data is called so."""


@dataclass(frozen=True)
class SampleSpec:
    """Which samples: settings hold it, commands open it, and workers do so again.

    Attributes:
        data: a path, `script.py:function`, or what `samples_in_memory` made of an object.
        limit: how many to take, the first ones; None takes all.
        batch_size: samples per execution; None takes the model's, or 1.
        setting: that they are given by, for messages.
        limited_by: the setting that `limit` is; "" for data of which all are taken.
        model: the path of the model, or a model in memory, in and beside which there may be how
            pictures become its input.
        preprocess: what the user says of that: a preset or a file.
        preprocessing: the same, found: with it, nothing is looked for.
        skip_bad: pictures that cannot be read are left out.
        shapes: that the model's inputs are given.
        group: what says which group a sample is of: see network/samples/groups.py; None for no
            groups.
    """

    data: str
    limit: int | None = None
    batch_size: int | None = None
    setting: str = "inputs"
    limited_by: str = "samples"
    model: str = ""
    preprocess: str | None = None
    preprocessing: Preprocessing | None = None
    skip_bad: bool = False
    shapes: InputShapes = ()
    group: str | None = None

    def open(self, inputs: Sequence[TensorSpec]) -> Samples:
        """The samples, for a model of these inputs.

        Raises:
            SampleError: they cannot be read, or do not fit the model.
        """
        from qdebug.network.samples.opening import opened

        with given_by(self.setting):
            return opened(self, inputs)


def given_specs(*specs: SampleSpec | None) -> tuple[SampleSpec, ...]:
    """Those that there are."""
    return tuple(spec for spec in specs if spec is not None)
