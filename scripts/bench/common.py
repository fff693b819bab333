"""What the benchmarks share: networks and samples, taking turns, sessions of ONNX Runtime alone."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from nets import NETS, USUAL

DATA = Path(__file__).resolve().parents[2] / "calib_data"
ASSETS = DATA.parents[1] / "shared" / "assets"
BUNDLED = ("digits_cnn", "digits_encoder")
FOLDERS = {"face": ASSETS / "ultraface_slim", "minilm": ASSETS / "minilm_l6"}


def parser_of(doc: str | None, **defaults: int) -> argparse.ArgumentParser:
    """A parser whose `--help` shows `doc`, with one option for each of `defaults`, such as rounds=3
    for `--rounds`."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    return parser


def data_of(net: str) -> dict[str, Any]:
    """What a command takes of a bundled network, one of FOLDERS, or a folder with model.onnx,
    inputs.npz and perhaps calib.npz."""
    if net in BUNDLED:
        data = {"inputs": DATA / "digits_holdout.npz", "calib_data": DATA / "digits_calib.npz"}
        return {"model": DATA / f"{net}.onnx", **data}
    folder = FOLDERS.get(net, Path(net))
    data = {"model": folder / "model.onnx", "inputs": folder / "inputs.npz"}
    calib = folder / "calib.npz"
    return {**data, "calib_data": calib} if calib.exists() else data


def planted_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser of the benchmarks that plant faults into the networks of `planted_faults`."""
    parser = parser_of(doc, samples=64, jobs=1)
    parser.add_argument("--zoo", type=Path, help="folder that digit_zoo.py wrote")
    parser.add_argument("--assets", type=Path, default=ASSETS, help="folder of the face detector")
    parser.add_argument("--nets", nargs="+", metavar="NET", help="only these")
    return parser


def add_networks(parser: argparse.ArgumentParser, default: Sequence[str] = USUAL) -> None:
    """`--nets` and `--inputs`."""
    parser.add_argument(
        "--nets",
        nargs="+",
        default=list(default),
        metavar="NET",
        help=f"{', '.join(NETS)} (random weights), digits_cnn, digits_encoder (bundled), or ONNX "
        f"files; default: {' '.join(default)}",
    )
    parser.add_argument("--inputs", metavar="DATA", help="samples for ONNX files given to --nets")


def network(net: str, inputs: str | None, count: int, folder: Path) -> tuple[Path, Path]:
    """The ONNX file and the samples of a network of `--nets`, made in `folder` where it is random;
    at least `count` samples."""
    if net in NETS:
        path = folder / f"{net}.onnx"
        onnx.save(NETS[net](), path)
        return path, random_samples(path, folder / f"{net}.npz", count)
    if (DATA / f"{net}.onnx").exists():
        path = Path(shutil.copy(DATA / f"{net}.onnx", folder))
        return path, DATA / "digits_holdout.npz"
    path = Path(net)
    return path, Path(inputs) if inputs else random_samples(path, folder / "samples.npz", count)


def random_samples(path: Path, data: Path, count: int) -> Path:
    """`count` samples of the normal distribution for the only input of a model, in `data`."""
    value = onnx.load(path).graph.input[0]
    shape = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
    arrays = np.random.default_rng(0).standard_normal((count, *shape[1:]), dtype=np.float32)
    np.savez(data, **{value.name: arrays})  # type: ignore[arg-type]
    return data


def watch_memory(pid: int, most: dict[str, float]) -> None:
    """Until a process ends, keep in `most` what it takes at its peak, in bytes: `VmHWM` is all that
    is in memory, by the kernel's own count, `RssAnon` and `RssShmem` what is not mapped from files.

    The kernel's count in wait4 is not used: a process begins with that of its parent.
    """
    while True:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return
        for line in status.splitlines():
            name, _, rest = line.partition(":")
            if name in ("VmHWM", "RssAnon", "RssShmem"):
                most[name] = max(most.get(name, 0.0), 1024.0 * int(rest.split()[0]))
        time.sleep(0.05)
