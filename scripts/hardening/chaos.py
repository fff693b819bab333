"""Kills, interrupts and starves every command, and looks at what is left.

    scripts/chaos [--kills 200] [--limits 60] [--seed 0]

Kills: SIGKILL, SIGTERM, SIGINT or SIGHUP at a random moment; then the command runs to its end.
Limits: the largest file, or the disk (a small tmpfs, where one can be mounted), is too small.

A finding is an output that is neither what was there before nor whole, half of the files of an
export, a temporary file that is left behind (after SIGKILL: that the next run leaves too), a
process that is left behind, a crash, an internal error, or an exit code that says something else
than what happened. Exit code 1 where there is a finding.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import desk
import yaml

from qdebug.errors import QdebugError
from qdebug.store.reader import RunReader

PRECIOUS = b"precious"
LIMIT_S = 300
_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WORKERS_END_S = 20.0
"""Workers of a command that was killed look for it now and then."""
_LOOK_S = 3.0
"""So long what does not end by itself is left alone."""
_EARLY = ("<frozen ", "runpy", "site.py", "encodings")
"""Where Python itself is when a signal comes before the program."""


@dataclass(frozen=True)
class Job:
    """A command, and the files that it writes; `together`: all of them or none; `endless`: it ends
    only when it is interrupted."""

    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    together: bool = False
    endless: bool = False


_DATA = ("--inputs", "data.npz", "--no-progress")
_SEARCHED = ("--inputs", "calib.npz", "--no-progress")
_CALIBRATED = ("--calib-data", "calib.npz", "--no-progress")
_SWEEP = (
    *("sweep", "net.onnx", *_DATA, "--precision", "int8,fp32", "--backend", "onnxruntime"),
    *("-o", "new.csv"),
)
_CLUSTER = ("--cluster", "local:2")
JOBS: Mapping[str, Job] = {
    "compare": Job(
        (
            *("compare", "net.onnx", *_DATA, "--keep", "all", "-o", "new.h5"),
            *("--json", "new.json", "--save-plan", "new.yaml", "--html", "new.html"),
        ),
        ("new.h5", "new.json", "new.yaml", "new.html"),
    ),
    "calibrate": Job(
        (
            *("calibrate", "net.onnx", *_CALIBRATED),
            *("-o", "new.yaml", "--trt-cache", "new.cache", "--json", "new.json"),
        ),
        ("new.yaml", "new.cache", "new.json"),
    ),
    "bisect": Job(
        (
            *("bisect", "net.onnx", *_SEARCHED, "--target", "output.sqnr_db>=30"),
            *("-o", "new.yaml", "--json", "new.json"),
        ),
        ("new.yaml", "new.json"),
    ),
    "repair": Job(
        ("repair", "net.onnx", *_CALIBRATED, "-o", "new.onnx", "--json", "new.json"),
        ("new.onnx", "new.json"),
    ),
    "sweep": Job(
        (*_SWEEP, "--json", "new.json", "--html", "new.html"),
        ("new.csv", "new.json", "new.html"),
    ),
    "compare on a cluster": Job(
        ("compare", "net.onnx", *_DATA, *_CLUSTER, "-o", "new.h5"), ("new.h5",)
    ),
    "ranges": Job(
        ("ranges", "net.onnx", *_CALIBRATED, "--json", "new.json"),
        ("new.json",),
    ),
    "inspect": Job(
        ("inspect", "net.onnx", "--json", "new.json", "--html", "new.html"),
        ("new.json", "new.html"),
    ),
    "report": Job(("report", "run.h5", "-o", "new.html"), ("new.html",)),
    "view": Job(("view", "run.h5", "--no-browser"), (), endless=True),
    "export": Job(
        ("export", "plan.yaml", "--to", "trtexec", "-o", "new.sh"),
        ("new.sh", "new.explicit.onnx", "new.implicit.onnx", "new.implicit.cache"),
        together=True,
    ),
}


@dataclass
class Tally:
    """What was done, what came of it, and what was found."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def add(self, what: str, outcome: str, found: Sequence[str]) -> None:
        self.outcomes[what, outcome] += 1
        for each in found:
            self.findings.append(f"{what}: {each}")
            print(f"FINDING {what} ({outcome}): {each}", flush=True)


class Place:
    """A folder with the files of the desk, where one job runs at a time."""

    def __init__(self, originals: Path, folder: Path) -> None:
        self.folder = folder / "desk"
        shutil.copytree(originals, self.folder)
        self.env = os.environ | {
            "QDEBUG_CACHE_DIR": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.cache = folder / "cache"

    def start(
        self,
        job: Job,
        *extra: str,
        wrap: Sequence[str] = (),
        limit: Callable[[], None] | None = None,
    ) -> subprocess.Popen[str]:
        def begin() -> None:
            for number in _SIGNALS:  # nohup, and a shell that does not wait, have some ignored
                if number != signal.SIGKILL:
                    signal.signal(number, signal.SIG_DFL)
            if limit:
                limit()

        return subprocess.Popen(
            [*wrap, sys.executable, "-m", "qdebug", *job.arguments, *extra],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=begin,
            start_new_session=True,
        )

    def clear(self, job: Job, rng: random.Random, *, precious: bool) -> None:
        """Nothing of earlier runs is left but, where `precious`, files in the places of outputs;
        now and then no cache."""
        for path in self._hidden():
            path.unlink()
        for name in job.outputs:
            (self.folder / name).unlink(missing_ok=True)
            if precious:
                (self.folder / name).parent.mkdir(exist_ok=True)
                (self.folder / name).write_bytes(PRECIOUS)
        if rng.random() < 0.5:
            shutil.rmtree(self.cache, ignore_errors=True)

    def partials(self, *, unfinished: bool = True) -> list[str]:
        """Files that are left; without the mark of an `unfinished` sweep, which may go on."""
        left = [p.name for p in (*self._hidden(), *self.cache.rglob(".*"))]
        return left if unfinished else [name for name in left if name != ".unfinished"]

    def _hidden(self) -> list[Path]:
        return [*self.folder.rglob(".*")]

    def damage(self, job: Job) -> Iterator[str]:
        """The outputs that are neither absent, nor as before, nor whole."""
        there = {}
        for name in job.outputs:
            path = self.folder / name
            data = path.read_bytes() if path.exists() else None
            there[name] = data is not None and data != PRECIOUS
            if there[name] and (wrong := _wrong(path)):
                yield f"{name} is damaged: {wrong}"
        if job.together and len(set(there.values())) > 1:
            yield f"half of an export: {there}"


def _wrong(path: Path) -> str:
    """What is wrong with a file that a command wrote; empty for nothing."""
    try:
        match path.suffix:
            case ".json":
                assert json.loads(path.read_bytes())["schema"]
            case ".h5":
                with RunReader(path) as reader:
                    assert reader.results
            case ".yaml":
                assert yaml.safe_load(path.read_text())["schema"]
            case ".html":
                assert path.read_text().rstrip().endswith("</html>")
            case _:
                assert path.stat().st_size
    except (AssertionError, ValueError, KeyError, TypeError, yaml.YAMLError, QdebugError) as error:
        return f"{type(error).__name__} {error}"[:200]
    return ""


def _said_wrong(code: int, said: str) -> Iterator[str]:
    if "internal error" in said:
        yield said.strip()[-300:]
    if "Traceback" in said and not any(word in said for word in _EARLY):
        yield f"a traceback: {said.strip()[-300:]}"
    if code == 2 and said.count("qdebug: error:") != 1:
        yield f"not one message: {said[-300:]}"


def _ended(running: subprocess.Popen[str], job: Job) -> tuple[int, str]:
    if job.endless:
        with suppress(subprocess.TimeoutExpired):
            running.wait(_LOOK_S)
        running.send_signal(signal.SIGINT)
    try:
        _, said = running.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        running.kill()
        _, said = running.communicate()
        return 1000, said
    return running.returncode, said


def _forced(job: Job) -> tuple[str, ...]:
    return ("--force",) if job.outputs else ()


def _survivors(session: int) -> list[str]:
    """Commands of the processes of a session that are still there after a while."""
    until = time.monotonic() + _WORKERS_END_S
    while True:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ProcessLookupError):
                state, _, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(of) == session and state != "Z":
                    found.append((folder / "cmdline").read_text().replace("\0", " ")[:100])
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.2)


def kill(place: Place, name: str, rng: random.Random, seconds: float, tally: Tally) -> None:
    """Send a signal at a random moment; then run the command to its end."""
    job, number = JOBS[name], rng.choice(_SIGNALS)
    place.clear(job, rng, precious=rng.random() < 0.5)
    running = place.start(job, *_forced(job))
    with suppress(subprocess.TimeoutExpired):
        running.wait(rng.uniform(0, 1.1 * seconds))
    running.send_signal(number)
    code, said = _ended(running, job)
    found = [*place.damage(job), *_said_wrong(code, said)]
    usual = {0, 1, -number, 128 + number}
    if code not in usual:
        found.append(f"exit code {code} after {number.name}: {said[-200:]}")
    found += [f"{number.name} leaves {each}" for each in _survivors(running.pid)]
    if number != signal.SIGKILL and code > 0 and (left := place.partials(unfinished=False)):
        found.append(f"{number.name} leaves {left[:3]}")
    outcome = "ended before" if code in (0, 1) else "killed" if code < 0 else f"exit {code}"
    again, said = _ended(place.start(job, *_forced(job)), job)
    if again not in (0, 1):
        found.append(f"the next run ends with {again}: {said[-300:]}")
    found += [f"after the next run {each}" for each in place.damage(job)]
    if left := place.partials():
        found.append(f"after the next run there is {left[:3]}")
    tally.add(f"{number.name} {name}", outcome, found)


def limit(place: Place, name: str, rng: random.Random, mounts: bool, tally: Tally) -> None:
    """Run with too little room in a file, or on the disk."""
    job, kind = JOBS[name], rng.choice(("file", "disk") if mounts else ("file",))
    place.clear(job, rng, precious=rng.random() < 0.5)
    size = int(2 ** rng.uniform(9, 21))
    wrap: Sequence[str] = ()
    restrict: Callable[[], None] | None = None
    if kind == "disk":
        mount = 'd=$1; shift; cp -a "$d" "$d.all" && mount -t tmpfs -o size="$S" tmpfs "$d"'
        copy = 'cp -a "$d.all/." "$d" 2>/dev/null; rm -rf "$d.all"; cd "$d"; exec "$@"'
        script = f"{mount} && {{ {copy}; }}"
        needed = sum(p.stat().st_size for p in place.folder.rglob("*") if p.is_file())
        blocks = 4096 * (-(-needed // 4096) + 60) + size
        wrap = ("env", f"S={blocks}", "unshare", "-m", "sh", "-c", script, "sh", str(place.folder))
    else:
        restrict = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
    code, said = _ended(place.start(job, *_forced(job), wrap=wrap, limit=restrict), job)
    found = [*_said_wrong(code, said), *place.damage(job)]
    if code not in (0, 1, 2, 3):
        found.append(f"exit code {code}: {said[-300:]}")
    if code >= 0 and (left := place.partials(unfinished=False)):
        found.append(f"leaves {left[:3]}")
    tally.add(f"too little {kind}, {name}", f"exit {code}" if code >= 0 else "killed", found)


def _can_mount() -> bool:
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"]
    with suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


def summary(tally: Tally) -> str:
    lines = [
        f"{what:36}{outcome:>18}{n:6}" for (what, outcome), n in sorted(tally.outcomes.items())
    ]
    return "\n".join(
        [*lines, f"{sum(tally.outcomes.values())} cases, {len(tally.findings)} findings"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, count in (("kills", 200), ("limits", 60), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=count, help=f"default: {count}")
    parser.add_argument("--only", nargs="*", choices=list(JOBS), help="commands; default: all")
    options = parser.parse_args()
    rng, tally = random.Random(options.seed), Tally()
    names = options.only or list(JOBS)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, suppress(KeyboardInterrupt):
        originals = Path(folder, "files")
        originals.mkdir()
        os.environ["QDEBUG_CACHE_DIR"] = str(Path(folder, "first"))
        desk.make(originals)
        place, mounts = Place(originals, Path(folder)), _can_mount()
        seconds = {}
        for name in names:
            started = time.monotonic()
            code, said = _ended(place.start(JOBS[name], *_forced(JOBS[name])), JOBS[name])
            seconds[name] = time.monotonic() - started
            wrong = [] if code in (0, 1) else [f"undisturbed it ends with {code}: {said}"]
            tally.add(f"undisturbed {name}", f"exit {code}", [*wrong, *place.damage(JOBS[name])])
        for _ in range(options.kills):
            name = rng.choice(names)
            kill(place, name, rng, seconds[name], tally)
        for _ in range(options.limits):
            limit(place, rng.choice(names), rng, mounts, tally)
    print(summary(tally))
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
