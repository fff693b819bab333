"""The program of the page that is committed is the one that its sources give."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from qdebug.page.html import assets

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "scripts" / "page"


def test_the_bundle_is_made_of_the_sources() -> None:
    """See `digest` in scripts/page/build.mjs."""
    found = hashlib.sha256()
    sources = (p for p in (PAGE / "src").rglob("*") if p.suffix in (".js", ".css"))
    names = sorted(path.relative_to(PAGE).as_posix() for path in sources)
    for name in [*names, "package-lock.json"]:
        found.update(f"{name}\n".encode() + (PAGE / name).read_bytes())
    built = (ROOT / "qdebug/page/assets/sources.sha256").read_text("utf-8").strip()
    assert built == found.hexdigest(), "run `npm ci && npm run build` in scripts/page"


def test_the_program_can_stand_in_a_page() -> None:
    """Nothing in it ends its element, and a browser reads it as it was hashed."""
    used = assets()
    assert "</script" not in used.script.lower() and "<!--" not in used.script
    assert "</style" not in used.style.lower()
    assert "\r" not in used.script + used.style and "\0" not in used.script + used.style


def test_a_page_without_data_is_small() -> None:
    used = assets()
    assert len(used.script.encode()) + len(used.style.encode()) < 420_000


def test_the_licences_of_all_that_is_shipped_go_with_it() -> None:
    """In the wheel beside the program, and in each page."""
    listed = (ROOT / "qdebug/page/assets/LICENSES.txt").read_text("utf-8")
    packages = json.loads((PAGE / "package-lock.json").read_text("utf-8"))["packages"]
    shipped = {path: entry for path, entry in packages.items() if path and not entry.get("dev")}
    assert len(shipped) >= 3
    for path, entry in shipped.items():
        name = path.removeprefix("node_modules/")
        assert f"{name} {entry['version']} ({entry['license']})\n\n" in listed
    assert listed.count("Permission is hereby granted") == len(shipped)
    assert listed in assets().script
