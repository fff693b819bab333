"""A sweep that was killed goes on in the folder of its engines; another one may not use it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from refusals import refused

from qdebug.backends.engine import BuiltEngine
from qdebug.commands.sweep.saved import SavedEngines
from qdebug.config.sweep import SweepSettings


def settings(folder: Path, precision: str = "int8") -> SweepSettings:
    return SweepSettings(
        model="net.onnx",
        inputs="data.npz",
        precision=(precision,),
        save_engines=str(folder),
    )


def test_the_same_sweep_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "engines"
    built = BuiltEngine(b"engine", "log", (), (), 1.0, "key")
    SavedEngines(settings(folder), "digest", 2).save(1, built)
    with refused("QD-STORE-OUTPUT-EXISTS", "1.engine"):
        SavedEngines(settings(folder), "another model", 2)
    with refused("QD-STORE-OUTPUT-EXISTS", "1.engine"):
        SavedEngines(settings(folder, "fp16"), "digest", 2)
    again = SavedEngines(settings(folder), "digest", 2)
    again.save(1, built)
    again.save(2, built)
    again.finish()
    names = ["1.engine", "1.log", "2.engine", "2.log"]
    assert sorted(p.name for p in folder.iterdir()) == names
    with refused("QD-STORE-OUTPUT-EXISTS", "1.engine"):
        SavedEngines(settings(folder), "digest", 2)


@pytest.mark.parametrize("planted", ["link", "pipe"])
def test_what_somebody_planted_in_the_folder_is_not_followed(tmp_path: Path, planted: str) -> None:
    folder, victim = tmp_path / "engines", tmp_path / "victim"
    victim.write_text("precious")
    folder.mkdir()
    marker = folder / ".unfinished"
    marker.symlink_to(victim) if planted == "link" else os.mkfifo(marker)
    SavedEngines(settings(folder), "digest", 1).finish()
    assert victim.read_text() == "precious" and not list(folder.iterdir())
    marker.mkdir()
    with refused("QD-STORE-OUTPUT-PATH", ".unfinished"):
        SavedEngines(settings(folder), "digest", 1)
    (folder / "1.engine").symlink_to(tmp_path / "new")  # leads nowhere yet
    with refused("QD-STORE-OUTPUT-EXISTS", "1.engine"):
        SavedEngines(settings(folder), "digest", 1)
