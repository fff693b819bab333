"""What whole commands cost, from the start of Python to their end, beside ONNX Runtime alone.

Each figure is that of a fresh process: CPU time of all of its threads, wall time, and its peak
memory. The floors open the same models with all of their tensors as outputs, run the samples
through them and do nothing with the outputs: `compare`, `bisect` and `repair` stand beside the FP32
and the Q/DQ model, `calibrate` beside the FP32 model. CPU times hold where others use the machine,
too; ratios carry over to other machines, seconds do not.

    python scripts/bench/bench_commands.py [--nets W1 W2 W3 | model.onnx --inputs data.npz]
        [--samples 64] [--rounds 2] [--only "compare --effect none" calibrate]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from common import add_networks, network, parser_of, watch_memory

FLOOR = """
import sys
import numpy as np, onnx, onnxruntime as ort
data = dict(np.load(sys.argv[1]))
for path in sys.argv[3:]:
    model = onnx.load(path)
    known = {o.name for o in model.graph.output}
    new = [n for node in model.graph.node for n in node.output if n and n not in known]
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in new)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for k in range(int(sys.argv[2])):
        session.run(None, {i.name: data[i.name][k : k + 1] for i in session.get_inputs()})
"""
COMMANDS = ("compare", "compare --effect none", "calibrate", "bisect", "repair")


@dataclass(frozen=True)
class Cost:
    """What a process took."""

    cpu_seconds: float
    seconds: float
    peak_bytes: float


def main() -> None:
    """Print a row for each network and command."""
    parser = parser_of(__doc__, samples=64, rounds=2)
    add_networks(parser)
    parser.add_argument("--only", nargs="+", metavar="COMMAND", default=COMMANDS)
    arguments = parser.parse_args()
    print("| network | command | CPU s | × floor | wall s | peak GB |\n|---|---|---|---|---|---|")
    for net in arguments.nets:
        with tempfile.TemporaryDirectory() as folder:
            rows(net, arguments.inputs, arguments.samples, arguments.rounds, arguments.only, folder)


def rows(
    net: str, inputs: str | None, samples: int, rounds: int, commands: list[str], folder: str
) -> None:
    """Print those of one network."""
    model, data = map(str, network(net, inputs, samples, Path(folder)))
    scales, lowered = f"{folder}/scales.yaml", f"{folder}/lowered.onnx"
    few = ["--samples", str(samples)]
    qdebug = [sys.executable, "-m", "qdebug"]
    calibrated = [*qdebug, "calibrate", model, "--calib-data", data, *few, "--method", "minmax"]
    cost([*calibrated, "-o", scales])
    cost([*qdebug, "export", scales, "--model", model, "--to", "onnx", "-o", lowered])
    floor = [sys.executable, "-c", FLOOR, data, str(samples), model]
    floors = {"calibrate": best(floor, rounds)}
    floors["compare"] = best([*floor, lowered], rounds)
    planned = ["--calibration", scales, "--inputs", data, *few]
    words = {
        "compare": [model, *planned],
        "calibrate": [model, "--calib-data", data, *few],
        "bisect": [model, *planned, "--target", "output.sqnr_db>=30"],
        "repair": [model, "--calib-data", data, *few],
    }
    for name, one in floors.items():
        print(row(net, f"floor of `{name}`", one, one), flush=True)
    for command in commands:
        name, *flags = command.split()
        took = best([*qdebug, name, *words[name], *flags], rounds)
        print(row(net, f"`{command}`", took, floors.get(name, floors["compare"])), flush=True)


def row(net: str, name: str, took: Cost, floor: Cost) -> str:
    """One line of the table."""
    ratio = took.cpu_seconds / floor.cpu_seconds
    return (
        f"| {net} | {name} | {took.cpu_seconds:.1f} | {ratio:.2f} | {took.seconds:.1f} "
        f"| {took.peak_bytes / 1e9:.2f} |"
    )


def best(words: list[str], rounds: int) -> Cost:
    """Of some runs the one that took the least CPU time."""
    return min((cost(words) for _ in range(rounds)), key=lambda x: x.cpu_seconds)


def cost(words: list[str]) -> Cost:
    """Run a program, without what an earlier one kept.

    Raises:
        SystemExit: it failed; an answer that does not hold (1) is one.
    """
    most: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as cache:
        before = os.times()
        running = subprocess.Popen(
            words,
            env=os.environ | {"QDEBUG_CACHE_DIR": cache},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        watching = threading.Thread(target=watch_memory, args=(running.pid, most))
        watching.start()
        _, said = running.communicate()
        watching.join()
        after = os.times()
    if running.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)}: {said}")
    worked = after.children_user + after.children_system
    worked -= before.children_user + before.children_system
    return Cost(worked, after.elapsed - before.elapsed, most.get("VmHWM", 0.0))


if __name__ == "__main__":
    main()
