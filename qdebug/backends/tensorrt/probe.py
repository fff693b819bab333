"""Can a TensorRT library that is installed be loaded here, and what can it do?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import qdebug
from qdebug.backends.tensorrt.execute.device import Device, find_device
from qdebug.backends.tensorrt.library import LibraryKind, parse_version

_CODE = """
import json
import sys
sys.path.append({root!r})
from qdebug.errors import QdebugError
from qdebug.backends.tensorrt.library import load_library
try:
    load_library({kind!r})
    print(json.dumps(["", ""]))
except QdebugError as error:
    print(json.dumps([error.message, error.hint]))
"""


def probe_rtx(version: str) -> tuple[bool, str, str]:
    """What TensorRT for RTX can do here; see BackendSpec.probe."""
    return _probe(LibraryKind.RTX, version)


def probe_classic(version: str) -> tuple[bool, str, str]:
    """What TensorRT 10 or 11 can do here; see BackendSpec.probe."""
    return _probe(LibraryKind.CLASSIC, version)


def _probe(kind: LibraryKind, version: str) -> tuple[bool, str, str]:
    problem, hint = load_problem(kind)
    if problem:
        return False, problem, hint
    return True, *abilities(kind, parse_version(version), find_device())


def load_problem(kind: LibraryKind) -> tuple[str, str]:
    """Why a library does not load, and the next step; ("", "") when it does. Tried in a process
    of its own, since one process takes only one library, and a broken one may end it."""
    code = _CODE.format(kind=kind.value, root=str(Path(qdebug.__file__).parent.parent))
    # With -P the files of the current folder are no modules: without, it would execute them.
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        message, hint = json.loads(done.stdout)
    except ValueError:
        return f"loading it ended the process with code {done.returncode}", "Install it again."
    return str(message), str(hint)


def abilities(kind: LibraryKind, version: tuple[int, ...], device: Device | str) -> tuple[str, str]:
    """What a library that loads can do on this machine, and a next step where that is not all.

    Which compute capabilities TensorRT for RTX executes on was tested with 1.5.0, 1.6.1 and 1.7.1.
    """
    if isinstance(device, str):
        if kind is LibraryKind.RTX:
            return f"builds engines for named GPUs; runs none here ({device})", ""
        return f"neither builds nor runs engines here ({device})", "Use tensorrt-rtx to build."
    capability = ".".join(map(str, device.compute_capability))
    if kind is LibraryKind.RTX and device.compute_capability == (9, 0):
        if version >= (1, 7):
            return (
                f"builds engines for named GPUs; does not run on compute capability {capability}",
                "pip install 'tensorrt-rtx-cu13<1.7' runs there, without INT8 convolutions",
            )
        return f"builds and runs engines on {device.name}, without INT8 convolutions", ""
    return f"builds and runs engines on {device.name}", ""
