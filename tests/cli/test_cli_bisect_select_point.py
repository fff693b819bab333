"""`qdebug bisect --select-point`: another point of the list of error against cost."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from qdebug.cli.app import main
from qdebug.plan.planfile import read_plan

BUNDLED = Path(__file__).parents[2] / "calib_data"
SEARCH = ["bisect", str(BUNDLED / "digits_cnn.onnx"),
          "--inputs", str(BUNDLED / "digits_holdout.npz"),
          "--calib-data", str(BUNDLED / "digits_calib.npz"), "--weights", "per-tensor",
          "--metric", "top1", "--max-drop", "0.04"]  # fmt: skip


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished search: found.json, and the cache with its evaluations."""
    folder = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QDEBUG_CACHE_DIR", str(folder / "cache"))
        assert main([*SEARCH, "--json", str(folder / "found.json")]) == 0
    return folder


@pytest.fixture
def answer(desk: Any, searched: Path) -> Any:
    """What the search found; it is in the cache of the desk."""
    shutil.copytree(searched / "cache", os.environ["QDEBUG_CACHE_DIR"], dirs_exist_ok=True)
    return json.loads((searched / "found.json").read_text("utf-8"))


def test_a_point_is_taken_without_evaluating_again_and_is_verified(desk: Any, answer: Any) -> None:
    passing = [p for p in answer["pareto"] if p["passed"] and p["pinned"] != answer["pinned"]]
    point = passing[0]
    done = desk.run(*SEARCH, "--select-point", point["point"], "-o", "p.yaml", "--json", "-")
    result = done.json
    assert done.code == 0 and result["passed"]
    assert [h["value"] for h in result["history"]] == [h["value"] for h in answer["history"]]
    assert sorted(result["pinned"]) == point["pinned"]
    assert result["achieved"] == point["value"]
    assert [c["passed"] for c in result["checks"]] == [True]
    assert result["verified_on"]["value"] > result["verified_on"]["baseline"]["value"]
    assert result["pareto"] == answer["pareto"]
    taken = result["selected_point"]
    assert (taken["point"], taken["points"]) == (point["point"], len(answer["pareto"]))
    assert taken["answer"]["pinned"] == sorted(answer["pinned"])
    assert answer["selected_point"] is None
    assert sorted(read_plan("p.yaml").layers) == point["pinned"]
    assert f"{point['value']:.4f}" in Path("p.yaml").read_text("utf-8")


def test_a_point_below_the_target_is_written_and_says_so(desk: Any, answer: Any) -> None:
    done = desk.run(*SEARCH, "--select-point", "1", "-o", "p.yaml")
    assert done.code == 1
    assert done.out.splitlines()[-3].startswith("TARGET NOT MET")
    assert read_plan("p.yaml").layers == {}


def test_the_knee_and_numbers_beyond_the_list(desk: Any, answer: Any) -> None:
    knee = next(p for p in answer["pareto"] if p["knee"])
    desk.write("run.yaml", yaml.safe_dump({"command": "bisect", "select-point": knee["point"]}))
    by_number = desk.run(*SEARCH, "--config", "run.yaml", "--json", "-").json
    by_name = desk.run(*SEARCH, "--select-point", "knee", "--json", "-").json
    assert by_name["selected_point"] == by_number["selected_point"]
    assert sorted(by_name["pinned"]) == knee["pinned"]
    beyond = len(answer["pareto"]) + 1
    says = ["QD-USAGE-POINT", f"--select-point {beyond}", str(beyond - 1)]
    desk.refused(*SEARCH, "--select-point", beyond, says=says)


def test_the_search_s_own_answer_may_be_taken(desk: Any, answer: Any) -> None:
    own = next(p for p in answer["pareto"] if p["pinned"] == sorted(answer["pinned"]))
    result = desk.run(*SEARCH, "--select-point", own["point"], "--json", "-").json
    assert result["pinned"] == answer["pinned"] and result["minimal"] == answer["minimal"]
    assert [c["value"] for c in result["checks"]] == [c["value"] for c in answer["checks"]]


def test_where_nothing_meets_the_target_a_point_can_still_be_taken(desk: Any) -> None:
    flags = ["bisect", "net.onnx", "--inputs", "data.npz", "--calib-data", "calib.npz",
             "--target", "output.sqnr_db>=90", "--never-pin", "fc"]  # fmt: skip
    done = desk.run(*flags, "--json", "-")
    assert done.code == 1 and done.json["achieved"] is None
    done = desk.run(*flags, "--select-point", "2", "-o", "p.yaml", "--json", "-")
    assert done.code == 1 and done.json["achieved"] < 90
    assert done.json["selected_point"]["answer"] is None
    assert read_plan("p.yaml").layers
