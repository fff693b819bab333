"""A run file appears whole or not at all, and every failure says what to do."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE_S

from qdebug.errors import StoreError
from qdebug.outputfiles import PartialFile
from qdebug.store.reader import RunReader
from qdebug.store.schema import Keep
from qdebug.store.writer import RunWriter

ALL = Keep("all")
ROW = {"a": np.ones((1, 8), np.float32)}


def put_row(writer: RunWriter, sample: int = 0) -> None:
    writer.choose(ALL, [sample], "float32")
    writer.put("reference", sample, ROW)


def write_run(path: Path, overwrite: bool = False) -> None:
    with RunWriter(path, overwrite=overwrite) as writer:
        put_row(writer)
        writer.finish("{}")


HEAD = """
import sys, numpy as np
from pathlib import Path
from qdebug.errors import StoreError
from qdebug.store.schema import Keep
from qdebug.store.writer import RunWriter
row = {"a": np.random.default_rng(0).random((1, 1 << 20))}
"""
KILL = """
import os, signal
with RunWriter(sys.argv[1], overwrite=True) as writer:
    writer.choose(Keep("all"), [0], "float32")
    writer.put("reference", 0, row)
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    writer.finish("{}")
"""
LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, 20 << 20))"
FILL = """
try:
    with RunWriter(sys.argv[1], overwrite=False) as run:
        run.choose(Keep("all"), range(20), "float32")
        for i in range(20):
            run.put("reference", i, row)
        run.finish("{}")
except StoreError as error:
    print(error)
print(*[p.name for p in Path(sys.argv[1]).parent.iterdir()], sep=",")
sys.exit(7)
"""


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def execute(*command: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return execute(sys.executable, "-c", HEAD + code, *arguments)


def test_nothing_is_visible_before_finish(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    with RunWriter(path, overwrite=False) as writer:
        put_row(writer)
        (partial,) = tmp_path.glob(".run.h5.partial")
        assert names_in(tmp_path) == [partial.name]
        assert writer.finish("{}") == path
    assert names_in(tmp_path) == ["run.h5"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, None])
def test_leaving_early_removes_the_temporary_file(
    error: type[BaseException] | None, tmp_path: Path
) -> None:
    (tmp_path / "run.h5").write_text("before")

    def leave() -> None:
        with RunWriter(tmp_path / "run.h5", overwrite=True) as writer:
            put_row(writer)
            if error:
                raise error

    if error:
        with pytest.raises(error):
            leave()
    else:
        leave()
    assert names_in(tmp_path) == ["run.h5"]
    assert (tmp_path / "run.h5").read_text() == "before"


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    path.write_text("before")
    with pytest.raises(StoreError, match="QD-STORE-OUTPUT-EXISTS"):
        RunWriter(path, overwrite=False)
    assert names_in(tmp_path) == ["run.h5"]
    write_run(path, overwrite=True)
    with RunReader(path) as run:
        assert run.samples == (0,)


def test_a_link_keeps_leading_to_the_run(tmp_path: Path) -> None:
    (tmp_path / "real.h5").write_text("before")
    (tmp_path / "link.h5").symlink_to("real.h5")
    write_run(tmp_path / "link.h5", overwrite=True)
    assert (tmp_path / "link.h5").is_symlink()
    RunReader(tmp_path / "real.h5").close()


def test_targets_that_cannot_be(tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "run.h5", tmp_path, Path("/dev/null"), tmp_path / ("x" * 250)):
        with pytest.raises(StoreError, match="QD-STORE-OUTPUT-PATH"):
            RunWriter(path, overwrite=True)
    assert names_in(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="QD-STORE-OUTPUT-PATH"):
        RunWriter(tmp_path / "run.h5", overwrite=False)


def test_a_second_run_to_the_same_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    with RunWriter(path, overwrite=False) as writer:
        put_row(writer, 3)
        with pytest.raises(StoreError, match="QD-STORE-BUSY"):
            RunWriter(path, overwrite=False)
        writer.finish("{}")
    with RunReader(path) as run:
        assert run.samples == (3,)


def test_a_killed_run_leaves_the_target_and_the_next_run_works(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    path.write_text("before")
    assert python(KILL, path, "SIGKILL").returncode == -signal.SIGKILL
    assert path.read_text() == "before"
    (partial,) = tmp_path.glob(".run.h5.partial")
    assert partial.stat().st_size > 1 << 20
    write_run(path, overwrite=True)
    assert names_in(tmp_path) == ["run.h5"]
    RunReader(path).close()


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    done = python(KILL, tmp_path / "run.h5", "SIGINT")
    assert done.returncode != 0
    assert "KeyboardInterrupt" in done.stderr
    assert names_in(tmp_path) == []


def test_a_write_that_the_system_refuses(tmp_path: Path) -> None:
    done = python(LIMIT + FILL, tmp_path / "run.h5")
    assert done.returncode == 7, done.stderr
    assert "QD-STORE-FILE-LIMIT" in done.stdout
    assert done.stdout.endswith("\n\n")  # nothing is left in the directory
    assert done.stderr == ""


def test_a_full_disk(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=20m tmpfs {tmp_path}"
    if not shutil.which("unshare") or execute("unshare", "-m", "sh", "-c", mount).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    command = f'{mount} && exec "$@"'
    fill = (sys.executable, "-c", HEAD + FILL, tmp_path / "r.h5")
    done = execute("unshare", "-m", "sh", "-c", command, "sh", *fill)
    assert done.returncode == 7, done.stderr
    assert "QD-STORE-DISK-FULL" in done.stdout
    assert "21 MB available" in done.stdout
    assert done.stdout.endswith("\n\n")


def test_a_full_disk_is_mapped_and_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunWriter, "_put", full)
    writer = RunWriter(tmp_path / "run.h5", overwrite=False)
    with pytest.raises(StoreError, match="QD-STORE-DISK-FULL"):
        put_row(writer)
    assert names_in(tmp_path) == []
    with pytest.raises(ValueError, match="closed"):
        put_row(writer)


def test_a_disk_that_will_not_hold_the_run_is_seen_before_the_first_row(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run.h5", overwrite=False)
    with pytest.raises(StoreError, match=r"(?s)about 1000000000 MB.*QD-STORE-DISK-FULL"):
        writer.choose(ALL, [0], "float32", size=1e15)
    assert names_in(tmp_path) == []


def test_a_close_that_fails_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Can't decrement id ref count (..., errno = 28, error message = 'No')")

    monkeypatch.setattr(PartialFile, "publish", refuse)
    with pytest.raises(StoreError, match="QD-STORE-DISK-FULL"):
        write_run(tmp_path / "run.h5")
    assert names_in(tmp_path) == []


def test_text_is_refused_by_name(tmp_path: Path) -> None:
    with (
        RunWriter(tmp_path / "run.h5", overwrite=False) as writer,
        pytest.raises(StoreError, match=r"(?s)'words'.*QD-STORE-DTYPE"),
    ):
        writer.choose(ALL, [0], "float32")
        writer.put("reference", 0, {"words": np.array(["a"], object)})
    assert names_in(tmp_path) == []
