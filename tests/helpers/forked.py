"""Python programs that start with their libraries imported.

Importing numpy, onnx, ONNX Runtime and qdebug takes a program most of a second, and hundreds of
tests start one. Here a process imports them once, and forks for every program: with its own
arguments, working directory, environment, standard streams, signals and exit code, as any other.
Three things are not as in one that is started: what the interpreter reads first (PYTHONHASHSEED,
PYTHONIOENCODING), what happens while modules are imported, and the memory in use. Tests of these,
and some of each kind besides, start `sys.executable`.
"""

from __future__ import annotations

import atexit
import gc
import io
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from patience import PATIENCE_S

TESTS = Path(__file__).parents[1]
_FORKS = multiprocessing.get_context("forkserver")
_IMPORTED = [
    "qdebug.cli.app",
    "qdebug.cli.run",
    "qdebug.commands.bisect",
    "qdebug.commands.calibrate.command",
    "qdebug.commands.compare.command",
    "qdebug.commands.preflight",
    "qdebug.commands.repair",
    "qdebug.commands.report.attached",
    "qdebug.config.validate",
    "qdebug.decide.search.find",
    "qdebug.network.samples.readers.npy",
    "qdebug.network.samples.readers.npz",
    *(f"qdebug.calibrators.{name}" for name in ("entropy", "mean_max", "minmax", "percentile")),
    "numpy.ma",
    "numpy.random",
    "onnxruntime",
    "pydantic.type_adapter",
    "scipy.linalg",
]
_FORKS.set_forkserver_preload(_IMPORTED)


def run(
    program: Sequence[str | Path],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    preexec_fn: Callable[[], None] | None = None,
    libraries_only: bool = False,
    timeout: float = PATIENCE_S,
) -> subprocess.CompletedProcess[str]:
    """Run what stands behind `python` on a command line: "-m" and a module, "-c" and code, or a
    script; and its arguments. Its standard input is empty.

    Args:
        program: the words.
        cwd: its working directory.
        env: its environment.
        preexec_fn: called first, in the process of the program; can be pickled.
        libraries_only: it imports qdebug itself, by its own PYTHONPATH.
        timeout: in seconds; it is killed then.

    Raises:
        subprocess.TimeoutExpired: it did not end in time.
    """
    given = (program, str(cwd or Path.cwd()), dict(env or os.environ))
    forgotten = "qdebug" if libraries_only else ""
    return _run(_FORKS, *given, preexec_fn=preexec_fn, forgotten=forgotten, timeout=timeout)


def run_in_turn(
    programs: Sequence[Sequence[str | Path]], *, cwd: Path, env: Mapping[str, str]
) -> list[subprocess.CompletedProcess[str]]:
    """Run programs one after the other, each in a process of its own: these fork from one that has
    imported the qdebug of `cwd`, of which there may be any copy, once for all of them."""
    results, writing = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_run_each, args=(programs, str(cwd), dict(env), writing))
    process.start()
    writing.close()
    with results:
        found: list[subprocess.CompletedProcess[str]] = results.recv()
    process.join()
    process.close()
    return found


def _run_each(
    programs: Sequence[Sequence[str | Path]],
    folder: str,
    environment: dict[str, str],
    results: Connection,
) -> None:
    _forget("qdebug")
    sys.path.insert(0, folder)
    for name in _IMPORTED:
        import_module(name)
    assert str(sys.modules["qdebug"].__file__).startswith(folder)
    forks = multiprocessing.get_context("fork")
    results.send([_run(forks, program, folder, environment) for program in programs])


def _run(
    processes: Any,
    program: Sequence[str | Path],
    folder: str,
    environment: dict[str, str],
    *,
    preexec_fn: Callable[[], None] | None = None,
    forgotten: str = "",
    timeout: float = PATIENCE_S,
) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in program]
    outputs = [processes.Pipe(duplex=False) for _ in ("stdout", "stderr")]
    process = processes.Process(
        target=_become,
        args=(words, folder, environment),
        kwargs={
            "streams": [writing for _, writing in outputs],
            "preexec_fn": preexec_fn,
            "forgotten": forgotten,
        },
    )
    process.start()
    for _, writing in outputs:
        writing.close()
    with ThreadPoolExecutor(len(outputs)) as readers:
        texts = [readers.submit(_read, reading) for reading, _ in outputs]
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout)
        out, err = (text.result() for text in texts)
    code = process.exitcode
    process.close()
    return subprocess.CompletedProcess(words, code, out, err)


def _read(stream: Connection) -> str:
    with stream, open(stream.fileno(), encoding="utf-8", closefd=False) as text:
        return text.read()


def _forget(package: str) -> None:
    """So that it is imported anew."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def _become(
    words: list[str],
    folder: str,
    environment: dict[str, str],
    streams: list[Connection],
    preexec_fn: Callable[[], None] | None,
    forgotten: str,
) -> None:
    """Become the program, without the package that is to be `forgotten`; its exit code is that of
    the process."""
    gc.freeze()  # what was imported: looking for garbage in it would copy its memory
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream.fileno(), number)
        stream.close()
    encoding = sys.stdout.encoding
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding)
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        binary = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        text = io.TextIOWrapper(binary, encoding, errors, line_buffering=number == 2)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    in_folder = words[0] in ("-m", "-c")
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    found = [path for path in sys.path if path and not Path(path).is_relative_to(TESTS)]
    first = folder if in_folder else str(Path(words[0]).parent)
    sys.path[:] = [first, *filter(None, paths), *found]
    _forget(forgotten)
    if preexec_fn is not None:
        preexec_fn()
    sys.argv[:] = words[1:] if words[0] == "-m" else words
    main = ModuleType("__main__")
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main  # what its own processes look up
    try:
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            exec(compile(sys.argv.pop(1), "<string>", "exec"), vars(main))
        else:
            main.__file__ = words[0]
            exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), vars(main))
    finally:
        atexit._run_exitfuncs()
