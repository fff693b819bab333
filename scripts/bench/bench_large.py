"""What commands cost on models of real sizes, beside ONNX Runtime alone: wall time and peak memory.

    python scripts/bench/bench_large.py --nets encoder_0.1b encoder_0.7b --samples 16 --cores 0,1

Random weights: what is found means nothing here. Each command is a process of its own, and its peak
is the kernel's; `own` leaves out what is mapped from files, which may be dropped at any time.
The floor opens the model and its Q/DQ form in one process, all tensors as outputs, and runs the
samples through both.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import large_nets
import numpy as np
import onnx
import onnxruntime as ort
from common import network, parser_of, watch_memory
from nets import NETS

from qdebug.config.values import parse_bytes

_HALF = 0.5e9


@dataclass(frozen=True)
class Cost:
    """What a process took; bytes at its peak, and those of them that are its own."""

    seconds: float
    peak: float
    own: float
    exit_code: int
    output: str


def main() -> int:
    """Run it; print a table."""
    if sys.argv[1:2] == ["floor"]:
        return floor(Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
    parser = parser_of(__doc__, samples=16, seconds=120)
    parser.add_argument(
        "--nets",
        nargs="+",
        default=["resnet50", "encoder_0.1b"],
        help=f"{', '.join([*large_nets.SIZES, *NETS])}; default: resnet50 encoder_0.1b",
    )
    parser.add_argument("--cores", help="run on these, such as 0,1")
    parser.add_argument("--folder", type=Path, help="keep the models here; default: nowhere")
    parser.add_argument("--commands", nargs="+", metavar="NAME", help="only these rows")
    parser.add_argument(
        "--budget", default="2G", help="--memory-budget, where there is one; default: 2G"
    )
    given = parser.parse_args()
    if given.cores:
        os.sched_setaffinity(0, {int(core) for core in given.cores.split(",")})
    print("| network, weights | command | s | × floor | peak GB | own GB | allowed GB | exit |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with TemporaryDirectory() as place:
        folder = given.folder or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        for net in given.nets:
            measure(net, folder, given)
    return 0


def measure(net: str, folder: Path, given: argparse.Namespace) -> None:
    """Print the rows of one network."""
    seconds, wanted = given.seconds, given.commands
    path, data = made(net, folder, given.samples)
    weights = float(sum(file.stat().st_size for file in folder.glob(f"{path.name}*")))
    allowed = 1.3 * weights + parse_bytes(given.budget) + _HALF
    scales, exported = folder / f"{net}.yaml", folder / f"{net}.int8.onnx"
    on = ["--inputs", str(data), "--calibration", str(scales)]
    within = ["--memory-budget", given.budget]
    half = ["--inputs", str(data), "--precision", "fp16", "--effect", "none"]
    methods = ["--method", "minmax,mse", "-o", str(scales), "--force"]
    until = ["--target", "output.sqnr_db>=30", "--time-limit", str(seconds)]
    commands = {
        "inspect": ["inspect", str(path)],
        "calibrate": ["calibrate", str(path), "--calib-data", str(data), *methods],
        "export": ["export", str(scales), "--to", "onnx", "-o", str(exported), "--force"],
        "floor": [],
        "compare --effect none": ["compare", str(path), *on, *within, "--effect", "none"],
        "compare": ["compare", str(path), *on, *within],
        "compare --precision fp16": ["compare", str(path), *half, *within],
        "compare --fp16-kernels exact": [
            *["compare", str(path), *half, *within, "--fp16-kernels", "exact"]
        ],
        f"bisect --time-limit {seconds}": ["bisect", str(path), *on, *within, *until],
        "ranges": ["ranges", str(path), "--calib-data", str(data)],
    }
    alone = 0.0
    for name, arguments in commands.items():
        if wanted and name.split(" ")[0] not in wanted and name not in wanted:
            continue
        program = ["-m", "qdebug", *arguments]
        if name == "floor":
            program = [__file__, "floor", str(path), str(exported), str(data)]
        cost = measured([sys.executable, *program], folder)
        alone = cost.seconds if name == "floor" else alone
        ratio = f"{cost.seconds / alone:.2f}" if alone else "–"
        gigabytes = " | ".join(f"{x / 1e9:.2f}" for x in (cost.peak, cost.own, allowed))
        row = f"| {net}, {weights / 1e9:.2f} GB | {name} | {cost.seconds:.1f} | {ratio} "
        print(f"{row}| {gigabytes} | {cost.exit_code} |", flush=True)
        if cost.exit_code not in (0, 1):
            print(cost.output[-2000:], flush=True)


def made(net: str, folder: Path, count: int) -> tuple[Path, Path]:
    """The files of a network and of its samples."""
    if net not in large_nets.SIZES:
        return network(net, None, count, folder)
    path, data = folder / f"{net}.onnx", folder / f"{net}.npz"
    if not path.exists():
        large_nets.encoder(path, *large_nets.SIZES[net])
    large_nets.samples(data, net, count)
    return path, data


def measured(command: list[str], folder: Path) -> Cost:
    """What a command takes."""
    environment = os.environ | {"QDEBUG_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder)}
    started = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        most: dict[str, float] = {}
        watch = threading.Thread(target=watch_memory, args=(process.pid, most), daemon=True)
        watch.start()
        output = process.communicate()[0]
    seconds = time.perf_counter() - started
    peak, own = most.get("VmHWM", 0.0), most.get("RssAnon", 0.0) + most.get("RssShmem", 0.0)
    return Cost(seconds, peak, own, process.returncode, output)


def floor(path: Path, exported: Path, data: Path) -> int:
    """Open both models with all tensors as outputs, and run all samples."""
    with np.load(data) as file:
        arrays = {name: file[name] for name in file.files}
    count = len(next(iter(arrays.values())))
    for model in (path, exported):
        proto = onnx.load(model, load_external_data=False)
        known = {value.name for value in proto.graph.output}
        computed = [t for node in proto.graph.node for t in node.output if t]
        weights = [
            node.output[0]
            for node in proto.graph.node
            if node.op_type == "DequantizeLinear" and not _computed(proto, node.input[0])
        ]
        left_out = known.union(weights)
        proto.graph.output.extend(
            onnx.ValueInfoProto(name=t) for t in computed if t not in left_out
        )
        marked = model.with_name(f"marked_{model.name}")
        marked.write_bytes(proto.SerializeToString())
        session = ort.InferenceSession(marked, providers=["CPUExecutionProvider"])
        for number in range(count):
            session.run(None, {n: a[number : number + 1] for n, a in arrays.items()})
        marked.unlink()
    return 0


def _computed(proto: onnx.ModelProto, tensor: str) -> bool:
    return not any(t.name == tensor for t in proto.graph.initializer)


if __name__ == "__main__":
    sys.exit(main())
