"""Files for the user are checked before the work, and written whole."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refused

from qdebug.errors import StoreError
from qdebug.outputfiles import (
    PartialFile,
    being_written,
    check_distinct,
    check_new,
    check_writable,
    own_folder,
    write_all,
    write_text,
)


def test_a_file_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.json"
    write_text(str(file), "old", "--json", force=False)

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(str(file), "new", "--json", force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"] and file.read_text() == "old"


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    link = tmp_path / "link.json"
    link.symlink_to("real.json")
    check_writable(str(link), "--json")
    write_text(str(link), "new", "--json", force=True)
    assert link.is_symlink() and (tmp_path / "real.json").read_text() == "new"


def test_check_writable_leaves_nothing(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "new.json"), "--json")
    check_writable("/dev/null", "--json")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    for bad in (tmp_path, tmp_path / "no" / "x", tmp_path / "file" / "x", tmp_path / ("x" * 300)):
        with pytest.raises(StoreError, match="--json"):
            check_writable(str(bad), "--json")


def test_check_distinct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").touch()
    Path("alias").symlink_to("model.onnx")
    inputs = {"MODEL": "model.onnx", "--plan": None}
    check_distinct({"-o": "run.h5", "--json": None}, inputs)
    check_distinct({"-o": "/dev/null", "--json": "/dev/null"}, inputs)
    for path in ("model.onnx", "./model.onnx", "alias", str(tmp_path / "model.onnx")):
        with refused("QD-USAGE-SAME-FILE", "MODEL"):
            check_distinct({"-o": path}, inputs)
    with refused("QD-USAGE-SAME-FILE", "--json: ./run", "-o"):
        check_distinct({"-o": "run", "--json": "./run"}, inputs)


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    """Where a name can be guessed, somebody else may have put a link there."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    names = [".out.json.partial", f".out.json.{os.getpid()}.partial"]
    names.append(".out.json.0123456789ab.partial")
    for name in names:
        (tmp_path / name).symlink_to(victim)
    check_writable(str(tmp_path / "out.json"), "--json")
    write_text(str(tmp_path / "out.json"), "new", "--json", force=False)
    assert victim.read_text() == "precious"
    assert all((tmp_path / name).is_symlink() for name in names)


def test_every_partial_file_is_created_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = iter(["0" * 12, "1" * 12])
    monkeypatch.setattr("qdebug.outputfiles.secrets.token_hex", lambda _: next(tokens))
    (tmp_path / "victim").write_text("precious")
    (tmp_path / f".out.{'0' * 12}.partial").symlink_to(tmp_path / "victim")
    partial = PartialFile(tmp_path / "out")
    assert partial.path.name == f".out.{'1' * 12}.partial"
    partial.discard()
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_file_that_appeared_meanwhile_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    check_new(str(file), "--json", force=False)
    file.write_text("of another program")
    with refused("QD-STORE-OUTPUT-EXISTS", "out.json"):
        write_text(str(file), "ours", "--json", force=False)
    assert [p.read_text() for p in tmp_path.iterdir()] == ["of another program"]


def test_what_a_killed_program_left_is_removed_and_what_is_written_is_not(tmp_path: Path) -> None:
    left = tmp_path / f".out.json.{'a' * 12}.partial"
    left.touch()
    others = [tmp_path / f".other.json.{'a' * 12}.partial", tmp_path / ".out.json.partial"]
    for other in others:
        other.touch()
    writing = PartialFile(tmp_path / "out.json")
    assert not left.exists() and all(o.exists() for o in others)
    write_text(str(tmp_path / "out.json"), "new", "--json", force=False)
    assert writing.path.exists() and being_written(tmp_path / "out.json")
    writing.discard()
    assert not being_written(tmp_path / "out.json")


INTERRUPTED = """
import signal, sys
from pathlib import Path
from qdebug.outputfiles import PartialFile, write_all
signal.signal(signal.SIGINT, signal.default_int_handler)
publish = PartialFile.publish
def interrupt(self, *, force):
    publish(self, force=force)
    signal.raise_signal(signal.SIGINT)
PartialFile.publish = interrupt
try:
    files = {Path(sys.argv[1], name): name.encode() for name in ("main", "part", "data")}
    write_all(files, "--output", force=False)
except KeyboardInterrupt:
    sys.exit(42)
"""
"""Ctrl-C after each file that is put in its place, in a process of its own."""


def test_files_that_belong_together_are_written_all_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("main", "part", "data")
    files = {tmp_path / name: name.encode() for name in names}
    publish = PartialFile.publish

    def refuse(self: PartialFile, *, force: bool) -> None:
        if self.target.name == "main":
            raise OSError(errno.EIO, "the disk")
        publish(self, force=force)

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="QD-STORE-OUTPUT-PATH"):
        patch.setattr(PartialFile, "publish", refuse)
        write_all(files, "--output", force=False)
    assert not list(tmp_path.iterdir())

    ended = subprocess.run([sys.executable, "-c", INTERRUPTED, str(tmp_path)], check=False)
    assert ended.returncode == 42
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {n: n for n in names}


LEAVES = """
import os, signal, sys
from qdebug.outputfiles import own_folder
with own_folder("mine-", sys.argv[1]) as folder:
    (folder / "large").write_text("data")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_folder_removes_what_a_killed_program_left_and_nothing_else(
    tmp_path: Path,
) -> None:
    others = {"other-mine-", "mine-link", "mine-notes"}
    (tmp_path / "other-mine-").mkdir()
    (tmp_path / "mine-link").symlink_to(tmp_path / "other-mine-")
    (tmp_path / "mine-notes").mkdir()  # the user's
    (tmp_path / "mine-notes" / "a.txt").touch()
    with own_folder("mine-", tmp_path) as in_use:
        subprocess.run([sys.executable, "-c", LEAVES, str(tmp_path)], check=False)
        assert len(list(tmp_path.iterdir())) == len(others) + 2
        with own_folder("mine-", tmp_path) as second:
            found = {path.name for path in tmp_path.iterdir()}
            assert found == {*others, in_use.name, second.name}
    assert {path.name for path in tmp_path.iterdir()} == others
