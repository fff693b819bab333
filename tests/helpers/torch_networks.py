"""Small networks of PyTorch, their exports, and faults that are planted in these."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional


class Cnn(nn.Module):
    shape = (3, 10, 10)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.layer1 = nn.Sequential(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        )
        self.drop, self.fc = nn.Dropout(0.3), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.fc(self.drop(self.layer1(self.stem(x)).mean((2, 3))))


class Unet(nn.Module):
    shape = (3, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.align = False
        self.down, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.up = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        h = functional.relu(self.norm(self.down(x)))
        h = functional.interpolate(h, scale_factor=2, mode="bilinear", align_corners=self.align)
        return self.up(h)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.ff, self.act = nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU()
        self.out, self.drop = nn.Linear(32, 16), nn.Dropout(0.2)

    def forward(self, x: Any) -> Any:
        return x + self.drop(self.out(self.act(self.ff(self.norm(x)))))


class Transformer(nn.Module):
    shape = (5, 16)

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Mlp(nn.Module):
    shape = (12,)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Linear(24, 6)

    def forward(self, x: Any) -> Any:
        return self.b(functional.relu(self.norm(self.a(x))))


class Branch(nn.Module):
    """A network in which tracing freezes a branch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.m = inner

    def forward(self, x: Any) -> Any:
        y = self.m(x)
        return y * 1.5 if x.mean() > 0 else y


NETWORKS = {"cnn": Cnn, "unet": Unet, "transformer": Transformer, "mlp": Mlp}


def network(kind: str, seed: int = 0) -> Any:
    """In inference mode, with statistics as after a training."""
    torch.manual_seed(seed)
    made = NETWORKS[kind]()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)  # type: ignore[operator,union-attr]
            module.running_var.uniform_(0.05, 1.5)  # type: ignore[operator,union-attr]
            module.weight.data.uniform_(0.5, 1.5)
    return made.eval()


def exported(module: Any, kind: str) -> onnx.ModelProto:
    """By TorchScript's converter, which needs no other package than onnx."""
    file, shape = io.BytesIO(), NETWORKS[kind].shape  # type: ignore[attr-defined]
    axes = {"x": {0: "n"}, "y": {0: "n"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.zeros(1, *shape),), file, dynamo=False, input_names=["x"],
            output_names=["y"], dynamic_axes=axes,
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def samples(kind: str, count: int = 8) -> dict[str, Any]:
    shape = NETWORKS[kind].shape  # type: ignore[attr-defined]
    return {"x": np.random.default_rng(1).normal(size=(count, *shape)).astype(np.float32)}


def planted(kind: str, fault: str) -> tuple[Any, onnx.ModelProto]:
    """A module as it runs, and an export in which one thing is otherwise."""
    module, other = network(kind), network(kind)
    if fault == "training-mode":
        return module.train(), exported(other, kind)
    if fault == "frozen":
        branch = Branch(module).eval()
        return branch, exported(branch, kind)
    if fault == "epsilon":
        for part in other.modules():
            if hasattr(part, "eps"):
                part.eps = 1e-3
    elif fault == "other-weights":
        other = network(kind, seed=5)
    elif fault == "half-weights":
        other = other.half().float()
    elif fault == "interpolation":
        other.align = True
    return module, exported(other, kind)
