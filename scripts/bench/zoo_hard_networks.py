"""Networks that lose much in INT8 with one scale per activation tensor, as public ones of their
kind do, small enough to train in about a minute.

What makes them hard is what makes those hard. Most have channels of very unequal range before a
layer whose BatchNorm undoes any scale: in large networks the gains of BatchNorm drift apart there
during long training. Here they are spread from the start (`Spread`) over two or three decades, and
the network is trained with them. `outliers` rescales a trained transformer exactly: a channel of a
LayerNorm's gain times a factor, what reads it divided by it.
"""

from __future__ import annotations

import torch
from digits_networks import ConvBn
from torch import Tensor, nn
from zoo_networks import Activation, InvertedResidual, SqueezeExcite, Vit, conv_bn, pooled


class Spread(ConvBn):
    """Convolution, BatchNorm times a fixed gain per channel (log-uniform, up to `top`), and `act`;
    to be followed by a layer with BatchNorm that reads each channel alone."""

    gains: Tensor | None

    def __init__(
        self, inputs: int, outputs: int, kernel: int, act: Activation, decades: float, top: float
    ) -> None:
        super().__init__(inputs, outputs, kernel)
        self.act = act()
        self.register_buffer("gains", top * spread(outputs, decades).reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        normalized = self.bn(self.conv(x))
        out: Tensor = self.act(normalized if self.gains is None else self.gains * normalized)
        return out

    def fold(self) -> None:
        super().fold()
        assert self.conv.bias is not None and self.gains is not None
        with torch.no_grad():
            self.conv.weight *= self.gains.unsqueeze(-1)
            self.conv.bias *= self.gains.flatten()
        self.gains = None


def spread(count: int, decades: float) -> Tensor:
    """Gains between 10^-decades and 1, evenly by their logarithm, in random order."""
    return 10 ** (-decades * torch.randperm(count) / (count - 1))


class SpreadResidual(InvertedResidual):
    """MobileNet's second block whose depthwise convolution reads channels of unequal range."""

    def __init__(
        self,
        widths: tuple[int, int, int],
        act: Activation,
        excite: bool,
        decades: float,
        top: float,
    ) -> None:
        super().__init__(*widths, act, excite)
        self.body[0] = Spread(widths[0], 3 * widths[0], 1, act, decades, top)


WIDTHS = [(16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1)]


def spread_mobilenet(act: Activation, excite: bool, decades: float, top: float = 2.0) -> nn.Module:
    """MobileNetV2 (ReLU6), MobileNetV3 (hard-swish, excited) or EfficientNet (SiLU, excited) of
    five blocks."""
    blocks = (SpreadResidual(w, act, excite, decades, top) for w in WIDTHS)
    return nn.Sequential(conv_bn(1, 16, 3, act), *blocks, conv_bn(32, 64, 1, act), pooled(64))


# --- RepVGG ---------------------------------------------------------------------------------


class RepBlock(nn.Module):
    """A 3x3 and a 1x1 convolution and the identity, each with BatchNorm, added; `fold` makes one
    3x3 convolution of them, whose weights hold what differs between the three."""

    gains: Tensor

    def __init__(self, inputs: int, outputs: int, stride: int, decades: float) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            ConvBn(inputs, outputs, kernel, stride=stride) for kernel in (3, 1)
        )
        for branch in self.branches:
            branch.act = nn.Identity()
        same = inputs == outputs and stride == 1
        self.skip = nn.BatchNorm2d(outputs) if same else None
        self.stride = stride
        self.register_buffer("gains", spread(outputs, decades).reshape(-1, 1, 1))
        self.merged: nn.Conv2d | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.merged is not None:
            return torch.relu(self.merged(x))
        total = sum(branch(x) for branch in self.branches)
        if self.skip is not None:
            total = total + self.skip(x)
        return torch.relu(self.gains * total)

    def fold(self) -> None:
        """Merge the branches, folded already, into one convolution."""
        large, small = (branch.conv for branch in self.branches)
        weight = large.weight.detach() + nn.functional.pad(small.weight.detach(), [1] * 4)
        bias = large.bias.detach() + small.bias.detach()
        if self.skip is not None:
            assert self.skip.running_var is not None and self.skip.running_mean is not None
            gain = self.skip.weight.detach() / (self.skip.running_var + self.skip.eps).sqrt()
            index = torch.arange(len(gain))
            weight[index, index, 1, 1] += gain
            bias += self.skip.bias.detach() - gain * self.skip.running_mean
        merged = nn.Conv2d(weight.shape[1], len(weight), 3, self.stride, 1)
        with torch.no_grad():
            merged.weight.copy_(weight * self.gains.unsqueeze(-1))
            merged.bias.copy_(bias * self.gains.flatten())  # type: ignore[union-attr]
        self.merged = merged


def repvgg(decades: float) -> nn.Module:
    """A RepVGG of seven blocks."""
    widths = [(1, 24, 1), (24, 24, 1), (24, 32, 2), (32, 32, 1), (32, 48, 2), (48, 48, 1)]
    blocks = (RepBlock(*w, decades) for w in widths)
    return nn.Sequential(*blocks, RepBlock(48, 48, 1, 0.0), pooled(48))


# --- transformer ----------------------------------------------------------------------------


def outliers(model: nn.Module, channels: int = 3, factor: float = 40.0) -> nn.Module:
    """A trained `Vit` with the same function, but some channels of each normalization, of what the
    attention mixes and so of what products read are `factor` times as large."""
    assert isinstance(model, Vit)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for block in model.blocks:
            attention = block.attention
            readers = (attention.query, attention.key, attention.value)
            for norm, linears in ((block.norm1, readers), (block.norm2, (block.mlp[0],))):
                chosen = torch.randperm(len(norm.weight), generator=generator)[:channels]
                norm.weight[chosen] *= factor
                norm.bias[chosen] *= factor
                for linear in linears:
                    linear.weight[:, chosen] /= factor
            chosen = torch.randperm(len(attention.value.weight), generator=generator)[:channels]
            attention.value.weight[chosen] *= factor
            attention.value.bias[chosen] *= factor
            attention.out.weight[:, chosen] /= factor
    return model


# --- lines and scenes -----------------------------------------------------------------------


class Crnn(nn.Module):
    """A recognizer of lines: depthwise convolutions with hard-swish and excitation, then a GRU over
    the columns; for each column the scores of a blank and ten digits."""

    def __init__(self, decades: float, top: float = 2.0) -> None:
        super().__init__()
        act = nn.Hardswish
        blocks = [(16, 24, (2, 2)), (24, 24, (1, 1)), (24, 32, (2, 1)), (32, 32, (1, 1))]
        layers: list[nn.Module] = [conv_bn(1, 16, 3, act)]
        for inputs, outputs, stride in blocks:
            inner = 3 * inputs
            filtered = conv_bn(inner, inner, 3, act, groups=inner)
            filtered.conv.stride = stride
            layers += [Spread(inputs, inner, 1, act, decades, top), filtered, SqueezeExcite(inner)]
            layers += [conv_bn(inner, outputs, 1, nn.Identity)]
        self.features = nn.Sequential(*layers, conv_bn(32, 48, 1, act))
        self.rows = conv_bn(48 * 3, 48, 1, act)
        self.cell = nn.GRU(48, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, 11)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.rows(self.features(x).flatten(1, 2).unsqueeze(2)).squeeze(2)
        states, _ = self.cell(maps.transpose(1, 2))
        scores: Tensor = self.head(states)
        return scores


class Yolox(nn.Module):
    """A detector of digits like YOLOX-nano: SiLU, depthwise convolutions, heads apart for classes
    and boxes, and for each cell of a grid of 8 pixels one row (centre and size in pixels,
    objectness, ten classes) in one output."""

    grid: Tensor

    def __init__(self, decades: float, top: float = 2.0, cells: int = 4) -> None:
        super().__init__()
        act = nn.SiLU

        def separable(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
            return nn.Sequential(
                conv_bn(inputs, inputs, 3, act, stride=stride, groups=inputs),
                Spread(inputs, outputs, 1, act, decades, top),
            )

        self.backbone = nn.Sequential(
            Spread(1, 16, 3, act, decades, top),
            separable(16, 32, 2),
            separable(32, 32),
            separable(32, 64, 2),
            separable(64, 64),
            separable(64, 64, 2),
            separable(64, 64),
        )
        self.branches = nn.ModuleList(
            nn.Sequential(
                separable(64, 64), conv_bn(64, 64, 3, act, groups=64), conv_bn(64, 48, 1, act)
            )
            for _ in range(2)
        )
        self.boxes, self.objects = nn.Conv2d(48, 4, 1), nn.Conv2d(48, 1, 1)
        self.classes = nn.Conv2d(48, 10, 1)
        rows, columns = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
        self.register_buffer("grid", torch.stack([columns, rows], -1).reshape(-1, 2).float())

    def forward(self, x: Tensor) -> Tensor:
        features = self.backbone(x)
        boxes, classes = (branch(features) for branch in self.branches)
        scores = torch.cat([self.objects(boxes), self.classes(classes)], 1)
        raw = self.boxes(boxes).flatten(2).transpose(1, 2)
        centre, size = (raw[..., :2] + self.grid) * 8, torch.exp(raw[..., 2:]) * 8
        certain = torch.sigmoid(scores).flatten(2).transpose(1, 2)
        return torch.cat([centre, size, certain], -1)


# --- embeddings and keypoints ---------------------------------------------------------------


class Unit(nn.Module):
    """Vectors brought to length one."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x / x.square().sum(1, keepdim=True).sqrt()
        return out


def embedder(decades: float) -> nn.Module:
    """`spread_mobilenet` with SiLU and excitation, that gives a vector of length one."""
    model = spread_mobilenet(nn.SiLU, True, decades)
    assert isinstance(model, nn.Sequential)
    return nn.Sequential(*model[:-1], pooled(64, 16), Unit())


class Keypoints(nn.Module):
    """A heatmap for each of five points, at the resolution of the image."""

    def __init__(self, decades: float, top: float = 2.0) -> None:
        super().__init__()
        act = nn.SiLU

        def separable(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
            return nn.Sequential(
                Spread(inputs, outputs, 1, act, decades, top),
                conv_bn(outputs, outputs, 3, act, stride=stride, groups=outputs),
            )

        self.fine = nn.Sequential(conv_bn(1, 16, 3, act), separable(16, 24))
        self.coarse = nn.Sequential(
            separable(24, 32, 2), separable(32, 48), separable(48, 48, 2), separable(48, 48)
        )
        self.up = nn.Upsample(scale_factor=4, mode="nearest")
        self.join = nn.Sequential(separable(72, 48), separable(48, 48), conv_bn(48, 32, 1, act))
        self.head = nn.Conv2d(32, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        out: Tensor = self.head(self.join(torch.cat([fine, self.up(self.coarse(fine))], 1)))
        return out
