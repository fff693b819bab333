"""The formats that samples are given in, as data: what users write, and which file reads it.

Help texts, messages and the table of docs/reference/data.md follow from FORMATS; docs/recipes/
add-a-data-format.md adds one. Importing this module imports no reader, nor numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from qdebug.network.samples.samples import Source
    from qdebug.types import TensorSpec


class DataReader(Protocol):
    """A file of `samples/readers`: functions that open samples without reading them. A format whose
    files have no ending of their own lacks `read_file`, one that is not read from folders
    `read_folder`."""

    def read_file(self, path: Path, inputs: Sequence[TensorSpec], /) -> Source:
        """What a file holds, for a model of these inputs.

        Raises:
            SampleError: it is damaged, or of another format.
        """
        ...

    def read_folder(self, path: Path, inputs: Sequence[TensorSpec], /) -> Source | None:
        """What a folder of such files holds; None where it has none.

        Raises:
            SampleError: one is damaged, or of another format.
        """
        ...


@dataclass(frozen=True)
class DataFormat:
    """A format that samples are given in.

    Attributes:
        name: of the file in `samples/readers`.
        phrase: what a user gives, for help texts and messages.
        holds: what that holds, for the documentation.
        endings: of its files, in lower case; () where something else tells the format.
        in_folders: a folder of such files is samples, too.
        beside_others: files with these endings may lie beside samples of another format.
    """

    name: str
    phrase: str
    holds: str
    endings: tuple[str, ...] = ()
    in_folders: bool = False
    beside_others: bool = False

    @property
    def reader(self) -> DataReader:
        """Its functions, whose module is imported now."""
        return cast("DataReader", resolve_name(f"qdebug.network.samples.readers.{self.name}"))


SCRIPT = DataFormat(
    "python",
    "script.py:function",
    "a function that returns or yields *feeds*, dicts of arrays by input name, as Polygraphy's "
    "`load_data` does: for [pictures](#pictures) and anything else",
    (".py",),
)

FORMATS = (
    DataFormat(
        "npz",
        ".npz",
        "arrays by input name, samples on the leading axis; in a folder, one file per sample",
        (".npz",),
        in_folders=True,
    ),
    DataFormat(
        "npy",
        ".npy",
        "one such array; in a folder, files named after the inputs, or one per sample",
        (".npy",),
        in_folders=True,
    ),
    DataFormat(
        "hdf5",
        ".h5",
        "arrays by input name, samples on the leading axis; a name may be a path",
        (".h5", ".hdf5"),
    ),
    DataFormat(
        "test_data_set",
        "ONNX test_data_set_*",
        "a folder of ONNX's test data, or a folder of such folders",
        in_folders=True,
        beside_others=True,
    ),
    DataFormat(
        "polygraphy_json",
        "Polygraphy's inputs .json",
        "one or more samples, as `polygraphy run --save-inputs` writes them; or a folder of these",
        (".json",),
        in_folders=True,
        beside_others=True,
    ),
    SCRIPT,
)
"""All formats, in the order in which they are listed, and looked for in a folder."""


def format_of_file(ending: str) -> DataFormat | None:
    """The format of files whose names end like that, in any case."""
    return next((each for each in FORMATS if ending.lower() in each.endings), None)


def data_usage() -> str:
    """What a user may give as samples, for help texts and messages."""
    files = (each.phrase for each in FORMATS if each is not SCRIPT)
    folders = [each.endings[0] for each in FORMATS if each.in_folders and each.endings]
    folder = f"a folder of {', '.join(folders[:-1])} or {folders[-1]} files"
    return f"{', '.join(files)}, {folder}, or for anything else, such as pictures, {SCRIPT.phrase}"
