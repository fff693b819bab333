"""What holds for every format of samples: a new one is tested without being named."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdebug.config.shared import DATA
from qdebug.errors import SampleError
from qdebug.network.dataformats import FORMATS, DataFormat, data_usage, format_of_file
from qdebug.network.samples import open_samples

each_format = pytest.mark.parametrize("data_format", FORMATS, ids=[f.name for f in FORMATS])
OF_FILES = [f for f in FORMATS if f.endings]


@each_format
def test_its_file_has_what_it_says(data_format: DataFormat) -> None:
    assert hasattr(data_format.reader, "read_file") == bool(data_format.endings)
    assert hasattr(data_format.reader, "read_folder") == data_format.in_folders


@each_format
def test_help_and_messages_name_it(data_format: DataFormat, tmp_path: Path, make_spec) -> None:
    assert data_format.phrase in data_usage() and data_usage() in DATA
    with pytest.raises(SampleError) as caught:
        open_samples(str(tmp_path / "nothing"), [make_spec("x", None, 3)])
    assert data_format.phrase in caught.value.hint


def test_an_ending_has_one_format(tmp_path: Path) -> None:
    """But for those whose reader tells which files are its."""
    alone = [f for f in OF_FILES if not f.shares_endings]
    endings = [ending for f in alone for ending in f.endings]
    assert len(set(endings)) == len(endings)
    for f in OF_FILES:
        assert hasattr(f.reader, "recognizes") or not f.shares_endings
        for ending in f.endings:
            path = tmp_path / f"empty{ending.upper()}"
            path.touch()
            assert (format_of_file(path) is f) is not f.shares_endings


@pytest.mark.parametrize("data_format", OF_FILES, ids=[f.name for f in OF_FILES])
@pytest.mark.parametrize("content", [b"", b"\xff\x00 nothing of the kind", b"PK\x03\x04"])
def test_damaged_files_are_refused(
    data_format: DataFormat, content: bytes, tmp_path: Path, make_spec
) -> None:
    for ending in data_format.endings:
        path = tmp_path / f"data{ending}"
        path.write_bytes(content)
        with pytest.raises(SampleError) as caught:
            open_samples(str(path), [make_spec("x", None, 3)])
        assert str(path) in caught.value.message


@pytest.mark.parametrize(
    "data_format", [f for f in FORMATS if f.in_folders], ids=lambda f: str(f.name)
)
def test_a_folder_without_its_files_is_none_of_its(
    data_format: DataFormat, tmp_path: Path, make_spec
) -> None:
    (tmp_path / "readme.txt").write_text("text")
    assert data_format.reader.read_folder(tmp_path, [make_spec("x", None, 3)]) is None
