"""Files for the user are checked before the work, and written whole."""

from __future__ import annotations

import errno
from functools import partial
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


def test_a_file_that_appeared_meanwhile_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    check_new(str(file), "--json", force=False)
    file.write_text("of another program")
    with refused("QD-STORE-OUTPUT-EXISTS", "out.json"):
        write_text(str(file), "ours", "--json", force=False)
    assert [p.read_text() for p in tmp_path.iterdir()] == ["of another program"]


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    """Where a name can be guessed, somebody else may have put a link there."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".out.json.partial").symlink_to(victim)
    for attempt in (check_writable, partial(write_text, text="new", force=False)):
        with refused("QD-STORE-OUTPUT-PATH", "out.json"):
            attempt(str(tmp_path / "out.json"), flag="--json")
    assert victim.read_text() == "precious" and not (tmp_path / "out.json").exists()


def test_what_a_killed_program_left_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / ".out.json.partial").write_text("half of something long")
    assert not being_written(tmp_path / "out.json")
    write_text(str(tmp_path / "out.json"), "new", "--json", force=False)
    assert [p.read_text() for p in tmp_path.iterdir()] == ["new"]


def test_two_do_not_write_one_file_at_once(tmp_path: Path) -> None:
    writing = PartialFile(tmp_path / "out.json")
    assert being_written(tmp_path / "out.json")
    with refused("QD-STORE-BUSY", "--json", "out.json"):
        write_text(str(tmp_path / "out.json"), "new", "--json", force=False)
    writing.fill(b"first")
    writing.publish(force=False)
    writing.discard()
    assert not being_written(tmp_path / "out.json")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["first"]


def test_of_files_that_belong_together_none_is_written_where_one_cannot_be_filled(
    tmp_path: Path,
) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "the disk")

    with refused("QD-STORE-OUTPUT-PATH", "data"):
        write_all({tmp_path / "main": b"", tmp_path / "data": full}, "--output", force=False)
    assert not list(tmp_path.iterdir())
