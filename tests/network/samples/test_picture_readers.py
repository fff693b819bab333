"""Sets of pictures on the disk: what each reader finds, and in which order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image
from refusals import refused

from qdebug.errors import SampleError
from qdebug.network.samples import Samples
from qdebug.network.samples import picture_set as sets
from qdebug.network.samplespec import SampleSpec
from qdebug.types import TensorSpec

SPEC = (TensorSpec("x", ("N", 3, 8, 8), np.dtype(np.float32)),)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Saves a picture of one value."""

    def saved(name: str, value: int, size: tuple[int, int] = (8, 8)) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((*size, 3), value, np.uint8)).save(path)
        return path

    return saved


def opened(data: object, **how: Any) -> Samples:
    return SampleSpec(str(data), **how).open(SPEC)


def values(samples: Samples) -> list[int]:
    """The value of each picture, in order."""
    return [
        round(float(samples.feeds(b.start, 1)["x"].mean()) * 255)
        for b in samples.with_batch_size(1).batches()
    ]


def test_a_folder_in_natural_order(save: Any, tmp_path: Path) -> None:
    for number in (10, 9, 1):
        save(f"img{number}.png", number)
    (tmp_path / "readme.txt").write_text("not a picture")
    samples = opened(tmp_path)
    assert values(samples) == [1, 9, 10] and not samples.extras
    assert samples.origin.told.startswith("3 pictures; RGB") and "guess" in samples.origin.told


def test_the_same_pictures_have_the_digest_of_their_arrays(save: Any, tmp_path: Path) -> None:
    for number in range(5):
        save(f"{number}.png", 30 * number)
    samples = opened(tmp_path)
    arrays = np.stack([np.full((3, 8, 8), 30 * n, np.float32) / np.float32(255) for n in range(5)])
    np.savez(tmp_path.parent / "same.npz", x=arrays)
    assert samples.digest == opened(tmp_path.parent / "same.npz").digest
    assert samples.with_batch_size(2).digest == samples.digest


def test_classes_by_folder(save: Any, tmp_path: Path) -> None:
    """Each spread over the set, so that the first few are of all."""
    for name, count in (("b", 2), ("a", 4)):
        for number in range(count):
            save(f"{name}/{number}.png", number + 100 * (name == "b"))
    samples = opened(tmp_path)
    assert samples.extras["labels"].tolist() == [0, 1, 0, 0, 1, 0]
    assert set(opened(tmp_path, limit=3).extras["labels"].tolist()) == {0, 1}
    pairs = zip(values(samples), samples.extras["labels"].tolist(), strict=True)
    assert all((value >= 100) == label for value, label in pairs)


def test_folders_called_by_a_number_are_that_class(save: Any, tmp_path: Path) -> None:
    save("7/a.png", 1)
    save("10/a.png", 2)
    assert sorted(opened(tmp_path).extras["labels"].tolist()) == [7, 10]


@pytest.mark.parametrize(
    ("folders", "classes", "metadata", "labels", "told"),
    [
        ("0 90 180", 3, "", [0, 1, 2], ", numbered from 0 in the order 0, 90, 180: the network"),
        ("1 2 3", 3, "", [0, 1, 2], ", numbered from 0 in the order 1, 2, 3: the network"),
        ("0 90 180", 4, "", [0, 90, 180], " by folder;"),
        ("1 2", 3, "", [1, 2], " by folder;"),
        ("0 90 180", None, "", [0, 90, 180], " by folder;"),
        ("0 90 180", 3, "{0: '0', 1: '180', 2: '90'}", [0, 2, 1], ", numbered as the model's"),
        ("0 1 2", 3, "{0: '0', 1: '1', 2: '2'}", [0, 1, 2], " by folder;"),
        ("0 90 180", 3, "{0: 'up', 1: 'left', 2: 'down'}", [0, 1, 2], ", numbered from 0 in"),
        ("01 1", 2, "", [1, 1], " by folder;"),  # two of one number
    ],
)
def test_folders_called_by_numbers_that_are_no_classes(
    save: Any, tmp_path: Path, folders: str, classes: int | None, metadata: str, labels: list[int],
    told: str,
) -> None:  # fmt: skip
    """Folders of 0, 90, 180 and 270 degrees were classes that no network has."""
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [], "g", [], [onnx.helper.make_tensor_value_info("y", 1, ["N", classes])]
        )
    )
    onnx.helper.set_model_props(model, {"names": metadata} if metadata else {})
    onnx.save(model, tmp_path / "net.onnx")
    for value, name in enumerate(folders.split()):
        save(f"test/{name}/a.png", value)
    samples = opened(tmp_path / "test", model=str(tmp_path / "net.onnx"))
    by_value = dict(zip(values(samples), samples.extras["labels"].tolist(), strict=True))
    assert [by_value[value] for value in range(len(labels))] == labels
    assert told in samples.origin.told
    assert (samples.origin.numbered_folders > 0) == (told == " by folder;" and not metadata)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_list(save: Any, tmp_path: Path, kind: str) -> None:
    rows = [("b.png", "dog", 0.5), ("a.png", "cat", 1.5), ("c.png", "dog", 2)]
    for number, (name, _, _) in enumerate(rows):
        save(f"images/{name}", number)
    lines = [f"{f},{label},{score}" for f, label, score in rows]
    text = "\n".join(["file,label,score", *lines])
    if kind == "jsonl":
        text = "\n".join(json.dumps({"file": f, "label": x, "score": s}) for f, x, s in rows)
    (tmp_path / f"list.{kind}").write_text(text)
    samples = opened(tmp_path / f"list.{kind}")
    assert values(samples) == [0, 1, 2]
    assert samples.extras["labels"].tolist() == [1, 0, 1]
    assert samples.extras["text"].tolist() == ["dog", "cat", "dog"]
    assert samples.extras["score"].tolist() == [0.5, 1.5, 2.0]
    (tmp_path / "images" / "a.png").unlink()
    with pytest.raises(SampleError, match=r"1 of 3 files.*not there.*a\.png"):
        opened(tmp_path / f"list.{kind}")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("l.jsonl", '{"file": "a.png"}\n{"label": 1}\n', "row 2 has no 'file'"),
        ("l.jsonl", '{"file": "a.png", "label": null}\n', "row 1 has no 'label'"),
        ("l.jsonl", '["a.png"]\n', "a line is no object"),
        ("l.csv", "file,b\na.png,2\na.png\n", "row 2 has no 'b'"),
        ("l.csv", "name,b\na.png,2\n", "it has name, b"),
        ("l.csv", "name,b\na.png,2,3\n", "row 1 has more values"),
        ("l.csv", "", "it has nothing"),
    ],
)
def test_lists_with_gaps(save: Any, tmp_path: Path, name: str, text: str, says: str) -> None:
    save("a.png", 1)
    (tmp_path / name).write_text(text)
    with pytest.raises(SampleError, match=says):
        opened(tmp_path / name)


def test_numbers_of_a_list_that_no_integer_holds(save: Any, tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        save(name, 1)
    (tmp_path / "l.csv").write_text(
        "file,far,gap,whole,text\na.png,1e300,nan,2.0,007\nb.png,1,1,3,8\n"
    )
    extras = opened(tmp_path / "l.csv").extras
    assert extras["far"].tolist() == [1e300, 1.0] and np.isnan(extras["gap"][0])
    assert extras["whole"].dtype == np.int64 and extras["text"].tolist() == ["007", "8"]


def coco(folder: Path, **changed: Any) -> Path:
    data = {
        "images": [{"id": 5, "file_name": "b.png"}, {"id": 3, "file_name": "a.png"}],
        "categories": [{"id": 9, "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": [
            {"image_id": 3, "category_id": 9, "bbox": [2, 4, 4, 8]},
            {"image_id": 3, "category_id": 2, "bbox": [0, 0, 16, 16]},
            {"image_id": 3, "category_id": 2, "bbox": [0, 0, 1, 1], "iscrowd": 1},
        ],
    }
    (folder / "instances.json").write_text(json.dumps(data | changed))
    return folder / "instances.json"


def test_coco(save: Any, tmp_path: Path) -> None:
    """In the order of the file; classes in that of their ids; boxes in pixels of the input."""
    save("a.png", 1, (16, 16))
    save("b.png", 2, (16, 32))
    for data in (coco(tmp_path), tmp_path):
        samples = opened(data)
        assert values(samples) == [2, 1]
        assert samples.extras["classes"].tolist() == [[-1, -1], [1, 0]]
        assert samples.extras["boxes"][1].tolist() == [[1, 2, 3, 6], [0, 0, 8, 8]]


def test_boxes_outside_of_their_pictures(save: Any, tmp_path: Path) -> None:
    """They are cut where the picture ends, or left out, and named."""
    save("a.png", 1, (16, 16))
    save("b.png", 2, (16, 32))

    def given(*boxes: list[float]) -> Any:
        each = [{"image_id": 3, "category_id": 9, "bbox": box} for box in boxes]
        return opened(coco(tmp_path, annotations=each))

    inside, rounded, across = [2.0, 4, 4, 8], [8.0, 0, 8.6, 16], [-4.0, 8, 8, 20]
    samples = given(inside, rounded, across, [40, 40, 4, 4])
    assert samples.extras["boxes"][1].tolist() == [[1, 2, 3, 6], [4, 0, 8, 8], [0, 4, 2, 8]]
    assert "1 box cut where the picture ends:" in samples.origin.told
    assert (
        "1 box outside of the picture left out:" in samples.origin.told
        and "a.png" in samples.origin.told
    )
    assert "cut" not in given(inside, rounded).origin.told
    with refused("QD-SAMPLES-ANNOTATIONS", "all 2 boxes lie outside", "a.png"):
        given([40, 40, 4, 4], [16, 0, 4, 4])


def test_outlines_of_coco(save: Any, tmp_path: Path) -> None:
    """Polygons, and runs of pixels in either form, become masks in the network's input."""
    rle = pytest.importorskip("faster_coco_eval.core.mask")
    save("a.png", 1, (16, 16))
    save("b.png", 2, (16, 32))
    plane = np.zeros((16, 16), np.uint8, order="F")
    plane[4:12, 2:6] = 1
    runs = rle.encode(plane)
    counts = np.diff(np.flatnonzero(np.diff(plane.ravel("F"), prepend=0, append=0)), prepend=0)
    whole = [*map(int, counts), int(plane.size - counts.sum())]
    polygon = [2, 4, 6, 4, 6, 12, 2, 12]
    forms = ([polygon], runs | {"counts": runs["counts"].decode()}, runs | {"counts": whole})
    boxes = [{"image_id": 3, "category_id": 9, "bbox": [2, 4, 4, 8]} for _ in forms]
    given = [box | {"segmentation": form} for box, form in zip(boxes, forms, strict=True)]
    samples = opened(coco(tmp_path, annotations=given))
    masks = samples.extras["instance_masks"]
    assert masks[0].tolist() == [b"", b"", b""]
    for mask in masks[1]:
        size, _, counted = mask.partition(b":")
        found = rle.decode({"size": [8, 8], "counts": counted})
        assert size == b"8x8" and np.array_equal(found, plane[::2, ::2])
    wrong = runs | {"size": [8, 32], "counts": whole}
    with refused("QD-SAMPLES-ANNOTATIONS", "a.png", "[8, 32]"):
        opened(coco(tmp_path, annotations=[boxes[0] | {"segmentation": wrong}]))
    with refused("QD-SAMPLES-DAMAGED", "segmentation"):
        opened(coco(tmp_path, annotations=[boxes[0] | {"segmentation": [[1, 2, 3, 4]]}]))
    some = opened(coco(tmp_path, annotations=[given[0], boxes[1]]))
    assert "instance_masks" not in some.extras and "1 object without an outline" in some.origin.told


@pytest.mark.parametrize(
    "changed",
    [
        {"images": [{"id": 3, "file_name": "a.png"}, {"id": 4, "file_name": "gone.png"}]},
        {"annotations": [{"image_id": 77, "category_id": 9, "bbox": [0, 0, 1, 1]}]},
        {"annotations": [{"image_id": 3, "category_id": 77, "bbox": [0, 0, 1, 1]}]},
    ],
)
def test_annotations_of_what_is_not_there(save: Any, tmp_path: Path, changed: Any) -> None:
    save("a.png", 1)
    save("b.png", 1)
    with pytest.raises(SampleError, match=r"gone|77") as caught:
        opened(coco(tmp_path, **changed))
    assert caught.value.code == "QD-SAMPLES-ANNOTATIONS"


@pytest.mark.parametrize("box", [[0, 0, 1], [0] * 9, [0, 0, float("nan"), 1], "abcd", None])
def test_boxes_of_coco_that_are_none(save: Any, tmp_path: Path, box: Any) -> None:
    save("a.png", 1)
    save("b.png", 1)
    with pytest.raises(SampleError) as caught:
        opened(coco(tmp_path, annotations=[{"image_id": 3, "category_id": 9, "bbox": box}]))
    assert caught.value.code == "QD-SAMPLES-DAMAGED"


@pytest.mark.parametrize(
    "line",
    ["nan 0 0 1 1", "inf 0 0 1 1", "0.5 0 0 1 1", "0 nan 0 1 1", "0 0 0 1", "0 0 0 1 1 0", "x"],
)
def test_boxes_of_yolo_that_are_none(save: Any, tmp_path: Path, line: str) -> None:
    save("images/a.png", 1)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text(f"{line}\n")
    with pytest.raises(SampleError, match=r"a\.txt:1") as caught:
        opened(tmp_path)
    assert caught.value.code == "QD-SAMPLES-ANNOTATIONS"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("val: images\nnames: 5\n", "FORMAT"),
        ("val: images\nnames:\n", "FORMAT"),
        ("names: [a]\n", "FORMAT"),
        ("[a, b]\n", "FORMAT"),
        ("val: gone\nnames: [a]\n", "ANNOTATIONS"),
        ("val: {\n", "DAMAGED"),
    ],
)
def test_a_data_yaml_that_is_none(save: Any, tmp_path: Path, text: str, code: str) -> None:
    save("images/a.png", 1)
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(SampleError) as caught:
        opened(tmp_path / "data.yaml")
    assert caught.value.code == f"QD-SAMPLES-{code}"


def test_yolo(save: Any, tmp_path: Path) -> None:
    save("images/val/a.png", 1, (16, 16))
    save("images/val/b.png", 2, (16, 16))
    labels = tmp_path / "labels" / "val"
    labels.mkdir(parents=True)
    (labels / "a.txt").write_text("1 0.5 0.5 0.5 0.25\n0 0 0 1 0 1 1 0 1\n")
    (tmp_path / "data.yaml").write_text("val: images/val\nnames: {0: cat, 1: dog}\n")
    for data in (tmp_path / "data.yaml", tmp_path):
        samples = opened(data)
        assert samples.extras["classes"].tolist() == [[1, 0], [-1, -1]]
        assert samples.extras["boxes"][0].tolist() == [[2, 3, 6, 5], [0, 0, 8, 8]]
    (labels / "a.txt").write_text("0 0 0 0.5 0 0.5 1 0 1\n")
    (mask, *_), _ = opened(tmp_path).extras["instance_masks"]
    counts = mask.removeprefix(b"8x8:")
    rle = pytest.importorskip("faster_coco_eval.core.mask")
    plane = rle.decode({"size": [8, 8], "counts": counts})
    assert plane[:, :4].all() and not plane[:, 4:].any()
    (labels / "a.txt").write_text("2 0.5 0.5 0.5 0.25\n")
    with pytest.raises(SampleError, match=r"a\.txt:1.*one of 2 classes"):
        opened(tmp_path)


def test_masks(save: Any, tmp_path: Path) -> None:
    save("images/a.png", 1, (4, 4))
    (tmp_path / "masks").mkdir()
    mask = np.array([[0, 1, 2, 3]] * 4, np.uint8)
    Image.fromarray(mask).save(tmp_path / "masks" / "a.png")
    found = opened(tmp_path).extras["masks"]
    assert np.array_equal(found[0], np.repeat(np.repeat(mask, 2, 0), 2, 1))
    save("images/b.png", 1)
    with pytest.raises(SampleError, match="have no mask"):
        opened(tmp_path)


def test_a_folder_of_something_else_says_what_is_there(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.pdf"):
        (tmp_path / name).touch()
    with pytest.raises(SampleError, match=r"holds 2 \.txt files, 1 \.pdf file\."):
        opened(tmp_path)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pictures that are decoded, one after the other."""
    names: list[str] = []
    whole = sets.picture_as_input

    def counted(picture: Any, *how: Any) -> Any:
        names.append(Path(picture.name).name)
        return whole(picture, *how)

    monkeypatch.setattr(sets, "picture_as_input", counted)
    return names


def test_few_pictures_are_decoded_at_a_time(save: Any, tmp_path: Path, decoded: list[str]) -> None:
    for number in range(12):
        save(f"{number}.png", number)
    samples = opened(tmp_path)
    assert not decoded
    samples.feeds(0, 1)
    assert len(decoded) <= 1 + max(1, sets.threads())
    assert values(samples) == list(range(12))
    assert len(decoded) <= 13 + sets.threads()


def test_pictures_that_are_cut_off_later(save: Any, tmp_path: Path) -> None:
    """Their headers are whole: they are found when they are decoded, and counted then."""
    rng = np.random.default_rng(0)
    for number in range(4):
        pixels = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.jpg")
    for number in (1, 3):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    samples = opened(tmp_path)
    with pytest.raises(SampleError, match=r"2 of 4 pictures.*1\.jpg.*3\.jpg") as caught:
        values(samples)
    assert caught.value.code == "QD-SAMPLES-PICTURE"
    assert opened(tmp_path, skip_bad=True).count == 2


def test_masks_that_are_damaged(save: Any, tmp_path: Path) -> None:
    """They are counted, too, and left out with their pictures."""
    (tmp_path / "masks").mkdir()
    for number in range(5):
        save(f"images/{number}.png", number)
        mask = Image.fromarray(np.full((8, 8), number, np.uint8))
        mask.save(tmp_path / "masks" / f"{number}.png")
    for number in (1, 2):
        (tmp_path / "masks" / f"{number}.png").write_bytes(b"text")
    save("masks/3.png", 1)  # of three channels
    with pytest.raises(SampleError, match=r"3 of 5 pictures.*masks/1\.png.*one channel"):
        _ = opened(tmp_path).extras["masks"]
    samples = opened(tmp_path, skip_bad=True)
    assert values(samples) == [0, 4] and "3 unreadable ones left out" in samples.origin.told
    assert samples.extras["masks"][:, 0, 0].tolist() == [0, 4]


def test_a_picture_of_another_size_that_comes_later(save: Any, tmp_path: Path) -> None:
    for number in range(3):
        save(f"{number}.png", number)
    (tmp_path / "how.yaml").write_text("resize: none\n")
    samples = opened(tmp_path, preprocess=str(tmp_path / "how.yaml"))
    save("1.png", 1, (8, 9))
    with pytest.raises(SampleError, match=r"1\.png: was changed"):
        values(samples)
    with pytest.raises(SampleError, match=r"1\.png has 8x9 pixels") as caught:
        opened(tmp_path, preprocess=str(tmp_path / "how.yaml"))
    assert caught.value.code == "QD-SAMPLES-PICTURE-SIZE"


def test_another_input_than_one_of_pictures(save: Any, tmp_path: Path) -> None:
    save("a.png", 1)
    two = (*SPEC, TensorSpec("y", ("N",), np.dtype(np.int64)))
    for inputs in (two, two[1:]):
        with pytest.raises(SampleError) as caught:
            SampleSpec(str(tmp_path)).open(inputs)
        assert caught.value.code == "QD-SAMPLES-PICTURE-INPUT"


def test_the_size_by_which_boxes_are_scaled_is_filled_in(save: Any, tmp_path: Path) -> None:
    """Whatever the pictures' own sizes: boxes are then where the labels are."""
    for number, size in enumerate([(8, 8), (30, 20)]):
        save(f"{number}.png", number, size)
    pictures = TensorSpec("images", ("N", 3, 8, 16), np.dtype(np.float32))
    sized = TensorSpec("orig_target_sizes", ("N", 2), np.dtype(np.int64))
    samples = SampleSpec(str(tmp_path)).open((pictures, sized))
    feeds = samples.feeds(0, 2)
    assert feeds["orig_target_sizes"].tolist() == [[16, 8]] * 2
    assert feeds["orig_target_sizes"].dtype == np.int64 and feeds["images"].shape == (2, 3, 8, 16)
    assert "orig_target_sizes is that size, width before height" in samples.origin.told
