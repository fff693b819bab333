"""A cache folder that several processes use at once, as on a network drive."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from patience import PATIENCE_S

from qdebug.store.cache import load_result, save_result

ROUNDS, VALUES = 60, 4000
SPAWN = multiprocessing.get_context("spawn")


def work(folder: str, own: int, seen: multiprocessing.Queue[set[float]]) -> None:
    """Keep results of one key again and again, and read what is there."""
    os.environ["QDEBUG_CACHE_DIR"] = folder
    found = set()
    for _ in range(ROUNDS):
        save_result("kind", "key", {"table": [own] * VALUES})
        table = load_result("kind", "key")["table"]
        assert len(table) == VALUES and len(set(table)) == 1
        found.add(float(table[0]))
    seen.put(found)


def test_two_processes_keep_results_of_one_key(tmp_path: Path) -> None:
    seen: multiprocessing.Queue[set[float]] = SPAWN.Queue()
    both = [SPAWN.Process(target=work, args=(str(tmp_path), own, seen)) for own in (1, 2)]
    for process in both:
        process.start()
    found = seen.get(timeout=PATIENCE_S) | seen.get(timeout=PATIENCE_S)
    for process in both:
        process.join()
        assert process.exitcode == 0
    assert found == {1.0, 2.0}
    assert [p.name for p in (tmp_path / "kind").iterdir()] == ["key.json"]


@pytest.mark.parametrize("planted", ["link", "pipe"])
def test_what_somebody_planted_in_the_folder_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path / "cache"))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "cache" / "kind").mkdir(parents=True)
    path = tmp_path / "cache" / "kind" / "key.json"
    path.symlink_to(victim) if planted == "link" else os.mkfifo(path)
    assert load_result("kind", "key") is None
    save_result("kind", "key", {"a": 1})
    assert load_result("kind", "key") == {"a": 1}
    assert victim.read_text() == "precious"
