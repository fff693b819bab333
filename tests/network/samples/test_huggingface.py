"""Hugging Face datasets on the disk, as `datasets` 5.2 lays them out."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from qdebug.errors import SampleError
from qdebug.network.samples import Samples
from qdebug.network.samples.readers import huggingface
from qdebug.network.samples.texts import Texts
from qdebug.network.samplespec import SampleSpec
from qdebug.types import TensorSpec

SPEC = (TensorSpec("x", ("N", 3, 8, 8), np.dtype(np.float32)),)
CLASSES = {"_type": "ClassLabel", "names": ["cat", "dog"]}
TEXT = {"_type": "Value", "dtype": "string"}
Saved = Callable[..., Path]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Saves columns, two rows to a file; `features` says what the columns are."""

    def save(features: Mapping[str, Any], columns: Mapping[str, Any], name: str = "data") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        table = pa.table(columns)
        files = []
        for start in range(0, table.num_rows, 2):
            files.append({"filename": f"data-{start:05}.arrow"})
            with (
                pa.OSFile(str(folder / files[-1]["filename"]), "wb") as sink,
                pa.ipc.new_stream(sink, table.schema) as writer,
            ):
                writer.write_table(table.slice(start, 2))
        (folder / "state.json").write_text(json.dumps({"_data_files": files}))
        (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
        return folder

    return save


def encoded(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def opened(data: object) -> Samples:
    return SampleSpec(str(data)).open(SPEC)


def test_pictures_within_and_beside_the_dataset(saved: Saved, tmp_path: Path) -> None:
    (tmp_path / "two.png").write_bytes(encoded(2))
    cells = [
        {"bytes": encoded(0), "path": None},
        {"bytes": encoded(1), "path": "one.png"},
        {"bytes": None, "path": str(tmp_path / "two.png")},
    ]
    features = {"image": {"_type": "Image"}, "label": CLASSES, "light": TEXT}
    columns = {"image": cells, "label": [1, 0, 1], "light": ["day", "day", "night"]}
    samples = opened(saved(features, columns))
    found = samples.with_batch_size(3).feeds(0, 3)["x"]
    assert np.rint(found[:, 0, 0, 0] * 255).tolist() == [0, 1, 2]
    assert samples.extras["labels"].tolist() == [1, 0, 1]
    assert samples.extras["light"].tolist() == ["day", "day", "night"]
    assert samples.origin.told.startswith(
        "3 pictures with labels, light (Hugging Face dataset data)"
    )


BOX = {"_type": "List", "feature": {"_type": "Value", "dtype": "float32"}, "length": 4}
RECORDS = {"_type": "List", "feature": {"bbox": BOX, "category": CLASSES}}
LISTS = {
    "bbox": {"_type": "List", "feature": BOX},
    "category": {"_type": "List", "feature": CLASSES},
}


@pytest.mark.parametrize("kind", [RECORDS, LISTS, {"_type": "Sequence", "feature": LISTS}])
def test_boxes_of_objects(saved: Saved, kind: Any) -> None:
    """Lists of records, or records of lists, as versions of datasets differ."""
    rows: list[Any] = [
        [
            {"bbox": [0.0, 2.0, 4.0, 6.0], "category": 1},
            {"bbox": [1.0, 1.0, 2.0, 3.0], "category": 0},
        ],
        [],
    ]
    if kind is not RECORDS:
        rows = [{name: [one[name] for one in row] for name in ("bbox", "category")} for row in rows]
        box = pa.list_(pa.list_(pa.float32()))
        column = pa.array(rows, pa.struct([("bbox", box), ("category", pa.list_(pa.int64()))]))
    else:
        one = pa.struct([("bbox", pa.list_(pa.float32())), ("category", pa.int64())])
        column = pa.array(rows, pa.list_(one))
    cells = [{"bytes": encoded(k), "path": None} for k in range(2)]
    features = {"image": {"_type": "Image"}, "objects": kind}
    samples = opened(saved(features, {"image": cells, "objects": column}))
    assert samples.extras["boxes"].tolist() == [[[0, 2, 4, 8], [1, 1, 3, 4]], [[0] * 4] * 2]
    assert samples.extras["classes"].tolist() == [[1, 0], [-1, -1]]
    assert "2 boxes, x, y, width and height of 'objects'" in samples.origin.told


def test_objects_that_are_no_boxes(saved: Saved) -> None:
    cells = [{"bytes": encoded(0), "path": None}]
    objects = pa.array([[{"bbox": [1.0, 2.0, np.nan, 4.0], "category": 0}]])
    features = {"image": {"_type": "Image"}, "objects": RECORDS}
    with pytest.raises(SampleError, match="'objects' holds no boxes") as caught:
        opened(saved(features, {"image": cells, "objects": objects}))
    assert caught.value.code == "QD-SAMPLES-DAMAGED"


def test_arrays_under_the_name_of_an_input(saved: Saved) -> None:
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(3, 3, 8, 8)).astype(np.float32)
    kind = pa.list_(pa.list_(pa.list_(pa.float32())))
    features = {"x": {"_type": "List"}, "label": {"_type": "Value", "dtype": "int64"}}
    columns = {"x": pa.array(arrays.tolist(), kind), "label": [4, 5, 6]}
    samples = opened(saved(features, columns))
    np.testing.assert_array_equal(samples.with_batch_size(3).feeds(0, 3)["x"], arrays)
    assert samples.extras["labels"].tolist() == [4, 5, 6]
    ragged = {"x": pa.array([[[[1.0]]], [[[1.0, 2.0]]]], kind), "label": [1, 2]}
    with pytest.raises(SampleError, match="not numbers of one shape"):
        opened(saved(features, ragged, "ragged"))


def test_texts_and_their_pairs(saved: Saved) -> None:
    features = {"premise": TEXT, "hypothesis": TEXT, "label": CLASSES, "id": TEXT}
    columns = {
        "premise": ["a", "b", "c"],
        "hypothesis": ["d", "e", "f"],
        "label": [0, 1, 0],
        "id": ["x", "y", "z"],
    }
    found = huggingface.read_folder(saved(features, columns), SPEC)
    assert isinstance(found, Texts)
    assert (found.texts, found.pairs) == (("a", "b", "c"), ("d", "e", "f"))
    assert {name: array.tolist() for name, array in found.labels.items()} == {"labels": [0, 1, 0]}


def test_what_cannot_be_read_is_refused(saved: Saved, tmp_path: Path) -> None:
    whole = saved({"label": CLASSES}, {"label": [1, 0]})
    with pytest.raises(SampleError, match=r"columns are label, and none .* input of the model"):
        opened(whole)
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(SampleError, match="splits train, test") as caught:
        opened(tmp_path / "splits")
    assert str(tmp_path / "splits" / "test") in caught.value.hint
    (whole / "state.json").write_text('{"_data_files": [{"filename": "gone.arrow"}]}')
    with pytest.raises(SampleError, match="not a Hugging Face dataset that was saved whole"):
        opened(whole)
    (whole / "state.json").write_text("[")
    with pytest.raises(SampleError, match="not a Hugging Face dataset that was saved whole"):
        opened(whole)
    assert huggingface.read_folder(tmp_path, SPEC) is None
