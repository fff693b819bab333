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
    `read_folder`, one that shares its ending with no format before it `recognizes`."""

    def recognizes(self, path: Path, /) -> bool:
        """Whether a file of an ending that others have, too, is of this format."""
        ...

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
        shares_endings: with formats that are listed later; its reader tells which files are its.
        raw: samples are no arrays yet, such as pictures (`RawSamples`).
    """

    name: str
    phrase: str
    holds: str
    endings: tuple[str, ...] = ()
    in_folders: bool = False
    beside_others: bool = False
    shares_endings: bool = False
    raw: bool = False

    @property
    def reader(self) -> DataReader:
        """Its functions, whose module is imported now."""
        return cast("DataReader", resolve_name(f"qdebug.network.samples.readers.{self.name}"))


SCRIPT = DataFormat(
    "python",
    "script.py:function",
    "a function that returns or yields *feeds*, dicts of arrays by input name, as Polygraphy's "
    "`load_data` does: for anything else",
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
        "coco",
        "COCO's .json",
        "pictures with boxes, outlines too: the file of annotations, or the folder that it is in",
        (".json",),
        in_folders=True,
        beside_others=True,
        shares_endings=True,
        raw=True,
    ),
    DataFormat(
        "yolo",
        "YOLO's data.yaml",
        "pictures with boxes or polygons: the file, its folder, or one with `images` and `labels`",
        (".yaml", ".yml"),
        in_folders=True,
        beside_others=True,
        raw=True,
    ),
    DataFormat(
        "masks",
        "images/ and masks/",
        "a folder with these two: pictures, and for each a mask of classes under the same name",
        in_folders=True,
        beside_others=True,
        raw=True,
    ),
    DataFormat(
        "texts",
        "a .txt, .csv or .jsonl of texts",
        "for a model that takes token ids, with `tokenizer.json` beside it: a text on each line, "
        "or the columns `text`, perhaps `text_pair`, and `label`",
        (".txt", ".csv", ".jsonl"),
        shares_endings=True,
        raw=True,
    ),
    DataFormat(
        "file_list",
        "a .csv or .jsonl of files and labels",
        "pictures or recordings: the columns `file` and `label`, and any others for the metric",
        (".csv", ".jsonl"),
        raw=True,
    ),
    DataFormat(
        "pictures",
        "pictures",
        "one, a folder of them, or a folder with one folder for each class",
        (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm"),
        in_folders=True,
        beside_others=True,
        raw=True,
    ),
    DataFormat(
        "recordings",
        "recordings (.wav, .flac, .ogg, .mp3, .aiff)",
        "for a model that takes waveforms: one, a folder of them, or one folder for each class",
        (".wav", ".flac", ".ogg", ".mp3", ".aiff"),
        in_folders=True,
        beside_others=True,
        raw=True,
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


def format_of_file(path: Path) -> DataFormat | None:
    """The format of a file, by its ending in any case, and where several have that by what it
    holds."""
    formats = [each for each in FORMATS if path.suffix.lower() in each.endings]
    looks = path.is_file()  # a pipe has no end that would come
    return next(
        (f for f in formats if not f.shares_endings or (looks and f.reader.recognizes(path))), None
    )


def data_usage() -> str:
    """What a user may give as samples, for help texts and messages."""
    files = (each.phrase for each in FORMATS if each is not SCRIPT)
    return f"{', '.join(files)}, a folder of such files, or for anything else {SCRIPT.phrase}"
