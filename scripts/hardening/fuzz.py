"""Mutates files and gives them to the commands that read them; says what qdebug made of them.

    scripts/fuzz [--cases 20000] [--seed 0] [--only net.onnx run.h5] [--workers 1]

Every case is one file, damaged as its format is built, and one command. A finding is whatever is
not a result or one clear message: a crash, a program that does not end or takes gigabytes, an
internal error, a message that names none of the files, has no code or holds control characters,
anything else on the error stream, a file that is left behind. Cases are numbered: the same seed and
number make the same case. Exit code 1 where there is a finding.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import desk
import mutate

LIMIT_S = 60
_NAMES_OTHERS = (*desk.CONFIGS, "plan.yaml")
"""Files that may name any other file, which a message is about then."""
MEMORY_BYTES = 6 << 30
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CODE = re.compile(r"\[QD-[A-Z0-9-]+\]\n\Z")
_MESSAGE = re.compile(r"^qdebug: (error|interrupted)", re.MULTILINE)
_LOG = re.compile(r"\d{4}-\d\d-\d\d [\d:.]+ \[[EW]:onnxruntime:")
"""How ONNX Runtime begins a line, of sessions in which constants are folded."""
_URL = re.compile(rb"Serving at (http\S+)\n")


@dataclass(frozen=True)
class Case:
    """A file of the desk, what is done to it, and the command that reads it."""

    number: int
    file: str
    mutation: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What came of a case: the exit code or the signal, and what is wrong with that ("": nothing).

    `detail` is where an internal error was raised, or the text that should not be there.
    """

    outcome: str
    finding: str = ""
    detail: str = ""


def case(number: int, seed: int, files: Sequence[str]) -> tuple[Case, random.Random]:
    """Case `number` of a seed, and the source of its random numbers."""
    rng = random.Random(f"{seed}:{number}")
    file = rng.choice(files)
    mutation = rng.choice(mutate.of_name(file))
    name = mutation.__qualname__.partition(".")[0]
    return Case(number, file, name, rng.choice(desk.COMMANDS[file])), rng


def damaged(case: Case, rng: random.Random, original: bytes) -> bytes:
    """The file of a case."""
    for mutation in mutate.of_name(case.file):
        if mutation.__qualname__.partition(".")[0] == case.mutation:
            return mutation(rng, original)
    raise LookupError(case.mutation)


@dataclass(frozen=True)
class Printed:
    """The files that hold what a command and its libraries print."""

    shown: Path
    said: Path

    def text(self) -> tuple[str, str]:
        """What is on standard output, and on the error stream."""
        shown, said = (p.read_bytes().decode(errors="replace") for p in (self.shown, self.said))
        return shown, said


def run_here(case: Case, printed: Printed) -> int:
    """Run a command in this process."""
    from qdebug.cli.app import main

    for number, path in ((1, printed.shown), (2, printed.said)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    looking = _looking_at(printed.shown) if case.arguments[0] == "view" else nullcontext()
    with looking:
        code = main(case.arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


@contextmanager
def _looking_at(shown: Path) -> Iterator[None]:
    """Within, a page that is served is asked for all that it has to offer; then Ctrl-C is sent."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.01):
            if found := _URL.search(shown.read_bytes()):
                url = found[1].decode()
                for name in ("", "status", "detail?tensor=c1", "detail?tensor=out&sample=1"):
                    with suppress(OSError, HTTPException), urlopen(url + name, timeout=20) as got:
                        got.read()
                os.kill(os.getpid(), signal.SIGINT)
                return

    looking = threading.Thread(target=look, daemon=True)
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()
        signal.signal(signal.SIGINT, ignored)


def judged(case: Case, code: int, printed: Printed, folder: Path, known: set[str]) -> Verdict:
    """What a command that ended made of a case."""
    shown, said = printed.text()
    outcome = f"exit {code}"
    left = {p.relative_to(folder).as_posix() for p in folder.rglob("*")} - known
    hidden = sorted(name for name in left if Path(name).name.startswith("."))
    if "internal error" in said:
        return Verdict(outcome, "internal error", said.splitlines()[0])
    if code not in (0, 1, 2, 3):
        return Verdict(outcome, "exit code", said[:200])
    if hidden:
        return Verdict(outcome, "leftover", hidden[0])
    if found := _CONTROL.search(shown):
        return Verdict(outcome, "control characters", _around(shown, found.start()))
    return Verdict(outcome, *_wrong_text(case, code, said))


def _around(text: str, at: int) -> str:
    return repr(text[max(0, at - 80) :][:160])


def _wrong_text(case: Case, code: int, said: str) -> tuple[str, str]:
    """What is wrong with the text on the error stream, and where; empty for nothing."""
    if found := _CONTROL.search(said):
        return "control characters", _around(said, found.start())
    lines = said.splitlines()
    foreign = [n for n in lines if not n.startswith(("qdebug: ", "note: ", "  "))]
    foreign = [n for n in foreign if n and not _LOG.match(n)]
    if case.file == "metric.py":  # what it prints is there
        foreign = []
    if foreign:
        return "foreign text", foreign[0][:200]
    if code not in (2, 3):
        return "", ""
    if len(_MESSAGE.findall(said)) != 1:
        return "not one message", said[:300]
    if not _CODE.search(said):
        return "no code", said[-200:]
    if case.file in _NAMES_OTHERS:
        return "", ""
    words = {Path(w).name for w in case.arguments if Path(w).suffix} | {Path(case.file).name}
    if "[QD-USAGE-" in said:  # it names a flag
        return "", ""
    words |= {"set", "precision.yaml", "external.data"}
    return ("", "") if any(word in said for word in words) else ("names no file", said[:300])


class Worker:
    """A process that runs cases, and is replaced when one of them ends it."""

    def __init__(self, folder: Path, files: Path, seed: int, chosen: Sequence[str]) -> None:
        self._originals = files
        self.seed, self.chosen = seed, chosen
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._printed = Printed(self._folder / "shown", self._folder / "said")
        self._pid = 0
        self._commands: int = -1
        self._answers: int = -1

    def judge(self, number: int) -> Verdict:
        """Run a case and judge it."""
        if not self._pid:
            self._start()
        os.write(self._commands, f"{number}\n".encode())
        deadline = time.monotonic() + LIMIT_S
        answer = b""
        while not answer.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                return self._ended("does not end")
            part = os.read(self._answers, 1 << 16)
            if not part:
                return self._ended("crash")
            answer += part
        return Verdict(**json.loads(answer))

    def _ended(self, finding: str) -> Verdict:
        if finding != "crash":
            os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        os.close(self._commands)
        os.close(self._answers)
        self._pid = 0
        ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {status >> 8}"
        said = self._printed.said
        text = said.read_text(errors="replace")[-200:] if said.exists() else ""
        return Verdict(ended, finding, text)

    def _start(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._originals, self._folder / "desk")
        given, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(given)
            os.close(answers)
            return
        try:
            os.close(self._commands)
            os.close(self._answers)
            self._serve(given, answers)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)

    def _serve(self, given: int, answers: int) -> None:
        """Run the cases whose numbers come, in the forked process."""
        folder = self._folder / "desk"
        os.chdir(folder)
        os.environ["QDEBUG_CACHE_DIR"] = str(self._folder / "cache")
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        known = {p.relative_to(folder).as_posix() for p in folder.rglob("*")}
        with os.fdopen(given) as numbers:
            for line in numbers:
                found = self._one(int(line), folder, known)
                os.write(answers, (json.dumps(asdict(found)) + "\n").encode())

    def _one(self, number: int, folder: Path, known: set[str]) -> Verdict:
        chosen, rng = case(number, self.seed, self.chosen)
        original = (folder / chosen.file).read_bytes()
        try:
            (folder / chosen.file).write_bytes(damaged(chosen, rng, original))
            code = run_here(chosen, self._printed)
            verdict = judged(chosen, code, self._printed, folder, known)
            if verdict.finding == "internal error":
                again = Case(number, chosen.file, chosen.mutation, (*chosen.arguments, "-vv"))
                run_here(again, self._printed)
                where = _place(self._printed.text()[1])
                return Verdict(verdict.outcome, verdict.finding, f"{where}: {verdict.detail}")
            return verdict
        finally:
            (folder / chosen.file).write_bytes(original)
            for path in folder.rglob("*"):
                if path.relative_to(folder).as_posix() not in known and path.is_file():
                    path.unlink()


def _place(said: str) -> str:
    """The last line of qdebug's own in a traceback."""
    found = re.findall(r'File "[^"]*/(qdebug/[^"]+)", line (\d+)', said)
    return ":".join(found[-1]) if found else "?"


def _judged(number: int) -> tuple[Case, Verdict]:
    """Run a case in the worker of this process, which ends with it: it reads from its pipe."""
    return case(number, _worker.seed, _worker.chosen)[0], _worker.judge(number)


def _employ(folder: Path, files: Path, seed: int, chosen: Sequence[str]) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the pool ends its processes so
    _worker = Worker(folder, files, seed, chosen)


_worker: Worker


def fuzz(
    numbers: range, seed: int, chosen: Sequence[str], workers: int
) -> Iterator[tuple[Case, Verdict]]:
    """Run cases, `workers` at a time; results come as cases end."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as folder:
        originals, cache = Path(folder, "files"), Path(folder, "cache")
        originals.mkdir()
        before = os.environ.get("QDEBUG_CACHE_DIR")
        os.environ["QDEBUG_CACHE_DIR"] = str(cache)
        try:
            desk.make(originals)
        finally:
            os.environ.pop("QDEBUG_CACHE_DIR")
            if before is not None:
                os.environ["QDEBUG_CACHE_DIR"] = before
        given = (Path(folder), originals, seed, chosen)
        with multiprocessing.get_context("fork").Pool(workers, _employ, given) as pool:
            yield from pool.imap_unordered(_judged, numbers)


def summary(outcomes: Counter[tuple[str, str]], findings: Counter[str]) -> str:
    """The outcomes of each kind of file, and the findings."""
    kinds = sorted({file for file, _ in outcomes})
    columns = sorted({outcome for _, outcome in outcomes})
    lines = [f"{'file':32}{'cases':>8}" + "".join(f"{c:>11}" for c in columns)]
    for kind in kinds:
        counts = [outcomes[kind, c] for c in columns]
        lines.append(f"{kind:32}{sum(counts):8}" + "".join(f"{n or '':>11}" for n in counts))
    lines.append(f"{'all':32}{sum(outcomes.values()):8}")
    lines.append(f"\n{sum(findings.values())} findings of {len(findings)} kinds")
    lines += [f"{count:6}  {kind}" for kind, count in findings.most_common()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20_000, help="default: 20000")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--only", nargs="*", help="files of the desk; default: all")
    parser.add_argument("--workers", type=int, default=1, help="cases at a time; default: 1")
    options = parser.parse_args()
    chosen = options.only or list(desk.COMMANDS)
    outcomes: Counter[tuple[str, str]] = Counter()
    findings: Counter[str] = Counter()
    started = time.monotonic()
    numbers = range(options.first, options.first + options.cases)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        for tried, verdict in fuzz(numbers, options.seed, chosen, options.workers):
            outcomes[tried.file, verdict.outcome] += 1
            if verdict.finding:
                place = verdict.detail.partition(": qdebug:")[0]
                kind = place if verdict.finding == "internal error" else tried.file
                findings[f"{verdict.finding}: {kind}"] += 1
                print(
                    f"#{tried.number} {tried.file} ({tried.mutation}) qdebug"
                    f" {' '.join(tried.arguments)}\n    {verdict.finding} ({verdict.outcome}):"
                    f" {verdict.detail.strip()[:400]}",
                    flush=True,
                )
    print(f"\n{summary(outcomes, findings)}")
    print(f"{time.monotonic() - started:.0f} s, seed {options.seed}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
