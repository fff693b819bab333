"""Regenerate the detector of digits that is bundled in ``calib_data/``, and its pictures.

A user of qdebug never needs this script: its results are committed. To run it you need ``torch``,
``scikit-learn``, ``pillow``, ``opencv-python-headless``, ``onnx``, ``onnxruntime`` and ``numpy``;
it takes some minutes::

    python scripts/make_digits_detector.py [--output calib_data] [--only-outputs]

It places scikit-learn's handwritten digits on textured canvases, trains a small detector on them
and writes

* ``digits_detector.onnx``: boxes (centre, width, height in pixels) and scores of ten classes in one
  output [N, 4 + 10, A], with SiLU throughout, and the metadata that Ultralytics' exporter writes.
* ``digits_detector_int8.onnx``: the same, quantized by ONNX Runtime's ``quantize_static`` with all
  of its defaults. Like many a detector it then has one scale for boxes and scores.
* ``digits_detector_torch.npz``: what PyTorch gives for ``scenes/test``, to check the export by.
* ``scenes/calib``: pictures to calibrate on, of digits of the training split.
* ``scenes/test``: pictures with their boxes in COCO's format, of digits that no training step saw.

Pictures are letterboxed to 96x96 as the metadata say. No weight is edited by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import torch
from make_digits_model import SEED, Split, load_data
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

SIZE, STRIDES = 96, (8, 16)
BATCH = 16
CLASSES = 10
SIDES = ((96, 128), (128, 96), (112, 112), (100, 140))
CALIBRATION, TEST = 24, 40
_SMALL = 26
"""Longer sides of boxes, in pixels of the input, that the finer grid finds."""

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]


# --- pictures -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """A picture [height, width, 3] with boxes [n, 4] (x1, y1, x2, y2) and their classes [n]."""

    pixels: Bytes
    boxes: Floats
    classes: npt.NDArray[np.int64]


def resized(values: Floats, height: int, width: int) -> Floats:
    """An array [rows, columns] of numbers, bicubic."""
    image = Image.fromarray(values.astype(np.float32))
    found: Floats = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC), np.float64)
    return found


def texture(rng: np.random.Generator, height: int, width: int) -> Floats:
    """A canvas: a colour, clouds of several sizes, perhaps stripes, and grain."""
    canvas = np.ones((height, width, 3)) * rng.uniform(60, 190, 3)
    for cells in (3, 8, 20):
        for channel in range(3):
            clouds = resized(rng.normal(size=(cells, cells)), height, width)
            canvas[:, :, channel] += rng.uniform(2, 60 / cells + 6) * clouds
    if rng.random() < 0.5:
        rows, columns = np.mgrid[:height, :width]
        angle, period = rng.uniform(0, np.pi), rng.uniform(6, 30)
        waves = np.sin((rows * np.cos(angle) + columns * np.sin(angle)) * 2 * np.pi / period)
        canvas += rng.uniform(4, 18) * waves[:, :, None]
    return canvas + rng.normal(size=canvas.shape) * rng.uniform(1, 7)


def draw(
    canvas: Floats, digit: Floats, corner: tuple[int, int], side: int, colour: Floats
) -> tuple[float, ...]:
    """Draw a digit [8, 8] of values from 0 to 1, in place; the box around it."""
    top, left = corner
    ink = np.clip(resized(digit, side, side), 0, 1)
    place = canvas[top : top + side, left : left + side]
    place += ink[:, :, None] * (colour - place)
    rows, columns = np.nonzero((ink > 0.35).any(1))[0], np.nonzero((ink > 0.35).any(0))[0]
    return (
        *(left + float(columns[0]), top + float(rows[0])),
        *(left + float(columns[-1]) + 1, top + float(rows[-1]) + 1),
    )


def scene(rng: np.random.Generator, digits: Split) -> Scene:
    """One to five digits that do not overlap, light or dark on their canvas."""
    height, width = SIDES[rng.integers(len(SIDES))]
    canvas = texture(rng, height, width)
    boxes: list[tuple[float, ...]] = []
    classes: list[int] = []
    taken: list[tuple[int, int, int]] = []
    for _ in range(rng.integers(1, 6)):
        side = int(rng.integers(22, 60))
        top, left = (int(rng.integers(0, n - side)) for n in (height, width))
        if any(abs(top - t) < max(side, s) and abs(left - x) < max(side, s) for t, x, s in taken):
            continue
        number = int(rng.integers(len(digits.labels)))
        around = canvas[top : top + side, left : left + side].mean()
        strength = rng.uniform(60, 110) * (-1 if around > 125 else 1)
        colour = np.clip(around + strength + rng.uniform(-25, 25, 3), 0, 255)
        image = digits.images[number, 0].astype(np.float64)
        boxes.append(draw(canvas, image, (top, left), side, colour))
        classes.append(int(digits.labels[number]))
        taken.append((top, left, side))
    pixels = np.clip(np.rint(canvas), 0, 255).astype(np.uint8)
    return Scene(pixels, np.array(boxes).reshape(-1, 4), np.array(classes, np.int64))


def letterboxed(one: Scene, *, opencv: bool = False) -> Scene:
    """As the network sees it: as a whole in the middle of SIZE x SIZE, padded with 114; resized by
    Pillow, whose bilinear looks at all pixels, as in training, or as Ultralytics does by OpenCV."""
    height, width = one.pixels.shape[:2]
    ratio = SIZE / max(height, width)
    rows, columns = round(height * ratio), round(width * ratio)
    top, left = round((SIZE - rows) / 2 - 0.1), round((SIZE - columns) / 2 - 0.1)
    if opencv:
        small = cv2.resize(one.pixels, (columns, rows), interpolation=cv2.INTER_LINEAR)
    else:
        image = Image.fromarray(one.pixels).resize((columns, rows), Image.Resampling.BILINEAR)
        small = np.asarray(image)
    canvas = np.full((SIZE, SIZE, 3), 114, np.uint8)
    canvas[top : top + rows, left : left + columns] = small
    return Scene(canvas, one.boxes * ratio + (left, top, left, top), one.classes)


# --- the network ----------------------------------------------------------------------------


class Conv(nn.Module):
    """Convolution, BatchNorm and SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    """Two convolutions over half of the channels, and a skip."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1 = Conv(channels, channels // 2)
        self.cv2 = Conv(channels // 2, channels)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.cv2(self.cv1(x))
        return found


class Detector(nn.Module):
    """Two grids of cells, of 8 and of 16 pixels; the coarse one is also handed to the fine one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(Conv(3, 16, stride=2), Conv(16, 24, stride=2), Bottleneck(24))
        self.fine = nn.Sequential(Conv(24, 48, stride=2), Bottleneck(48))
        self.coarse = nn.Sequential(Conv(48, 64, stride=2), Bottleneck(64))
        self.merge = Conv(112, 48, 1)
        self.heads = nn.ModuleList(
            nn.Sequential(Conv(channels, 48), nn.Conv2d(48, 4 + CLASSES, 1))
            for channels in (48, 64)
        )
        for head in self.heads:
            nn.init.constant_(head[1].bias[4:], -4.6)  # scores of 0.01 to begin with

    def raw(self, x: Tensor) -> Tensor:
        """Logits [N, 4 + CLASSES, A], the finer grid first."""
        fine = self.fine(self.stem(x))
        coarse = self.coarse(fine)
        up = F.interpolate(coarse, scale_factor=2.0, mode="nearest")
        grids = self.heads[0](self.merge(torch.cat([fine, up], 1))), self.heads[1](coarse)
        return torch.cat([grid.flatten(2) for grid in grids], 2)

    def forward(self, x: Tensor) -> Tensor:
        """Boxes as centre, width and height in pixels, then scores: [N, 4 + CLASSES, A]."""
        raw = self.raw(x)
        corners = decoded(raw[:, :4])
        low, high = corners[:, :2], corners[:, 2:]
        return torch.cat([(low + high) / 2, high - low, raw[:, 4:].sigmoid()], 1)


def anchors() -> tuple[Tensor, Tensor]:
    """The centres of all cells [2, A] (x, y), and their strides [A], in pixels."""
    centres, strides = [], []
    for stride in STRIDES:
        line = (torch.arange(SIZE // stride) + 0.5) * stride
        rows, columns = torch.meshgrid(line, line, indexing="ij")
        centres.append(torch.stack([columns.flatten(), rows.flatten()]))
        strides.append(torch.full((len(line) ** 2,), float(stride)))
    return torch.cat(centres, 1), torch.cat(strides)


CENTRES, CELLS = anchors()


def decoded(raw: Tensor) -> Tensor:
    """Distances to the four sides, at most four cells each, as corners [N, 4, A]."""
    sides = raw.sigmoid() * 4 * CELLS
    return torch.cat([CENTRES - sides[:, :2], CENTRES + sides[:, 2:]], 1)


# --- training -------------------------------------------------------------------------------


def targets(one: Scene) -> tuple[Tensor, Tensor]:
    """The class of each cell [A], -1 for none, and its box [4, A]: the cells around the middle of a
    box, on the grid that suits its size."""
    classes = torch.full((CELLS.numel(),), -1, dtype=torch.long)
    boxes = torch.zeros(4, CELLS.numel())
    for box, label in zip(torch.from_numpy(one.boxes).float(), one.classes, strict=True):
        middle = (box[:2] + box[2:]) / 2
        longer = float((box[2:] - box[:2]).max())
        stride = STRIDES[0] if longer <= _SMALL else STRIDES[1]
        near = ((CENTRES - middle[:, None]).abs().amax(0) < stride) & (stride == CELLS)
        classes[near] = int(label)
        boxes[:, near] = box[:, None]
    return classes, boxes


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of boxes [4, n], pair by pair."""
    low, high = torch.maximum(one[:2], other[:2]), torch.minimum(one[2:], other[2:])
    both = (high - low).clamp(min=0).prod(0)
    areas = [(x[2:] - x[:2]).clamp(min=0).prod(0) for x in (one, other)]
    return both / (areas[0] + areas[1] - both + 1e-6)


def loss_of(model: Detector, pixels: Tensor, classes: Tensor, boxes: Tensor) -> Tensor:
    """One minus the overlap of the cells that have a box, and the cross-entropy of all scores,
    whose target is that overlap."""
    raw = model.raw(pixels)
    found = decoded(raw[:, :4]).transpose(0, 1)[:, classes >= 0]
    wanted = boxes.transpose(0, 1)[:, classes >= 0]
    quality = overlap(found, wanted)
    distance = (found - wanted).abs().mean() / 8
    scores = torch.zeros_like(raw[:, 4:]).transpose(1, 2)
    scores[classes >= 0] = F.one_hot(classes[classes >= 0], CLASSES) * quality.detach()[:, None]
    count = max(1, quality.numel())
    entropy = F.binary_cross_entropy_with_logits(
        raw[:, 4:].transpose(1, 2), scores, reduction="sum"
    )
    return 2 * (1 - quality).sum() / count + 0.3 * distance + entropy / count


def train(model: Detector, digits: Split, *, scenes: int, epochs: int) -> None:
    """Train with Adam under a one-cycle schedule; leaves evaluation mode on."""
    rng = np.random.default_rng(SEED)
    seen = [letterboxed(scene(rng, digits)) for _ in range(scenes)]
    pixels = torch.from_numpy(np.stack([one.pixels for one in seen])).permute(0, 3, 1, 2)
    labels = [targets(one) for one in seen]
    classes, boxes = (torch.stack(each) for each in zip(*labels, strict=True))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=1e-3)
    steps = scenes // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, epochs * steps)
    generator = torch.Generator().manual_seed(SEED)
    model.train()
    for epoch in range(epochs):
        order = torch.randperm(scenes, generator=generator)
        total = 0.0
        for step in range(steps):
            chosen = order[step * BATCH : (step + 1) * BATCH]
            batch = pixels[chosen].float() / 255
            brightness = 0.8 + 0.4 * torch.rand(len(chosen), 1, 1, 1, generator=generator)
            batch = (batch * brightness).clamp(0, 1)
            loss = loss_of(model, batch, classes[chosen], boxes[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}: loss {total / steps:.3f}", flush=True)
    model.eval()


# --- files ----------------------------------------------------------------------------------


def export(model: Detector, path: Path) -> None:
    """Write the network, with BatchNorm folded, as Ultralytics' exporter would."""
    torch.onnx.export(
        model,
        (torch.zeros(1, 3, SIZE, SIZE),),
        str(path),
        input_names=["images"],
        output_names=["output0"],
        dynamic_axes={"images": {0: "batch"}, "output0": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )
    proto = onnx.load(path)
    properties = {
        "description": "Digits on textured canvases, trained by scripts/make_digits_detector.py",
        "task": "detect",
        "stride": str(max(STRIDES)),
        "batch": "1",
        "imgsz": str([SIZE, SIZE]),
        "names": str({k: str(k) for k in range(CLASSES)}),
    }
    helper.set_model_props(proto, properties)
    onnx.checker.check_model(proto)
    onnx.save(proto, path)


def loaded(path: Path) -> Detector:
    """The network with the weights of its export, in which BatchNorm is folded: here it leaves its
    input as it is, but for the bias."""
    graph = onnx.load(path).graph
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    model = Detector().eval()
    modules = dict(model.named_modules())
    with torch.no_grad():
        for node in graph.node:
            if node.op_type != "Conv":
                continue
            # /stem/stem.2/cv1/conv/Conv belongs to stem.2.cv1.conv: a scope repeats its parent's.
            scopes = [*node.name.split("/")[1:-1], ""]
            kept = [s for s, after in pairwise(scopes) if not after.startswith(f"{s}.")]
            name = ".".join(kept)
            weight, bias = (torch.from_numpy(weights[n].copy()) for n in node.input[1:])
            modules[name].weight.copy_(weight)
            if modules[name].bias is not None:
                modules[name].bias.copy_(bias)
                continue
            norm = modules[f"{name.rpartition('.')[0]}.bn"]
            norm.running_var.fill_(1 - norm.eps)
            norm.bias.copy_(bias)
    return model


def write_outputs(model: Detector, folder: Path, target: Path) -> None:
    """Write what PyTorch gives for the pictures of a folder, prepared as the metadata make qdebug
    prepare them."""
    files = sorted(folder.glob("*.jpg"))
    pictures = [as_input(np.asarray(Image.open(file)), opencv=True) for file in files]
    with torch.no_grad():
        found = model(torch.from_numpy(np.concatenate(pictures)))
    np.savez_compressed(target, output0=found.numpy())


class LetterboxedPictures(CalibrationDataReader):
    """The pictures of a folder, one by one."""

    def __init__(self, folder: Path) -> None:
        self._files = iter(sorted(folder.glob("*.jpg")))

    def get_next(self) -> dict[str, npt.NDArray[np.float32]] | None:
        """The next one as the network's input; None after the last."""
        file = next(self._files, None)
        return None if file is None else {"images": as_input(np.asarray(Image.open(file)))}


def as_input(pixels: Bytes, *, opencv: bool = False) -> npt.NDArray[np.float32]:
    """A picture [height, width, 3] as the network's input [1, 3, SIZE, SIZE]."""
    one = Scene(pixels, np.zeros((0, 4)), np.zeros(0, np.int64))
    seen = letterboxed(one, opencv=opencv)
    return seen.pixels.transpose(2, 0, 1)[None].astype(np.float32) / 255


def write_scenes(folder: Path, scenes: Iterator[Scene], *, boxes: bool) -> None:
    """Write pictures, and where they are to be scored their boxes in COCO's format."""
    folder.mkdir(parents=True, exist_ok=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, one in enumerate(scenes):
        name = f"scene{number:02d}.jpg"
        Image.fromarray(one.pixels).save(folder / name, quality=88)
        height, width = one.pixels.shape[:2]
        images.append({"id": number, "file_name": name, "height": height, "width": width})
        for (x1, y1, x2, y2), label in zip(one.boxes.tolist(), one.classes.tolist(), strict=True):
            box = [x1, y1, x2 - x1, y2 - y1]
            entry = {"id": len(annotations) + 1, "image_id": number, "category_id": label}
            annotations.append({**entry, "bbox": box, "area": box[2] * box[3], "iscrowd": 0})
    categories = [{"id": k, "name": str(k)} for k in range(CLASSES)]
    found = {"images": images, "categories": categories, "annotations": annotations}
    if boxes:
        (folder / "annotations.json").write_text(json.dumps(found, indent=1) + "\n")


def recall(path: Path, scenes: list[Scene]) -> float:
    """The share of boxes for which the best cell of their class overlaps by half, above 0.25."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    hits = total = 0
    for one in map(letterboxed, scenes):
        batch = one.pixels.transpose(2, 0, 1)[None].astype(np.float32) / 255
        (output,) = session.run(None, {"images": batch})[0]
        low, high = output[:2] - output[2:4] / 2, output[:2] + output[2:4] / 2
        corners = torch.from_numpy(np.concatenate([low, high]))
        for box, label in zip(one.boxes, one.classes, strict=True):
            wanted = torch.from_numpy(box).float()[:, None].expand_as(corners)
            good = (overlap(corners, wanted) >= 0.5).numpy() & (output[4 + label] > 0.25)
            hits, total = hits + bool(good.any()), total + 1
    return hits / max(1, total)


def main() -> None:
    """Train, and write everything."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("calib_data"))
    parser.add_argument("--scenes", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--only-outputs", action="store_true", help="of the network that is there")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    path, outputs = (given.output / f"digits_detector{end}" for end in (".onnx", "_torch.npz"))
    if given.only_outputs:
        write_outputs(loaded(path), given.output / "scenes" / "test", outputs)
        note_files(given.output, [outputs])
        return
    torch.manual_seed(SEED)
    data = load_data(SEED)
    model = Detector()
    print(sum(p.numel() for p in model.parameters()), "parameters")
    train(model, data.train, scenes=given.scenes, epochs=given.epochs)
    export(model, path)
    rng = np.random.default_rng(SEED + 1)
    calibration = [scene(rng, data.train) for _ in range(CALIBRATION)]
    test = [scene(rng, data.holdout) for _ in range(TEST)]
    write_scenes(given.output / "scenes" / "calib", iter(calibration), boxes=False)
    write_scenes(given.output / "scenes" / "test", iter(test), boxes=True)
    quantized = path.with_name("digits_detector_int8.onnx")
    quantize_static(path, quantized, LetterboxedPictures(given.output / "scenes" / "calib"))
    write_outputs(model, given.output / "scenes" / "test", outputs)
    found = recall(path, test)
    about = {
        "fp32_recall": round(found, 4),
        "opset": 17,
        "parameters": sum(p.numel() for p in model.parameters()),
        "made_by": "scripts/make_digits_detector.py",
    }
    files = [path, quantized, outputs, *sorted((given.output / "scenes").rglob("*.*"))]
    note_files(given.output, files, {path.name: about})
    print(f"recall {found:.4f}")


def note_files(folder: Path, files: list[Path], models: dict[str, Any] | None = None) -> None:
    """Write what the files are into the manifest."""
    manifest = folder / "manifest.json"
    known = json.loads(manifest.read_text()) if manifest.exists() else {"files": {}, "models": {}}
    for file in files:
        name = file.relative_to(folder).as_posix()
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        known["files"][name] = {"sha256": digest, "bytes": file.stat().st_size}
    known["models"] |= models or {}
    manifest.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
