"""Which group each sample is of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from qdebug.errors import SampleError
from qdebug.network.samples import samples_in_memory
from qdebug.network.samples.groups import Grouping, check_groups, folders_of, grouping_of
from qdebug.network.samplespec import SampleSpec
from qdebug.types import TensorSpec

VECTORS = (TensorSpec("x", ("N", 2), np.dtype(np.float32)),)
PICTURES = (TensorSpec("x", ("N", 3, 8, 8), np.dtype(np.float32)),)


def grouped(values: Any, *, group: str = "light", limit: int | None = None) -> Grouping:
    data = samples_in_memory({"x": np.zeros((4, 2), np.float32), "light": np.array(values)})
    found = grouping_of(SampleSpec(data, limit, group=group).open(VECTORS))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("values", "groups", "numbers"),
    [
        (["night", "day", "day", "fog"], ("day", "fog", "night"), [2, 0, 0, 1]),
        ([10, 9, 9, 10], ("9", "10"), [1, 0, 0, 1]),
        ([True, False, True, True], ("False", "True"), [1, 0, 1, 1]),
        ([[1], [2], [1], [1]], ("1", "2"), [0, 1, 0, 0]),
        ([b"a", b"b", b"b", b"b"], ("a", "b"), [0, 1, 1, 1]),
    ],
)
def test_an_array_says_it(values: Any, groups: tuple[str, ...], numbers: list[int]) -> None:
    found = grouped(values)
    assert (found.groups, found.numbers.tolist()) == (groups, numbers)
    assert found.counts == {name: numbers.count(k) for k, name in enumerate(groups)}


@pytest.mark.parametrize(
    ("names", "groups"),
    [("{0: 'cat', 2: 'dog'}", ("1", "dog")), ("['a', 'b', 'a']", ("1", "2")), ("", ("1", "2"))],
)
def test_classes_have_the_names_of_the_model(
    tmp_path: Path, names: str, groups: tuple[str, ...]
) -> None:
    """Where it has a different one for each."""
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))
    onnx.helper.set_model_props(model, {"names": names})
    onnx.save(model, tmp_path / "net.onnx")
    data = samples_in_memory({"x": np.zeros((3, 2), np.float32), "labels": np.array([2, 1, 2])})
    spec = SampleSpec(data, group="labels", model=str(tmp_path / "net.onnx"))
    found = grouping_of(spec.open(VECTORS))
    assert found is not None and found.groups == groups


def test_the_first_samples_only() -> None:
    assert grouped(["b", "a", "a", "b"], limit=3).counts == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("values", "group", "words"),
    [
        (["a"] * 4, "lihgt", "'light'"),
        ([0.5, 1.0, 1.5, 2.0], "light", "float64"),
        ([[1, 2]] * 4, "light", "[4, 2]"),
    ],
)
def test_what_is_no_group(values: Any, group: str, words: str) -> None:
    with pytest.raises(SampleError, match="group") as caught:
        grouped(values, group=group)
    assert caught.value.code == "QD-SAMPLES-GROUP" and words in caught.value.message


@pytest.mark.parametrize("values", [["a"] * 4, ["a", "b", "c", "d"]])
def test_nothing_to_tell_apart(values: list[str]) -> None:
    with pytest.raises(SampleError) as caught:
        check_groups(grouped(values), "data")
    assert caught.value.code == "QD-SAMPLES-GROUP"


def test_folders_below_what_all_have_in_common() -> None:
    assert folders_of(["/d/day/a/1.png", "/d/night/2.png", "/d/3.png"]) == ("day", "night", ".")
    assert folders_of(["/d/x/1.png", "/d/x/2.png"]) == (".", ".")


@pytest.fixture
def day_and_night(tmp_path: Path) -> Callable[[str], str]:
    def made(kind: str) -> str:
        rows = []
        for number in range(6):
            light = "night" if number % 3 == 0 else "day"
            path = tmp_path / light / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(np.full((8, 8, 3), 40 * number, np.uint8)).save(path)
            rows.append(f"{light}/{number}.png,{number},{light}")
        if kind == "folder":
            return str(tmp_path)
        (tmp_path / "list.csv").write_text("\n".join(["file,label,light", *rows]))
        return str(tmp_path / "list.csv")

    return made


@pytest.mark.parametrize("group", ["folder", "light"])
def test_groups_of_pictures(day_and_night: Any, group: str) -> None:
    """In the order of the samples, which for folders is not that of the names."""
    samples = SampleSpec(day_and_night(group), group=group).open(PICTURES)
    found = grouping_of(samples)
    assert found is not None and found.counts == {"day": 4, "night": 2}
    values = samples.with_batch_size(6).feeds(0, 6)["x"].mean(axis=(1, 2, 3))
    numbers = np.rint(values * 255 / 40).astype(int)
    assert [found.groups[k] == "night" for k in found.numbers] == [n % 3 == 0 for n in numbers]
    assert ("folder" in samples.extras) == (group == "folder")
