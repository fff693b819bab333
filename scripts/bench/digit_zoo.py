"""Train small networks of many kinds on scikit-learn's 8x8 digits, for the benchmarks.

Writes `NAME.onnx`, `NAME_calib.npz` (inputs) and `NAME_holdout.npz` (inputs, and `labels` for a
classifier, else `targets`) into a folder; nothing of it is committed. Needs what
`make_digits_model.py` needs, from which the data, their splits and the training come. One thread,
10 to 90 s for each network.

    python scripts/bench/digit_zoo.py FOLDER [--only NAME ...]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from digits_networks import Attention, ConvBn
from make_digits_model import OPSET, SEED, FloatArray, Split, load_data, shift, write_npz

LEAST_QUALITY = 0.9
"""What a network must reach in FP32 on held-out data; a benchmark on a bad one shows nothing."""


# --- networks -------------------------------------------------------------------------------------

Activation = Callable[[], nn.Module]


def conv_bn(
    inputs: int,
    outputs: int,
    kernel: int,
    act: Activation = nn.ReLU,
    *,
    stride: int = 1,
    groups: int = 1,
) -> ConvBn:
    """Convolution, BatchNorm and `act`."""
    block = ConvBn(inputs, outputs, kernel, stride=stride, groups=groups)
    block.act = act()
    return block


def pooled(features: int, classes: int = 10) -> nn.Sequential:
    """Global average pooling and a linear classifier."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))


# --- convolutional classifiers --------------------------------------------------------------


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = conv_bn(inputs, outputs, 3, stride=stride)
        self.second = conv_bn(outputs, outputs, 3, nn.Identity)
        same = inputs == outputs and stride == 1
        project = conv_bn(inputs, outputs, 1, nn.Identity, stride=stride)
        self.skip: nn.Module = nn.Identity() if same else project

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.skip(x) + self.second(self.first(x)))


def resnet() -> nn.Module:
    """A ResNet of three stages: 15 convolutions."""
    widths = [(16, 16, 1), (16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1)]
    return nn.Sequential(conv_bn(1, 16, 3), *(Residual(*w) for w in widths), pooled(32))


class SqueezeExcite(nn.Module):
    """Weighs each channel by what the whole image holds."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.squeeze = nn.Conv2d(channels, channels // 4, 1)
        self.excite = nn.Conv2d(channels // 4, channels, 1)
        self.gate = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * self.gate(self.excite(torch.relu(self.squeeze(self.pool(x)))))
        return out


class InvertedResidual(nn.Module):
    """MobileNet's second block: expand, filter by channel, excite, project."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, act: Activation, excite: bool
    ) -> None:
        super().__init__()
        inner = 3 * inputs
        self.body = nn.Sequential(
            conv_bn(inputs, inner, 1, act),
            conv_bn(inner, inner, 3, act, stride=stride, groups=inner),
            SqueezeExcite(inner) if excite else nn.Identity(),
            conv_bn(inner, outputs, 1, nn.Identity),
        )
        self.same = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return x + out if self.same else out


def mobilenet(act: Activation, excite: bool) -> nn.Module:
    """A MobileNet of five blocks."""
    widths = [(16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1)]
    blocks = (InvertedResidual(*w, act, excite) for w in widths)
    return nn.Sequential(conv_bn(1, 16, 3, act), *blocks, conv_bn(32, 64, 1, act), pooled(64))


class Dense(nn.Module):
    """DenseNet's layer: what it makes is appended to what it reads."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.wide = conv_bn(inputs, 2 * growth, 1)
        self.narrow = conv_bn(2 * growth, growth, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.narrow(self.wide(x))], dim=1)


def densenet() -> nn.Module:
    """A DenseNet of two blocks of three layers."""
    return nn.Sequential(
        conv_bn(1, 16, 3),
        *(Dense(16 + 12 * i, 12) for i in range(3)),
        conv_bn(52, 24, 1),
        nn.AvgPool2d(2),
        *(Dense(24 + 12 * i, 12) for i in range(3)),
        conv_bn(60, 48, 1),
        pooled(48),
    )


def wide() -> nn.Module:
    """A plain, wide CNN, to logits; `with_softmax` ends it."""
    return nn.Sequential(
        conv_bn(1, 64, 3),
        conv_bn(64, 64, 3),
        nn.MaxPool2d(2),
        conv_bn(64, 96, 3),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(96 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def with_softmax(model: nn.Module) -> nn.Module:
    """`model` with a Softmax at its end."""
    return nn.Sequential(model, nn.Softmax(dim=1))


# --- recurrent classifiers ------------------------------------------------------------------


class Recurrent(nn.Module):
    """A recurrent layer over the rows of an image, between linear layers."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], width: int, bidirectional: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.cell = kind(width, width, batch_first=True, bidirectional=bidirectional)
        self.hidden = nn.Linear(8 * width * (2 if bidirectional else 1), 64)
        self.classifier = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.relu(self.embed(x.flatten(1, 2)))
        states, _ = self.cell(rows)
        logits: Tensor = self.classifier(torch.relu(self.hidden(states.flatten(1))))
        return logits


# --- transformers and mixers ----------------------------------------------------------------


class LayerNorm(nn.Module):
    """Layer normalization written out, as older exporters decompose it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        centered = x - x.mean(dim=-1, keepdim=True)
        variance = centered.pow(2).mean(dim=-1, keepdim=True)
        return centered / torch.sqrt(variance + 1e-5) * self.weight + self.bias


def perceptron(width: int, inner: int) -> nn.Sequential:
    """Linear, GELU, linear."""
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


class Block(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.attention = Attention(width, 4, tokens)
        self.mlp = perceptron(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Vit(nn.Module):
    """A vision transformer over 2x2 patches, with a class token."""

    def __init__(self, width: int = 48, layers: int = 3) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.blocks = nn.Sequential(*(Block(width, 17) for _ in range(layers)))
        self.norm = LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        token = self.token.expand(patches.shape[0], -1, -1)
        features = self.blocks(torch.cat([token, patches], dim=1) + self.position)
        logits: Tensor = self.head(self.norm(features[:, 0]))
        return logits


class Mix(nn.Module):
    """MLP-Mixer's layer: over the tokens, then over the channels."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = perceptron(tokens, 2 * tokens)
        self.channels = perceptron(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.channels(self.norm2(x))
        return out


class Mixer(nn.Module):
    """An MLP-Mixer over 2x2 patches."""

    def __init__(self, width: int = 48, layers: int = 3) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.layers = nn.Sequential(*(Mix(width, 16) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        logits: Tensor = self.head(self.norm(self.layers(tokens)).mean(dim=1))
        return logits


# --- dense prediction -----------------------------------------------------------------------


class Detector(nn.Module):
    """Class scores and the box (left, top, right, bottom; 0 to 1) of the one digit in an image."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            conv_bn(1, 16, 3, nn.LeakyReLU),
            conv_bn(16, 32, 3, nn.LeakyReLU, stride=2),
            conv_bn(32, 32, 3, nn.LeakyReLU),
            conv_bn(32, 48, 3, nn.LeakyReLU, stride=2),
            conv_bn(48, 48, 3, nn.LeakyReLU),
            conv_bn(48, 64, 3, nn.LeakyReLU, stride=2),
        )
        self.classes = nn.Sequential(conv_bn(64, 64, 3), pooled(64))
        self.boxes = nn.Sequential(
            conv_bn(64, 16, 1), nn.Flatten(), nn.Linear(16 * 9, 32), nn.ReLU(), nn.Linear(32, 4)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(x)
        return self.classes(features), torch.sigmoid(self.boxes(features))


class Unet(nn.Module):
    """A U-Net of two levels: class scores for each pixel, the background's first."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(conv_bn(1, 16, 3), conv_bn(16, 16, 3))
        self.down2 = nn.Sequential(conv_bn(16, 32, 3, stride=2), conv_bn(32, 32, 3))
        self.bottom = nn.Sequential(conv_bn(32, 64, 3, stride=2), conv_bn(64, 64, 3))
        self.enlarge2 = nn.ConvTranspose2d(64, 32, 2, 2)
        self.up2 = nn.Sequential(conv_bn(64, 32, 3), conv_bn(32, 32, 3))
        self.enlarge1 = nn.Upsample(scale_factor=2)
        self.up1 = nn.Sequential(conv_bn(48, 16, 3), conv_bn(16, 16, 3))
        self.head = nn.Conv2d(16, 11, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(first)
        up = self.enlarge2(self.bottom(second))
        up = self.up2(torch.cat([up, second], dim=1))
        up = self.up1(torch.cat([self.enlarge1(up), first], dim=1))
        out: Tensor = self.head(up)
        return out


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
    quality: Callable[[Sequence[FloatArray], FloatArray], float]
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


def classes_right(outputs: Sequence[FloatArray], targets: FloatArray) -> float:
    """Top-1."""
    return float((outputs[0].argmax(axis=1) == targets[:, 0]).mean())


def boxes_right(outputs: Sequence[FloatArray], targets: FloatArray) -> float:
    """The share of images with the right label and a box that overlaps (IoU) by half or more."""
    boxes, true = outputs[1], targets[:, 1:]
    low, high = np.maximum(boxes[:, :2], true[:, :2]), np.minimum(boxes[:, 2:], true[:, 2:])
    both = np.prod(np.maximum(high - low, 0), axis=1)
    union = sum(np.prod(x[:, 2:] - x[:, :2], axis=1) for x in (boxes, true)) - both
    return float(((outputs[0].argmax(axis=1) == targets[:, 0]) & (both >= union / 2)).mean())


def pixels_right(outputs: Sequence[FloatArray], targets: FloatArray) -> float:
    """The share of the digits' pixels with the right class; targets are 0 for the background."""
    return float((outputs[0].argmax(axis=1) == targets)[targets > 0].mean())


CLASSIFY = Task(as_they_are, class_loss, classes_right, ("logits",), labelled=True)
DETECT = Task(pasted, detection_loss, boxes_right, ("scores", "boxes"))
SEGMENT = Task(segmented, pixel_loss, pixels_right, ("classes",))
ZOO = {
    "resnet": Recipe(resnet, CLASSIFY, 40),
    "mobilenet_silu": Recipe(lambda: mobilenet(nn.SiLU, excite=False), CLASSIFY, 40),
    "mobilenet_v3": Recipe(lambda: mobilenet(nn.Hardswish, excite=True), CLASSIFY, 40),
    "densenet": Recipe(densenet, CLASSIFY, 40),
    "wide": Recipe(wide, CLASSIFY, 20, finish=with_softmax),
    "lstm": Recipe(lambda: Recurrent(nn.LSTM, 32, False), CLASSIFY, 60),
    "bigru": Recipe(lambda: Recurrent(nn.GRU, 32, True), CLASSIFY, 60),
    "vit": Recipe(Vit, CLASSIFY, 120, 2e-3),
    "mixer": Recipe(Mixer, CLASSIFY, 120, 2e-3),
    "detector": Recipe(Detector, DETECT, 60),
    "unet": Recipe(Unet, SEGMENT, 40),
}
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
    for module in list(model.modules()):
        if isinstance(module, ConvBn):
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
    return recipe.task.quality(outputs, targets)


def main() -> int:
    """Make the networks asked for; 1 where one is too bad to be of use."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=ZOO, metavar="NAME")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    bad = 0
    for name in arguments.only or ZOO:
        start = time.perf_counter()
        quality = write(name, ZOO[name], arguments.folder)
        bad += quality < LEAST_QUALITY
        print(f"{name:16} {quality:.3f} {time.perf_counter() - start:5.0f} s", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
