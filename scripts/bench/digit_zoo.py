"""Train small networks of many kinds on scikit-learn's 8x8 digits, for the benchmarks.

Writes `NAME.onnx`, `NAME_calib.npz` (inputs) and `NAME_holdout.npz` (inputs, and `labels` for a
classifier or `targets` for the metric of `zoo_metrics.py`) into a folder; nothing of it is
committed. Needs what `make_digits_model.py` needs, from which the data, their splits and the
training come. One thread, 10 to 90 s for each network.

`hard` trains those of `HARD`, which are like public networks that lose much in INT8:
`zoo_hard_networks.py` has why.

    python scripts/bench/digit_zoo.py FOLDER [hard] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import zoo_hard_networks as hard
import zoo_metrics
import zoo_networks as networks
from digits_networks import ConvBn
from make_digits_model import OPSET, SEED, FloatArray, Split, load_data, shift, write_npz

LEAST_QUALITY = 0.9
"""What a network must reach in FP32 on held-out data; a benchmark on a bad one shows nothing."""


@dataclass(frozen=True)
class Task:
    """What a network is trained for.

    Attributes:
        scene: makes the inputs and the targets of a split.
        loss: of the outputs, given the targets.
        quality: 0 to 1, of the outputs, given the targets.
        outputs: their names.
        labelled: targets are the labels of the split.
    """

    scene: Callable[[Split, np.random.Generator], tuple[FloatArray, FloatArray]]
    loss: Callable[[tuple[Tensor, ...], Tensor], Tensor]
    quality: Callable[[zoo_metrics.Arrays, zoo_metrics.Arrays], float]
    outputs: tuple[str, ...]
    labelled: bool = False


@dataclass(frozen=True)
class Recipe:
    """How a network is made and trained; `finish` follows the training."""

    make: Callable[[], nn.Module]
    task: Task
    epochs: int
    rate: float = 3e-3
    finish: Callable[[nn.Module], nn.Module] = lambda model: model


# --- tasks ----------------------------------------------------------------------------------


def as_they_are(split: Split, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """The images, and their labels (N x 1)."""
    return split.images, split.labels[:, None].astype(np.float32)


def pasted(split: Split, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Each digit, 8 to 16 pixels large, anywhere in 24 x 24 pixels; its label and its box."""
    size, count = 24, len(split.labels)
    images = np.zeros((count, 1, size, size), np.float32)
    boxes = np.zeros((count, 4), np.float32)
    for i, image in enumerate(torch.from_numpy(split.images)):
        side = int(generator.integers(8, 17))
        top, left = generator.integers(0, size - side + 1, 2)
        large = nn.functional.interpolate(image[None], (side, side), mode="bilinear")
        images[i, 0, top : top + side, left : left + side] = large[0, 0].numpy()
        boxes[i] = np.array([left, top, left + side, top + side]) / size
    return images, np.concatenate([split.labels[:, None].astype(np.float32), boxes], axis=1)


def segmented(split: Split, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Each digit anywhere in 16 x 16 noisy pixels; for each pixel 0, or 1 + the digit's label."""
    count = len(split.labels)
    images = generator.uniform(0, 0.2, (count, 1, 16, 16)).astype(np.float32)
    pixels = np.zeros((count, 16, 16), np.float32)
    for i, image in enumerate(split.images):
        top, left = generator.integers(0, 9, 2)
        images[i, 0, top : top + 8, left : left + 8] += image[0]
        ink = image[0] > 0.3
        pixels[i, top : top + 8, left : left + 8] = ink * (1 + split.labels[i])
    return images, pixels


def in_lines(split: Split, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Lines of four digits in 12 x 44 pixels, each moved a little, the first of each its own; the
    four labels plus one."""
    count = len(split.labels)
    images = generator.uniform(0, 0.1, (count, 1, 12, 44)).astype(np.float32)
    chosen = generator.integers(0, count, (count, 4))
    chosen[:, 0] = np.arange(count)
    for i, four in enumerate(chosen):
        for place, k in enumerate(four):
            top, left = generator.integers(0, 5), 2 + 10 * place + generator.integers(0, 3)
            images[i, 0, top : top + 8, left : left + 8] += split.images[k, 0]
    return images, (split.labels[chosen] + 1).astype(np.float32)


def in_scenes(split: Split, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """One to four digits, 9 to 15 pixels large, in the quadrants of 32 x 32 noisy pixels, the first
    of each its own; for each of 4 x 4 cells 1 where the centre of a digit is, its label, centre and
    size in pixels."""
    count = len(split.labels)
    images = generator.uniform(0, 0.15, (count, 1, 32, 32)).astype(np.float32)
    cells = np.zeros((count, 16, 6), np.float32)
    for i in range(count):
        quadrants = generator.permutation(4)[: generator.integers(1, 5)]
        for k, quadrant in enumerate(quadrants):
            which = i if k == 0 else int(generator.integers(0, count))
            side = int(generator.integers(9, 16))
            top, left = generator.integers(0, 17 - side, 2) + 16 * np.array(divmod(quadrant, 2))
            digit = torch.from_numpy(split.images[which])[None]
            large = nn.functional.interpolate(digit, (side, side), mode="bilinear")
            images[i, 0, top : top + side, left : left + side] += large[0, 0].numpy()
            x, y = left + side / 2, top + side / 2
            cells[i, int(y // 8) * 4 + int(x // 8)] = [1, split.labels[which], x, y, side, side]
    return images, cells


def with_points(split: Split, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Each digit anywhere in 24 x 24 noisy pixels, and five points (row, column) of its ink: the
    uppermost, lowest, leftmost and rightmost pixel, and the mean."""
    images, _ = pasted(split, generator)
    points = np.zeros((len(images), 5, 2), np.float32)
    for i, image in enumerate(images[:, 0]):
        rows, columns = np.nonzero(image > 0.3)
        ink = np.stack([rows, columns], axis=1)
        ends = rows.argmin(), rows.argmax(), columns.argmin(), columns.argmax()
        points[i] = [*(ink[k] for k in ends), ink.mean(axis=0).round()]
    images += generator.uniform(0, 0.1, images.shape).astype(np.float32)
    return images, points


def class_loss(outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Cross-entropy."""
    return nn.functional.cross_entropy(outputs[0], targets[:, 0].long())


def detection_loss(outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Cross-entropy of the class and the distance of the box."""
    return class_loss(outputs, targets) + 10 * nn.functional.smooth_l1_loss(
        outputs[1], targets[:, 1:]
    )


def pixel_loss(outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Cross-entropy over the pixels, those of digits weighing more."""
    weight = torch.tensor([0.3] + [1.0] * 10)
    return nn.functional.cross_entropy(outputs[0], targets.long(), weight=weight)


def line_loss(outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Connectionist temporal classification."""
    scores = outputs[0].log_softmax(2).transpose(0, 1)
    count = len(targets)
    columns, digits = (torch.full((count,), n) for n in (len(scores), targets.shape[1]))
    return nn.functional.ctc_loss(scores, targets.long(), columns, digits)


def scene_loss(outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Objectness of each cell; the box and the class of those that hold a digit."""
    rows = outputs[0]
    full = targets[..., 0] > 0
    classes = nn.functional.one_hot(targets[full][:, 1].long(), 10).float()
    certain = rows[..., 4:].clamp(1e-6, 1 - 1e-6)
    objects = nn.functional.binary_cross_entropy(certain[..., 0], full.float())
    right = nn.functional.binary_cross_entropy(certain[full][:, 1:], classes)
    boxes = nn.functional.smooth_l1_loss(rows[full][:, :4], targets[full][:, 2:])
    return 2 * objects + 4 * right + boxes / 2


def neighbour_loss(outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """That each vector is nearest to those of its label (supervised contrastive learning)."""
    vectors, labels = outputs[0], targets[:, 0]
    near = vectors @ vectors.T / 0.1 - 1e9 * torch.eye(len(labels))
    alike = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    chance = near.log_softmax(1)
    return -(chance * alike).sum() / alike.sum()


def point_loss(outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Cross-entropy over the places of each point."""
    maps = outputs[0]
    places = (targets[..., 0] * maps.shape[3] + targets[..., 1]).long()
    return nn.functional.cross_entropy(maps.flatten(2).flatten(0, 1), places.flatten())


CLASSIFY = Task(as_they_are, class_loss, zoo_metrics.top1, ("logits",), labelled=True)
DETECT = Task(pasted, detection_loss, zoo_metrics.found, ("scores", "boxes"))
SEGMENT = Task(segmented, pixel_loss, zoo_metrics.pixels_right, ("classes",))
READ = Task(in_lines, line_loss, zoo_metrics.lines_read, ("columns",))
FIND = Task(in_scenes, scene_loss, zoo_metrics.detections, ("detections",))
EMBED = Task(as_they_are, neighbour_loss, zoo_metrics.same_label, ("vectors",), labelled=True)
POINT = Task(with_points, point_loss, zoo_metrics.points_found, ("heatmaps",))

ZOO = {
    "resnet": Recipe(networks.resnet, CLASSIFY, 40),
    "mobilenet_silu": Recipe(lambda: networks.mobilenet(nn.SiLU, excite=False), CLASSIFY, 40),
    "mobilenet_v3": Recipe(lambda: networks.mobilenet(nn.Hardswish, excite=True), CLASSIFY, 40),
    "densenet": Recipe(networks.densenet, CLASSIFY, 40),
    "wide": Recipe(networks.wide, CLASSIFY, 20, finish=networks.with_softmax),
    "lstm": Recipe(lambda: networks.Recurrent(nn.LSTM, 32, False), CLASSIFY, 60),
    "bigru": Recipe(lambda: networks.Recurrent(nn.GRU, 32, True), CLASSIFY, 60),
    "vit": Recipe(networks.Vit, CLASSIFY, 120, 2e-3),
    "mixer": Recipe(networks.Mixer, CLASSIFY, 120, 2e-3),
    "detector": Recipe(networks.Detector, DETECT, 60),
    "unet": Recipe(networks.Unet, SEGMENT, 40),
}
HARD = {
    "mobilenet_v2_wide": Recipe(lambda: hard.spread_mobilenet(nn.ReLU6, False, 2.5), CLASSIFY, 60),
    "mobilenet_v3_wide": Recipe(
        lambda: hard.spread_mobilenet(nn.Hardswish, True, 2.1), CLASSIFY, 60
    ),
    "efficientnet": Recipe(lambda: hard.spread_mobilenet(nn.SiLU, True, 2.2), CLASSIFY, 60),
    "repvgg": Recipe(lambda: hard.repvgg(2.5), CLASSIFY, 40),
    "vit_outliers": Recipe(networks.Vit, CLASSIFY, 120, 2e-3, finish=hard.outliers),
    "crnn": Recipe(lambda: hard.Crnn(1.9), READ, 80),
    "yolox": Recipe(lambda: hard.Yolox(1.8), FIND, 100),
    "embedder": Recipe(lambda: hard.embedder(2.2), EMBED, 60),
    "keypoints": Recipe(lambda: hard.Keypoints(1.8), POINT, 60),
}
ALL = ZOO | HARD


# --- training and export --------------------------------------------------------------------


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The outputs of a network, however many."""
    return (outputs,) if isinstance(outputs, Tensor) else outputs


def trained(recipe: Recipe, split: Split, batch: int = 64) -> nn.Module:
    """The network, trained under a one-cycle schedule, in evaluation mode, BatchNorm folded.

    A scene is made anew for each epoch; digits that are not placed at random move by a pixel.
    """
    torch.manual_seed(SEED)
    generator, places = torch.Generator().manual_seed(SEED), np.random.default_rng(SEED)
    model = recipe.make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=0.02)
    steps = len(split.labels) // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, recipe.epochs * steps)
    model.train()
    for _ in range(recipe.epochs):
        images, targets = map(torch.from_numpy, recipe.task.scene(split, places))
        order = torch.randperm(len(images), generator=generator)
        for chosen in order[: steps * batch].split(batch):
            x = images[chosen]
            x = shift(x, generator) if recipe.task.labelled else x
            loss = recipe.task.loss(as_tuple(model(x)), targets[chosen])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    model.eval()
    folding: list[ConvBn | hard.RepBlock] = []
    for module in model.modules():
        if isinstance(module, (ConvBn, hard.RepBlock)):
            folding.append(module)
    for module in reversed(folding):  # a block after what it is made of
        module.fold()
    return recipe.finish(model)


def export(model: nn.Module, path: Path, example: FloatArray, outputs: tuple[str, ...]) -> None:
    """Write `model` as ONNX with a dynamic batch axis, and check the file."""
    torch.onnx.export(
        model,
        (torch.from_numpy(example),),
        str(path),
        dynamo=False,
        opset_version=OPSET,
        input_names=["input"],
        output_names=[*outputs],
        dynamic_axes={name: {0: "N"} for name in ("input", *outputs)},
    )
    onnx.checker.check_model(onnx.load(path), full_check=True)


def run(path: Path, images: FloatArray) -> list[FloatArray]:
    """The outputs of the model at `path`, by ONNX Runtime on the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, {"input": images})]


def write(name: str, recipe: Recipe, folder: Path) -> float:
    """Train and write one network with its samples; its quality in FP32 on held-out data."""
    data, generator = load_data(SEED), np.random.default_rng(SEED + 1)
    model = trained(recipe, data.train)
    calibration, _ = recipe.task.scene(data.calibration, generator)
    images, targets = recipe.task.scene(data.holdout, generator)
    path = folder / f"{name}.onnx"
    export(model, path, images[:2], recipe.task.outputs)
    labels = {"labels": data.holdout.labels} if recipe.task.labelled else {"targets": targets}
    write_npz(folder / f"{name}_calib.npz", input=calibration)
    write_npz(folder / f"{name}_holdout.npz", input=images, **labels)
    outputs = run(path, images)
    for together, apart in zip(outputs, run(path, images[:1]), strict=True):
        np.testing.assert_allclose(together[:1], apart, rtol=1e-3, atol=1e-4)
    return recipe.task.quality(dict(zip(recipe.task.outputs, outputs, strict=True)), labels)


def main() -> int:
    """Make the networks asked for; 1 where one is too bad to be of use."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=ALL, metavar="NAME")
    parser.add_argument("which", nargs="?", choices=("plain", "hard"), default="plain")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    bad = 0
    for name in arguments.only or (HARD if arguments.which == "hard" else ZOO):
        start = time.perf_counter()
        quality = write(name, ALL[name], arguments.folder)
        bad += quality < LEAST_QUALITY
        print(f"{name:16} {quality:.3f} {time.perf_counter() - start:5.0f} s", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
