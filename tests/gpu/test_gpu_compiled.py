"""What TensorRT for RTX compiles for this GPU is taken by the next process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qdebug.backends.tensorrt.execute.cuda import Cuda
from qdebug.backends.tensorrt.library import Library

BUNDLED = Path(__file__).parents[2] / "calib_data"

CODE = """
import json, sys, time
from pathlib import Path
import numpy as np
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.memo import Memo
from qdebug.backends.tensorrt.library import LibraryKind, load_library
from qdebug.backends.tensorrt.factory import EngineFactory
from qdebug.backends.tensorrt.execute.session import TensorRTSession
from qdebug.backends.tensorrt.build.settings import BuildSettings, ShapeRange
model, data, folder = map(Path, sys.argv[1:])
file = folder / "compiled.bin"
x = np.load(data)["input"][:16]
settings = BuildSettings(profile={"input": ShapeRange(x.shape, x.shape, x.shape)})
maker = EngineFactory(
    load_library(LibraryKind.RTX), settings, Memo(folder / "engines"), compiled=file
)
engine = maker.make(prepare_model(read_model(model)).graph.proto)[0]
taken = None
if file.exists():
    with engine.cuda.current():
        config = engine.raw.create_runtime_config()
        taken = config.create_runtime_cache().deserialize(file.read_bytes())
started = time.perf_counter()
with TensorRTSession(engine) as session:
    session.run({"input": x})
    seconds = time.perf_counter() - started
print(json.dumps([taken, seconds, file.stat().st_size]))
"""


def test_the_next_process_takes_what_was_compiled(
    library: Library, cuda: Cuda, figures: dict[str, Any], tmp_path: Path
) -> None:
    if not hasattr(library.module, "IRuntimeCache"):
        pytest.skip("this library compiles nothing when an engine is executed")
    files = [str(BUNDLED / "digits_encoder.onnx"), str(BUNDLED / "digits_holdout.npz")]
    command = [sys.executable, "-c", CODE, *files, str(tmp_path)]
    told = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout.splitlines()[-1]))
    (first, before, size), (second, after, _) = told
    figures["compiled kernels"] = {
        "first_run_s": round(before, 3),
        "first_run_of_the_next_process_s": round(after, 3),
        "file_bytes": size,
    }
    assert first is None and size > 0 and second is not False
