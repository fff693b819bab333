"""The code blocks of README and docs, and a folder with the files that their commands name.

A comment on the line before a block says what is special about it:

- ``<!-- needs: gpu -->`` (or ``network``, ``minutes``): not run, only held to the command line;
- ``<!-- exits: 1 -->``: its last command ends with this code;
- ``<!-- makes: FILE -->``: Python that makes a file which commands of the page name;
- ``<!-- output: qdebug … -->``: the block is what this command prints, written by
  ``scripts/update_docs.py``; ``| from: … | to: …`` selects lines by the text that they start with,
  ``| varies: …`` names figures that differ from one run to the next.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from PIL import Image
from small_digits import small_digits

from qdebug.cli.app import main

REPOSITORY = Path(__file__).parents[2]
GENERATED = ("reference/cli.md", "reference/configuration.md")
COLUMNS = "100"

_BLOCK = re.compile(
    r"^(?P<comments>(?:[ ]*<!--.*?-->\n)*)"
    r"(?P<indent>[ ]*)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_OUTPUT_FLAGS = {"-o", "--output", "--json"}

TASK = '''
import numpy as np


def f1(outputs, reference):
    """Share of samples with the same winner as the reference."""
    now, before = (next(iter(arrays.values())) for arrays in (outputs, reference))
    return float((now.argmax(-1) == before.argmax(-1)).mean())


def topic(outputs, labels):
    scores, right = (next(iter(arrays.values())) for arrays in (outputs, labels))
    return float((scores.argmax(-1) == right).mean())


def three_sigma(histogram):
    return min(histogram.amax, histogram.magnitude_percentile(99.7))


def load_data():
    with np.load("samples.npz") as data:
        for image in data["input"]:
            yield {"input": image[None]}
'''


LAYERS = {
    "Layers": [
        {
            "Name": "conv1 + relu1",
            "LayerType": "CaskConvolution",
            "Inputs": [{"Name": "x", "Dimensions": [1, 3, 8, 8], "Format/Datatype": "Int8"}],
            "Outputs": [{"Name": "r1", "Dimensions": [1, 4, 8, 8], "Format/Datatype": "Int8"}],
            "Weights": {"Type": "Int8", "Count": 108},
            "TacticName": "i8i8",
            "Metadata": "[ONNX Layer: conv1]\x1f[ONNX Layer: relu1]",
        }
    ],
    "Bindings": ["x", "r1"],
}
PROFILE = [{"count": 1}, {"name": "conv1 + relu1", "averageMs": 1}]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and what the comments before it say."""

    language: str
    body: str
    notes: dict[str, str] = field(default_factory=dict)

    def commands(self) -> list[list[str]]:
        """The words of each command of a shell block."""
        joined = self.body.replace("\\\n", " ")
        return [words for line in joined.splitlines() if (words := shlex.split(line, True))]


def documents() -> list[Path]:
    """README and every page that people write."""
    pages = sorted((REPOSITORY / "docs").rglob("*.md"))
    return [REPOSITORY / "README.md", *(page for page in pages if not is_generated(page))]


def is_generated(page: Path) -> bool:
    """Whether a program writes this page."""
    return page.relative_to(REPOSITORY / "docs").as_posix() in GENERATED


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a Markdown text, in order."""
    for found in _BLOCK.finditer(text):
        notes = re.findall(r"<!--\s*(\w+):\s*(.*?)\s*-->", found["comments"])
        indent = len(found["indent"])
        body = "".join(line[indent:] for line in found["body"].splitlines(keepends=True))
        yield Block(found["language"], body, dict(notes))


def run_qdebug(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, output and error of `qdebug`, run in this process and in the current folder."""
    _make_way(arguments)
    shown, said = io.StringIO(), io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = COLUMNS
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(said):
            code = main(arguments)
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return code, shown.getvalue(), said.getvalue()


def _make_way(arguments: list[str]) -> None:
    """What a command writes is not there yet, as for who types it for the first time."""
    for flag, value in pairwise(arguments):
        if flag in _OUTPUT_FLAGS or flag.startswith("--save-") or flag == "--trt-cache":
            Path(value).unlink(missing_ok=True)
    if arguments[:1] == ["export"]:
        for file in Path().glob("precision_*"):
            file.unlink()
        for name in ("precision.onnx", "precision.cache", "precision.calib"):
            Path(name).unlink(missing_ok=True)


def selected(output: str, note: str) -> str:
    """The lines of ``output`` that a note selects: all, or from one start of a line to another."""
    limits = dict(part.strip().split(": ", 1) for part in note.split(" | ")[1:])
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]

    def find(start: str, after: int) -> int:
        for number in range(after, len(lines)):
            if lines[number].strip().startswith(start):
                return number
        raise AssertionError(f"no line starts with '{start}' in:\n{output}")

    first = find(limits["from"], 0) if "from" in limits else 0
    last = find(limits["to"], first) + 1 if "to" in limits else len(lines)
    return "\n".join(lines[first:last]) + "\n"


def still_shown(note: str, printed: str, shown: str) -> bool:
    """Whether a block shows what was printed, but for figures that differ from run to run."""
    if "| varies: " not in note:
        return printed == shown
    return _words(printed) == _words(shown)


def _words(text: str) -> list[str]:
    return re.sub(r"[-\d.]+", " ", text).split()


def copy_bundled(folder: Path) -> None:
    """Put the bundled networks, data and configurations into ``folder``."""
    for name in ("calib_data", "configs"):
        shutil.copytree(REPOSITORY / name, folder / name)


def prepare_files(folder: Path) -> None:
    """Make what the commands of the documents name, small and real, in ``folder``."""
    copy_bundled(folder)
    with contextlib.chdir(folder):
        small = small_digits(Path("calib_data/digits_holdout.npz"), unseen=128)
        for name in ("model.onnx", "fp32.onnx", "detector.onnx"):
            onnx.save(small, name)
        shutil.copy("calib_data/digits_encoder.onnx", "encoder.onnx")
        with np.load("calib_data/digits_holdout.npz") as data:
            images, labels = data["input"], data["labels"]
        with np.load("calib_data/digits_calib.npz") as data:
            np.savez("calib.npz", input=data["input"][:32])
        for name, part in (
            ("samples.npz", slice(0, 64)),
            ("inputs.npz", slice(0, 64)),
            ("other.npz", slice(64, 128)),
            ("labelled.npz", slice(64, 128)),
        ):
            np.savez(name, input=images[part], labels=labels[part])
        Path("photos").mkdir()
        for number, (image, label) in enumerate(zip(images[:8], labels, strict=False)):
            pixels = np.rint(255 * image[0]).astype(np.uint8)
            Image.fromarray(pixels).save(f"photos/{label}_{number:04}.png")
        Path("task.py").write_text(TASK, "utf-8")
        Path("layers.json").write_text(json.dumps(LAYERS), "utf-8")
        Path("times.json").write_text(json.dumps(PROFILE), "utf-8")
        data = "model.onnx --calib-data calib.npz"
        for command in (
            f"compare {data} --inputs samples.npz --save-plan precision.yaml -o run.h5",
            f"calibrate {data} --method minmax -o scales.yaml --trt-cache calibration.cache",
            "export precision.yaml --to onnx -o quantized.onnx",
            f"compare {data} --inputs samples.npz --backend tensorrt-rtx --samples 8"
            " --save-log build.log",
        ):
            _must(command)
        shutil.copy("build.log", "other.log")
        for page in documents():
            for block in blocks(page.read_text("utf-8")):
                if "makes" in block.notes:
                    exec(compile(block.body, str(page), "exec"), {})
        _prepare_upscaler()


def _prepare_upscaler() -> None:
    """A network whose ConvTranspose has no INT8 kernel in TensorRT for RTX, and its build log."""
    node, rng = onnx.helper.make_node, np.random.default_rng(0)
    shapes = {"w1": (16, 3, 3, 3), "w2": (16, 16, 2, 2), "w3": (3, 16, 3, 3)}
    graph = onnx.helper.make_graph(
        [
            node("Conv", ["x", "w1"], ["a"], "in", pads=[1] * 4),
            node("ConvTranspose", ["a", "w2"], ["b"], "up", strides=[2, 2]),
            node("Conv", ["b", "w3"], ["y"], "out", pads=[1] * 4),
        ],
        "upscaler",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 3, 16, 16])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 3, 32, 32])],
        [
            onnx.numpy_helper.from_array(rng.normal(0, 0.1, shape).astype(np.float32), name)
            for name, shape in shapes.items()
        ],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), "upscaler.onnx")
    np.savez("pictures.npz", x=rng.normal(size=(8, 3, 16, 16)).astype(np.float32))
    _must(
        "compare upscaler.onnx --inputs pictures.npz --backend tensorrt-rtx"
        " --save-plan upscaler.yaml --save-log upscaler.log",
        exits=1,
    )


def _must(command: str, exits: int = 0) -> None:
    code, _, said = run_qdebug(shlex.split(command))
    if code != exits:
        raise AssertionError(f"qdebug {command}: exit code {code}\n{said}")
