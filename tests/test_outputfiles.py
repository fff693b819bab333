"""Files for the user are checked before the work, and written whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from qdebug.errors import StoreError
from qdebug.outputfiles import check_distinct, check_writable, write_text


def test_a_file_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.json"
    write_text(str(file), "old", "--json")

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(str(file), "new", "--json")
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"] and file.read_text() == "old"


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    link = tmp_path / "link.json"
    link.symlink_to("real.json")
    check_writable(str(link), "--json")
    write_text(str(link), "new", "--json")
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
