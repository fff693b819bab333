"""The two networks that `make_digits_model.py` trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

# --- the CNN --------------------------------------------------------------------------------


class ConvBn(nn.Module):
    """Convolution, BatchNorm and ReLU6."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False
        )
        self.bn: nn.Module = nn.BatchNorm2d(outputs)
        self.act: nn.Module = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.bn(self.conv(x)))
        return out

    def fold(self) -> None:
        """Fold BatchNorm into the convolution (in evaluation mode only)."""
        assert isinstance(self.bn, nn.BatchNorm2d)
        self.conv = fuse_conv_bn_eval(self.conv, self.bn)
        self.bn = nn.Identity()


class Separable(nn.Module):
    """MobileNet's block: depthwise 3x3, pointwise 1x1, and a skip where the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.depthwise = ConvBn(inputs, inputs, 3, stride=stride, groups=inputs)
        self.pointwise = ConvBn(inputs, outputs, 1)
        self.skip = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.pointwise(self.depthwise(x))
        return x + out if self.skip else out


class DigitsCnn(nn.Module):
    """A small MobileNet with skips, for 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBn(1, 24, 3)
        self.blocks = nn.Sequential(
            Separable(24, 32, 1),
            Separable(32, 32, 1),
            Separable(32, 48, 2),
            Separable(48, 48, 1),
            Separable(48, 64, 2),
            Separable(64, 64, 1),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(self.stem(x))
        logits: Tensor = self.classifier(self.pool(features).flatten(1))
        return logits

    def fold(self) -> None:
        """Fold every BatchNorm into its convolution."""
        for module in self.modules():
            if isinstance(module, ConvBn):
                module.fold()


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay everywhere but in the depthwise layers, as the MobileNet paper advises."""
    depthwise = {
        parameter
        for module in model.modules()
        if isinstance(module, ConvBn) and module.conv.groups > 1
        for parameter in module.parameters()
    }
    others = [parameter for parameter in model.parameters() if parameter not in depthwise]
    kept = [parameter for parameter in model.parameters() if parameter in depthwise]
    return [
        {"params": others, "weight_decay": weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]


# --- the encoder ----------------------------------------------------------------------------


class Attention(nn.Module):
    """Multi-head self-attention, written out so that it exports to plain MatMul and Softmax."""

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.heads, self.tokens, self.size = heads, tokens, width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def split_heads(self, x: Tensor) -> Tensor:
        """B x tokens x width to B x heads x tokens x size."""
        return x.reshape(-1, self.tokens, self.heads, self.size).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        query = self.split_heads(self.query(x)) * self.size**-0.5
        key, value = self.split_heads(self.key(x)), self.split_heads(self.value(x))
        weights = torch.softmax(query @ key.transpose(2, 3), dim=-1)
        mixed = (weights @ value).transpose(1, 2).reshape(-1, self.tokens, self.heads * self.size)
        out: Tensor = self.out(mixed)
        return out


class EncoderLayer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, tokens)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.gelu = nn.GELU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.down(self.gelu(self.up(self.norm2(x))))
        return out


class DigitsEncoder(nn.Module):
    """A transformer encoder over the sixteen 2x2 patches of an image."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.position = nn.Parameter(0.02 * torch.randn(1, 16, width))
        self.layers = nn.Sequential(*(EncoderLayer(width, heads, 16) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.reshape(-1, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(-1, 16, 4)
        features = self.norm(self.layers(self.embed(patches) + self.position))
        logits: Tensor = self.classifier(features.mean(dim=1))
        return logits
