"""The notebooks of the documentation run from the first cell to the last."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_it_runs_and_is_committed_without_outputs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    # Beside a copy of the data, so that nothing is left in the working tree.
    shutil.copytree(ROOT / "calib_data", tmp_path / "calib_data")
    folder = tmp_path / "docs" / "notebooks"
    folder.mkdir(parents=True)
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()  # raises CellExecutionError with the cell that failed
    shown = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert any("text/html" in o.get("data", {}) for o in shown)
