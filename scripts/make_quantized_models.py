"""Make the quantized models of `tests/producers/` with the tools that users quantize with.

A user of qdebug never needs this script: its results are committed. It needs an environment of its
own, since the tools are heavy::

    python -m venv producers
    producers/bin/pip install torch torchao onnxscript scikit-learn nncf aimet-onnx \\
        nvidia-modelopt onnxslim onnx-graphsurgeon lief onnxconverter-common ml_dtypes \\
        cppimport polygraphy
    producers/bin/python scripts/make_quantized_models.py

It trains a small residual network on scikit-learn's digits, exports it, and quantizes it with each
tool, calibrated on `calib_data/digits_calib.npz`. `manifest.json` has the versions and hashes.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import importlib.metadata
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

DATA = Path(__file__).parents[1] / "calib_data"
SEED, EPOCHS, OPSET = 3, 60, 18


class Network(nn.Module):
    """Two convolutions with a residual Add, a strided one, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(1, 8, 3, padding=1)
        self.c2 = nn.Conv2d(8, 8, 3, padding=1)
        self.c3 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.fc = nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        a = torch.relu(self.c1(image))
        b = torch.relu(self.c2(a) + a)
        c = torch.relu(self.c3(b))
        return self.fc(c.mean((2, 3)))


def trained() -> Network:
    """The network, trained on the digits that `digits_holdout.npz` does not hold."""
    torch.manual_seed(SEED)
    held = {a.tobytes() for a in np.load(DATA / "digits_holdout.npz")["input"].astype(np.float32)}
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    kept = np.array([image.tobytes() not in held for image in images])
    x, y = torch.from_numpy(images[kept]), torch.from_numpy(digits.target[kept])
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[part]), y[part]).backward()
            optimizer.step()
    return network.eval()


def calibration() -> Any:
    return np.load(DATA / "digits_calib.npz")["input"][:64].astype(np.float32)


def export(network: nn.Module, path: Path) -> None:
    """What PyTorch's exporter makes: a batch of one, tensors named by it."""
    torch.onnx.export(
        network, (torch.from_numpy(calibration()[:1]),), path, dynamo=True, opset_version=OPSET,
        external_data=False, input_names=["input"], output_names=["logits"],
    )  # fmt: skip


def drop_metadata(path: Path) -> None:
    """PyTorch writes for each node where in the sources it was called: paths of this machine."""
    proto = onnx.load(path)
    del proto.metadata_props[:]
    for part in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer,
                 *proto.graph.input, *proto.graph.output):  # fmt: skip
        del part.metadata_props[:]
        part.doc_string = ""
    onnx.save(proto, path)


def with_nncf(fp32: Path, out: Path, _: Network) -> None:
    import nncf

    feeds = nncf.Dataset([{"input": image[None]} for image in calibration()])
    onnx.save(nncf.quantize(onnx.load(fp32), feeds, subset_size=64), out)


def with_aimet(fp32: Path, out: Path, _: Network) -> None:
    from aimet_onnx.quantsim import QuantizationSimModel

    simulated = QuantizationSimModel(onnx.load(fp32), param_type="int8", activation_type="int8")
    simulated.compute_encodings([{"input": image[None]} for image in calibration()])
    onnx.save(simulated.to_onnx_qdq(), out)


def with_modelopt(fp32: Path, out: Path, _: Network) -> None:
    from modelopt.onnx.quantization import quantize

    given = out.with_suffix(".input.onnx")  # it writes to the file it is given
    shutil.copy(fp32, given)
    quantize(
        str(given), quantize_mode="int8", calibration_data={"input": calibration()},
        calibration_method="max", calibration_eps=["cpu"], high_precision_dtype="fp32",
        output_path=str(out),
    )  # fmt: skip
    given.unlink()


def with_pt2e(_: Path, out: Path, network: Network) -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    one = (torch.from_numpy(calibration()[:1]),)
    graph = torch.export.export(network, one).module()
    settings = x86.get_default_x86_inductor_quantization_config()
    prepared = prepare_pt2e(graph, x86.X86InductorQuantizer().set_global(settings))
    for image in calibration():
        prepared(torch.from_numpy(image[None]))
    export(convert_pt2e(prepared), out)


def with_fake_quantization(_: Path, out: Path, network: Network) -> None:
    """Quantization-aware modules, exported by the older exporter: weights stay FP32."""
    from torch.ao import quantization as ao
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    one = (torch.from_numpy(calibration()[:1]),)
    activation = ao.FakeQuantize.with_args(
        observer=ao.MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.quint8
    )
    config = ao.QConfig(activation=activation, weight=ao.default_per_channel_weight_fake_quant)
    mapping = ao.QConfigMapping().set_global(config)
    prepared = prepare_qat_fx(copy.deepcopy(network).train(), mapping, one).eval()
    for image in calibration():
        prepared(torch.from_numpy(image[None]))
    prepared.apply(ao.disable_observer)
    torch.onnx.export(
        prepared, one, out, dynamo=False, opset_version=17, input_names=["input"],
        output_names=["logits"],
    )  # fmt: skip


PRODUCERS: dict[str, tuple[str, Callable[[Path, Path, Network], None]]] = {
    "nncf": ("nncf", with_nncf),
    "aimet": ("aimet-onnx", with_aimet),
    "modelopt": ("nvidia-modelopt", with_modelopt),
    "torch_pt2e": ("torchao", with_pt2e),
    "torch_fake_quantize": ("torch", with_fake_quantization),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parents[1] / "tests" / "producers"
    parser.add_argument("--output", type=Path, default=default)
    folder: Path = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    network = trained()
    fp32 = folder / "fp32.onnx"
    export(network, fp32)
    made = {"fp32": ("torch", fp32)}
    for name, (package, quantize) in PRODUCERS.items():
        path = folder / f"{name}.onnx"
        quantize(fp32, path, network)
        made[name] = (package, path)
    for _, path in made.values():
        drop_metadata(path)
    manifest = {
        name: {
            "package": package,
            "version": importlib.metadata.version(package),
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for name, (package, path) in made.items()
    }
    text = json.dumps(manifest, indent=2) + "\n"
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
