"""A folder with the files that the commands of the documentation name."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import prepare_files


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small real models, samples, plans, logs and run files."""
    folder = tmp_path_factory.mktemp("documents")
    prepare_files(folder)
    return folder
