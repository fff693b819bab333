"""`qdebug export` of a run file: figures for other tools."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import qdebug


@pytest.fixture
def compared(desk: Any) -> Any:
    """The result of a run that is in run.h5."""
    desk.saved = desk.result("--calib-data", "calib.npz", "-o", "run.h5")
    return desk


def layers_of(desk: Any) -> dict[str, Any]:
    return {layer["name"]: layer for layer in desk.saved["layers"]}


def test_csv(compared: Any) -> None:
    done = compared.run("export", "run.h5", "--to", "csv", "-o", "found.csv")
    assert (done.code, done.out) == (0, "Wrote found.layers.csv\nWrote found.tensors.csv\n")
    with Path("found.layers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    layers = layers_of(compared)
    assert [row["name"] for row in rows] == list(layers)
    for row in rows:
        layer = layers[row["name"]]
        assert float(row["sqnr_db"]) == layer["sqnr_db"]
        assert row["precision"] == layer["precision"] and row["rank"] == str(layer["rank"])
        assert json.loads(row["nodes"]) == layer["nodes"]
        share = (layer["effect"] or {}).get("output_share")
        assert row["effect.output_share"] == ("" if share is None else str(share))
        assert "effect" not in row
    with Path("found.tensors.csv").open(newline="") as file:
        tensors = list(csv.DictReader(file))
    assert [row["name"] for row in tensors] == [t["name"] for t in compared.saved["tensors"]]
    assert [float(row["rmse"]) for row in tensors] == [t["rmse"] for t in compared.saved["tensors"]]


def test_parquet(compared: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    qdebug.export("run.h5", to="parquet")
    rows = parquet.read_table("run.layers.parquet").to_pylist()
    layers = layers_of(compared)
    assert [row["name"] for row in rows] == list(layers)
    for row in rows:
        layer = layers[row["name"]]
        assert row["sqnr_db"] == layer["sqnr_db"] and row["local_sqnr_db"] == layer["local_sqnr_db"]
    assert len(parquet.read_table("run.tensors.parquet")) == len(compared.saved["tensors"])


def test_parquet_without_its_library(compared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    compared.refused("export", "run.h5", "--to", "parquet", says=["QD-USAGE-PARQUET", "pyarrow"])


def test_a_run_in_memory(compared: Any) -> None:
    with qdebug.load_run("run.h5") as run:
        done = qdebug.export(run, to="csv", output="a.csv")
    assert [path.name for path in done.files] == ["a.layers.csv", "a.tensors.csv"]


def test_refusals(compared: Any) -> None:
    for target in ("csv", "parquet"):
        says = ["QD-USAGE-EXPORT-SOURCE", "net.onnx", f"--to {target}"]
        compared.refused("export", "net.onnx", "--to", target, says=says)
    compared.refused("export", "no.h5", "--to", "csv", says=["QD-STORE-NOT-FOUND", "no.h5"])
    compared.write("run.tensors.csv", "mine")
    says = ["QD-STORE-OUTPUT-EXISTS", "run.tensors.csv", "--force"]
    compared.refused("export", "run.h5", "--to", "csv", says=says)
    assert compared.run("export", "run.h5", "--to", "csv", "--force").code == 0


def test_names_with_commas_quotes_and_line_ends(desk: Any, cnn: Any) -> None:
    odd = 'a,"b"\n=1+1;ü'
    desk.save(cnn(names={"conv1": odd}))
    desk.compare("-o", "run.h5")
    assert desk.run("export", "run.h5", "--to", "csv").code == 0
    with Path("run.layers.csv").open(newline="", encoding="utf-8") as file:
        assert odd in [row["name"] for row in csv.DictReader(file)]
