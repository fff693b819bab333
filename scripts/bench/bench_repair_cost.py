"""What `qdebug repair` costs on networks of real sizes: wall time, CPU time, peak memory, and what
each remedy took. Random weights: what it recovers means little here.

    python scripts/bench/bench_repair_cost.py --nets resnet50 --calib 64 --cores 0,1
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from common import add_networks, network, parser_of


def main() -> int:
    """Run it; print a table."""
    parser = parser_of(__doc__, calib=64, samples=32)
    parser.add_argument("--cores", help="run on these, such as 0,1")
    parser.add_argument("--only", help="remedies, with commas")
    add_networks(parser, ["resnet50"])
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, {int(core) for core in arguments.cores.split(",")})
    with TemporaryDirectory() as place:
        folder = Path(place)
        for net in arguments.nets:
            path, data = network(net, arguments.inputs, arguments.calib + arguments.samples, folder)
            calib, holdout = folder / "calib.npz", folder / "holdout.npz"
            with np.load(data) as arrays:
                np.savez(calib, **{n: a[: arguments.calib] for n, a in arrays.items()})
                np.savez(holdout, **{n: a[arguments.calib :] for n, a in arrays.items()})
            command = [sys.executable, "-m", "qdebug", "repair", str(path), "--json", "-"]
            command += ["--calib-data", str(calib), "--inputs", str(holdout), "--no-cache"]
            command += ["--only", arguments.only] if arguments.only else []
            started = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            wall = time.perf_counter() - started
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            report(net, wall, used, done)
    return 0


def report(
    net: str, wall: float, used: resource.struct_rusage, done: subprocess.CompletedProcess[str]
) -> None:
    """Print what one network took."""
    cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20
    print(f"{net}: {wall:.0f} s, {cpu:.0f} CPU s, peak {peak:.2f} GiB, exit {done.returncode}")
    if done.returncode not in (0, 1):
        print(done.stderr)
        return
    found = json.loads(done.stdout)
    for step in found["steps"]:
        kept = "kept" if step["accepted"] else step["reason"]
        print(
            f"  {step['remedy']:16} {len(step['layers']):4} layers {step['seconds']:7.1f} s {kept}"
        )


if __name__ == "__main__":
    sys.exit(main())
