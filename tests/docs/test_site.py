"""The documentation builds without a warning: no broken link, anchor or page outside the menu."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from documents import documents, run_qdebug

import qdebug

REPOSITORY = Path(__file__).parents[2]


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=REPOSITORY,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").is_file()


def test_the_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text("utf-8").splitlines()) <= 200


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", (REPOSITORY / "README.md").read_text("utf-8"))
    local = [link for link in links if not link.startswith("http")]
    assert local and not [link for link in local if not (REPOSITORY / link).is_file()]


def test_commands_in_the_text_exist() -> None:
    help_text = run_qdebug(["--help"])[1]
    for page in documents():
        for command in re.findall(r"`qdebug ([a-z]+)", page.read_text("utf-8")):
            assert f" {command} " in help_text, f"{page.name}: there is no qdebug {command}"


def test_every_public_name_is_in_the_reference() -> None:
    page = (REPOSITORY / "docs" / "reference" / "python-api.md").read_text("utf-8")
    assert not [name for name in qdebug.__all__ if not re.search(rf"\b{name}\b", page)]


def test_every_schema_is_listed() -> None:
    folder = REPOSITORY / "docs" / "reference" / "schemas"
    page = (folder / "index.md").read_text("utf-8")
    assert {f"({file.name})" for file in folder.glob("*.json")} == set(
        re.findall(r"\(qdebug\.\S+\.json\)", page)
    )
