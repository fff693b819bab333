"""The pages on file formats describe the files that are written, and their examples work."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import pytest

from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.plan import bind_plan
from qdebug.plan.planfile import TensorEntry, _PlanFile, read_plan
from qdebug.types import Precision

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
DATA = ROOT / "calib_data"


def example(page: str, language: str) -> str:
    text = (REFERENCE / page).read_text(encoding="utf-8")
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found
    return found[1]


def first_cells(page: str, after: str) -> set[str]:
    """The names in the first column of the first table below a line of a page."""
    lines = (REFERENCE / page).read_text(encoding="utf-8").split(after, 1)[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table += re.findall(r"`([^`]+)`", line.split("|")[1])
    return set(table)


def test_the_plan_of_the_page_fits_the_bundled_model(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(example("plan-file.md", "yaml"), encoding="utf-8")
    model = prepare_model(read_model(DATA / "digits_cnn.onnx"))
    layers = find_layers(model.graph)
    bound = bind_plan(read_plan(path), model, layers)
    assert next(iter(bound.precisions.values())) is Precision.FP32
    assert Precision.INT8 in bound.precisions.values()
    assert Precision.FP16 in bound.precisions.values()


def test_every_key_of_a_plan_is_described() -> None:
    keys = {"schema" if name == "schema_" else name for name in _PlanFile.model_fields}
    keys = (keys - {"model"}) | {"model.path", "model.sha256"}
    keys |= {f"tensors.NAME.{name}" for name in TensorEntry.model_fields}
    assert first_cells("plan-file.md", "Only `schema`") == keys


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import qdebug

    path = tmp_path_factory.mktemp("run") / "run.h5"
    qdebug.compare(
        str(DATA / "digits_cnn.onnx"),
        inputs=str(DATA / "digits_holdout.npz"),
        samples=4,
        metric="top1",
        output=str(path),
    )
    return path


def test_the_run_file_is_as_described(run_file: Path) -> None:
    with h5py.File(run_file) as run:
        assert set(run.attrs) == first_cells("run-file.md", "### Attributes of the file")
        paths = {p.split("/")[1] for p in first_cells("run-file.md", "## Layout")} - {""}
        assert set(run) == paths
        described = first_cells("run-file.md", "### A group below") | {"name"}
        for group in run["ranges"].values():
            assert {*group.attrs, *group} == described


def test_the_program_of_the_page_reads_a_run(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run_file.parent)
    variables: dict[str, object] = {}
    exec(compile(example("run-file.md", "python"), "run-file.md", "exec"), variables)
    assert "logits" in capsys.readouterr().out
    assert str(variables["results"]["schema"]).startswith("qdebug.compare/")
