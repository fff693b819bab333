"""The networks that `digit_zoo.py` trains: one of each common kind, small enough to train in
less than a minute."""

from __future__ import annotations

from collections.abc import Callable

import torch
from digits_networks import Attention, ConvBn
from torch import Tensor, nn

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
