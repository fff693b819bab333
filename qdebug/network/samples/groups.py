"""Groups of samples, such as day and night: which one each sample is of.

A group's name stands in an array of the data beside the inputs, a row for each sample: a column of
a list, an array of an `.npz`, the labels. Of pictures and recordings it may be the folder that
they are in.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from qdebug.errors import SampleError
from qdebug.network.samples.found_preprocessing import class_names, read_metadata
from qdebug.network.samples.matching import quoted
from qdebug.network.samples.samples import Samples
from qdebug.network.samplespec import FOLDER
from qdebug.wording import counted, option

LABELS = "labels"
"""What the class of each sample is called, in a file of arrays as in a folder of pictures."""


@dataclass(frozen=True)
class Grouping:
    """Which group each sample is of.

    Attributes:
        name: what says so: of a column, an array, or FOLDER.
        groups: their names: texts in the order of the alphabet, numbers as numbers.
        numbers: of each sample its group, as a position in `groups`, int64 [samples].
    """

    name: str
    groups: tuple[str, ...]
    numbers: npt.NDArray[np.int64]

    @property
    def counts(self) -> dict[str, int]:
        """How many samples are of each group."""
        counts = np.bincount(self.numbers, minlength=len(self.groups)).tolist()
        return dict(zip(self.groups, counts, strict=True))

    def rows(self, group: int) -> npt.NDArray[np.int64]:
        """The numbers of the samples of a group, which is given by its position."""
        return np.flatnonzero(self.numbers == group)


def grouping_of(samples: Samples) -> Grouping | None:
    """The groups of some samples, as `spec.group` asks for them; None where it asks for none.

    Raises:
        SampleError: nothing in the data is called so, or it is nothing that could be a group.
    """
    name, where = samples.spec.group, samples.where
    if name is None:
        return None
    if name not in samples.extras:
        beside = quoted(sorted(samples.extras)) if len(samples.extras) else "nothing"
        raise SampleError(
            f"{where}: nothing there is called '{name}', by which samples could be grouped; beside "
            f"the inputs it holds {beside}.",
            f"Name one of these with {option('group')}, or add an array with an entry for each "
            f"sample; of pictures and recordings, {option('group', FOLDER)} takes the folders that "
            "they are in.",
            code="QD-SAMPLES-GROUP",
        )
    values = samples.extras[name]
    if values.dtype.kind not in "biuUS" or values.size != len(values):
        raise SampleError(
            f"{where}: '{name}' is {values.dtype} of shape {list(values.shape)}, which does not "
            "say what group a sample is of.",
            "Give a text or a whole number for each sample.",
            code="QD-SAMPLES-GROUP",
        )
    groups, numbers = np.unique(values.reshape(-1), return_inverse=True)
    names = _names_of(samples, name)
    shown = (
        g.decode(errors="replace") if isinstance(g, bytes) else names.get(g, str(g))
        for g in groups.tolist()
    )
    return Grouping(name, tuple(shown), numbers.astype(np.int64))


def _names_of(samples: Samples, name: str) -> dict[int, str]:
    """The names of the classes where these are the groups and the model's metadata has a different
    one for each."""
    if name != LABELS or not samples.spec.model:
        return {}
    names = class_names(read_metadata(samples.spec.model))
    return names if len({*names.values()}) == len(names) else {}


def check_groups(grouping: Grouping, where: str) -> None:
    """Make sure that there is something to compare.

    Raises:
        SampleError: all samples are of one group, or each is of its own.
    """
    count = len(grouping.numbers)
    alone = len(grouping.groups) == count
    if len(grouping.groups) > 1 and not alone:
        return
    what = (
        f"each of {counted(count, 'sample')} is a group of its own"
        if alone and count > 1
        else f"all samples are of the group '{grouping.groups[0]}'"
    )
    raise SampleError(
        f"{where}: by '{grouping.name}' {what}: there is nothing to tell apart.",
        f"Name what several samples share with {option('group')}, or leave it out.",
        code="QD-SAMPLES-GROUP",
    )


def folders_of(names: Sequence[str]) -> tuple[str, ...]:
    """The folder that each of some files is in: the first one below what all of them have in
    common; "." for a file that is directly there."""
    parents = [PurePath(name).parent for name in names]
    common = PurePath(os.path.commonpath(parents)) if parents else PurePath()
    return tuple(next(iter(parent.relative_to(common).parts), ".") for parent in parents)
