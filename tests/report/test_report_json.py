"""What is not a number in JSON, and the files it is written to."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from qdebug.errors import StoreError, UsageError
from qdebug.report.files import check_distinct, check_writable, write_text


def test_non_finite_values_are_null_with_a_flag(kit: Any) -> None:
    found = kit.result(
        [kit.layer("hot", local=math.nan, metrics=kit.broken), kit.layer("ok", local=math.inf)],
        conditions=(kit.Checked("layer.sqnr_db>=1", -math.inf, False),),
        first_divergence=kit.Divergence("h", None, math.nan, 20.0),
    )
    data = found.to_dict()
    text = json.dumps(data, allow_nan=False)  # raises where a NaN is left
    assert json.loads(text) == data
    hot, fine = data["layers"]
    broken = ("max_abs_err", "mean_abs_err", "rmse", "sqnr_db", "cosine", "local_sqnr_db")
    broken += ("worst_sample_sqnr_db",)
    assert hot["non_finite"] == dict.fromkeys(broken, "nan")
    assert all(hot[key] is None for key in broken) and hot["inf_count"] == 7
    assert fine["non_finite"] == {"local_sqnr_db": "inf"} and fine["sqnr_db"] == 31.25
    assert data["verdict"]["conditions"][0]["non_finite"] == {"value": "-inf"}
    assert data["first_divergence"]["non_finite"] == {"sqnr_db": "nan"}
    assert "non_finite" not in data["outputs"][0]


def test_names_are_exact(kit: Any) -> None:
    name = 'слой \x1b[31m "quoted" \\ [red] 层'
    data = json.loads(json.dumps(kit.result([kit.layer(name)]).to_dict()))
    assert data["layers"][0]["name"] == name


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
        with pytest.raises(UsageError, match="is also MODEL"):
            check_distinct({"-o": path}, inputs)
    with pytest.raises(UsageError, match=r"--json: \./run is also -o"):
        check_distinct({"-o": "run", "--json": "./run"}, inputs)
