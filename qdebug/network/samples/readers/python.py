"""`script.py:function`, which gives feeds, as Polygraphy's `load_data()` does: without arguments.

The script imports modules of its own folder, as `python script.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qdebug.errors import SampleError
from qdebug.network.samples.iterables import IteratedFeeds
from qdebug.network.samples.samples import Source
from qdebug.types import TensorSpec
from qdebug.userfile import UserCodeProblem, function_of, load_file

DEFAULT_FUNCTION = "load_data"
_PROBLEM = UserCodeProblem(SampleError, "QD-SAMPLES-FEEDS")


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """The feeds that the script's `load_data` gives. Raises as `open_script`."""
    return open_script(path, DEFAULT_FUNCTION)


def split_spec(spec: str) -> tuple[Path, str] | None:
    """The script and the function that `spec` names, or None when it names no script."""
    script, colon, function = spec.rpartition(":")
    if colon and script.endswith(".py"):
        return Path(script), function or DEFAULT_FUNCTION
    return (Path(spec), DEFAULT_FUNCTION) if spec.endswith(".py") else None


def open_script(path: Path, function: str) -> IteratedFeeds:
    """The feeds that a function of a script gives.

    Raises:
        SampleError: the script fails, or has no such function.
    """
    name = f"{path}:{function}"
    return IteratedFeeds(
        function_of(load_file(path, _PROBLEM), function, name, _PROBLEM), name, path
    )
