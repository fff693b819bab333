"""Regenerate the real networks and data bundled in ``calib_data/``.

A user of qdebug never needs this script: its results are committed.  To run it you need
``torch``, ``scikit-learn``, ``onnx``, ``onnxruntime`` and ``numpy``::

    python scripts/make_digits_model.py [--output calib_data]

It trains two small networks on scikit-learn's 8x8 handwritten digits (no download) and writes

* ``digits_cnn.onnx``: a depthwise-separable CNN in the manner of MobileNet.  It is trained with
  BatchNorm, which is folded into the convolutions before the export.
* ``digits_encoder.onnx``: a small pre-norm transformer encoder over 2x2 pixel patches.
* ``digits_calib.npz``: ``input``, 128 images of the training split.
* ``digits_holdout.npz``: ``input`` and ``labels``, 500 images that no training step and no choice
  of a hyperparameter ever saw.  (Hyperparameters were chosen on a third, "development", split.)
* ``manifest.json``: where the data comes from, checksums, and the measured FP32 accuracy.

No weight is edited by hand.  The CNN's trouble under INT8 with per-tensor weight scales is what
training left there.  A pointwise layer feeds a depthwise layer whose BatchNorm undoes any scale, so
weight decay shrinks the channels that matter little; the variance of their depthwise outputs
becomes tiny, and folding BatchNorm multiplies their depthwise weights by its inverse square root.
The CNN's learning rate and decay (both high) were picked, on the development split, so that this
well-known effect shows clearly.  How much is lost varies widely from one training to the next:
neighbouring settings, tried while choosing, lost from 2 to 86 points of top-1.

On one machine with one set of versions, the files come out the same to the byte.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import platform
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import sklearn
import torch
from digits_networks import DigitsCnn, DigitsEncoder, decay_groups
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

SEED = 20240
OPSET = 17
HOLDOUT = 500
DEVELOPMENT = 250
CALIBRATION = 128

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


# --- data -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Images (N x 1 x 8 x 8, values 0..1) and their labels."""

    images: FloatArray
    labels: IntArray


@dataclass(frozen=True)
class Data:
    """The disjoint, stratified splits; ``calibration`` is a subset of ``train``."""

    train: Split
    development: Split
    holdout: Split
    calibration: Split


def take(split: Split, indices: IntArray) -> Split:
    """The samples of ``split`` at ``indices``."""
    return Split(split.images[indices], split.labels[indices])


def cut(split: Split, size: int, seed: int) -> tuple[Split, Split]:
    """Split off ``size`` samples, stratified by label: (the rest, those samples)."""
    rest, part = train_test_split(
        np.arange(len(split.labels)), test_size=size, random_state=seed, stratify=split.labels
    )
    return take(split, rest), take(split, part)


def load_data(seed: int) -> Data:
    """Load the digits and split them."""
    bunch = load_digits()
    images = (bunch.images / 16.0).astype(np.float32)[:, None, :, :]
    everything = Split(images, bunch.target.astype(np.int64))
    rest, holdout = cut(everything, HOLDOUT, seed)
    train, development = cut(rest, DEVELOPMENT, seed)
    _, calibration = cut(train, CALIBRATION, seed)
    return Data(train, development, holdout, calibration)


# --- training -------------------------------------------------------------------------------


def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Move the whole batch by at most one pixel each way, filling with the background."""
    down, right = torch.randint(0, 3, (2,), generator=generator).tolist()
    return nn.functional.pad(images, (1, 1, 1, 1))[:, :, down : down + 8, right : right + 8]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    split: Split,
    *,
    epochs: int,
    batch: int,
    seed: int,
) -> None:
    """Train with cross-entropy under a one-cycle cosine schedule; leaves evaluation mode on."""
    images, labels = torch.from_numpy(split.images), torch.from_numpy(split.labels)
    generator = torch.Generator().manual_seed(seed)
    steps = len(labels) // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        [group["lr"] for group in optimizer.param_groups],
        epochs * steps,
        cycle_momentum=False,
    )
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=generator)
        for step in range(steps):
            chosen = order[step * batch : (step + 1) * batch]
            logits = model(shift(images[chosen], generator))
            loss = nn.functional.cross_entropy(logits, labels[chosen])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    model.eval()


def make_cnn(split: Split, seed: int) -> nn.Module:
    """Train the CNN and fold its BatchNorm."""
    torch.manual_seed(seed)
    model = DigitsCnn()
    groups = decay_groups(model, weight_decay=0.03)
    optimizer = torch.optim.SGD(groups, lr=0.4, momentum=0.9, nesterov=True)
    train(model, optimizer, split, epochs=80, batch=64, seed=seed)
    model.fold()
    return model


def make_encoder(split: Split, seed: int) -> nn.Module:
    """Train the encoder."""
    torch.manual_seed(seed)
    model = DigitsEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    train(model, optimizer, split, epochs=150, batch=32, seed=seed)
    return model


# --- output ---------------------------------------------------------------------------------


def export(model: nn.Module, path: Path) -> None:
    """Write ``model`` as ONNX with a dynamic batch axis, and check the file."""
    torch.onnx.export(
        model,
        (torch.zeros(2, 1, 8, 8),),
        str(path),
        dynamo=False,
        opset_version=OPSET,
        input_names=["input"],
        output_names=["logits"],
        dynamic_axes={"input": {0: "N"}, "logits": {0: "N"}},
    )
    onnx.checker.check_model(onnx.load(path), full_check=True)


def run(path: Path, images: FloatArray) -> FloatArray:
    """The logits of the model at ``path``, by ONNX Runtime on the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["logits"], {"input": images})[0], dtype=np.float32)


def top1(path: Path, split: Split) -> float:
    """The share of ``split`` that the model at ``path`` labels rightly."""
    return float((run(path, split.images).argmax(axis=1) == split.labels).mean())


def check_batches(path: Path, images: FloatArray) -> None:
    """Raise unless a batch of seven gives what the seven images give one by one."""
    together = run(path, images[:7])
    apart = np.concatenate([run(path, images[i : i + 1]) for i in range(7)])
    np.testing.assert_allclose(together, apart, rtol=1e-4, atol=1e-4)


def write_npz(path: Path, **arrays: npt.NDArray[Any]) -> None:
    """``np.savez_compressed`` without the time stamps, so that equal arrays give equal files."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, buffer.getvalue())


def describe_file(path: Path) -> dict[str, Any]:
    """The manifest's entry for one file."""
    content = path.read_bytes()
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def describe_model(path: Path, model: nn.Module, holdout: Split) -> dict[str, Any]:
    """The manifest's entry for one network: what was measured on the exported file."""
    return {
        "fp32_top1": round(top1(path, holdout), 6),
        "opset": onnx.load(path).opset_import[0].version,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def write_manifest(output: Path, names: list[str], models: dict[str, Any], seed: int) -> None:
    """Write ``manifest.json``."""
    manifest = {
        "schema": "qdebug.calib_data/1",
        "source": {
            "name": "Optical Recognition of Handwritten Digits (UCI), its test set as shipped in "
            "scikit-learn (sklearn.datasets.load_digits)",
            "authors": "E. Alpaydin, C. Kaynak",
            "url": "https://archive.ics.uci.edu/dataset/80/"
            "optical+recognition+of+handwritten+digits",
            "doi": "10.24432/C50P49",
            "license": "CC BY 4.0",
            "changes": "pixel values divided by 16; a stratified selection of the images",
        },
        "files": {name: describe_file(output / name) for name in names},
        "models": models,
        "made_by": "scripts/make_digits_model.py",
        "seed": seed,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "onnx": onnx.__version__,
            "onnxruntime": ort.__version__,
            "scikit-learn": sklearn.__version__,
            "numpy": np.__version__,
        },
    }
    text = json.dumps(manifest, indent=2) + "\n"
    (output / "manifest.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Train, export, measure and write everything."""
    parser = argparse.ArgumentParser(description="Regenerate qdebug's bundled digits networks.")
    default = Path(__file__).resolve().parent.parent / "calib_data"
    parser.add_argument("--output", type=Path, default=default, help="folder to write into")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    data = load_data(SEED)
    write_npz(output / "digits_calib.npz", input=data.calibration.images)
    write_npz(output / "digits_holdout.npz", input=data.holdout.images, labels=data.holdout.labels)
    models: dict[str, Any] = {}
    for name, make in (("digits_cnn.onnx", make_cnn), ("digits_encoder.onnx", make_encoder)):
        model, path = make(data.train, SEED), output / name
        export(model, path)
        check_batches(path, data.development.images)
        models[name] = describe_model(path, model, data.holdout)
        print(name, models[name], f"development top1 {top1(path, data.development):.4f}")
    write_manifest(output, [*models, "digits_calib.npz", "digits_holdout.npz"], models, SEED)


if __name__ == "__main__":
    main()
