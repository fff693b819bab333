"""Rewrite what programs print in the documentation: blocks of output, and the picture of the demo.

    .venv/bin/python scripts/update_docs.py

A block below a comment ``<!-- output: qdebug … -->`` is replaced by what that command prints. Read
the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests" / "helpers")]

from documents import documents, prepare_files, run_qdebug, selected, still_shown  # noqa: E402

OUTPUT = re.compile(
    r"(?P<head><!-- output: (?P<note>qdebug .*?) -->\n```text\n)(?P<body>.*?)(?P<tail>^```$)",
    re.MULTILINE | re.DOTALL,
)
PICTURE_COLUMNS = 118


def update_page(page: Path) -> bool:
    """Rewrite the blocks of a page; whether anything changed."""
    before = page.read_text("utf-8")
    after = OUTPUT.sub(updated, before)
    page.write_text(after, "utf-8")
    return before != after


def updated(found: re.Match[str]) -> str:
    """A block with the selected lines of what its command prints now."""
    note = found["note"]
    command = note.split(" | ")[0]
    _, output, said = run_qdebug(shlex.split(command)[1:])
    if not output:
        raise SystemExit(f"{command}: {said}")
    now = selected(output, note)
    body = found["body"] if still_shown(note, now, found["body"]) else now
    return found["head"] + body + found["tail"]


def demo_command() -> list[str]:
    """The arguments of `qdebug` in scripts/demo, less the file that it writes."""
    text = (REPOSITORY / "scripts" / "demo").read_text("utf-8").replace("\\\n", " ")
    line = next(line for line in text.splitlines() if line.startswith(".venv/bin/qdebug"))
    return shlex.split(line.split("--output")[0])[1:]


def draw_demo(target: Path) -> None:
    """The demo's real output as a picture, up to the first cause."""
    colours = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(PICTURE_COLUMNS)}
    done = subprocess.run(
        [sys.executable, "-m", "qdebug", *demo_command(), "--no-progress"],
        env=colours | {"PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    first = next(i for i, line in enumerate(lines) if "Why" in line)
    end = next(i for i in range(first + 2, len(lines)) if "/conv/" in lines[i] or not lines[i])
    shown = Console(record=True, width=PICTURE_COLUMNS, file=io.StringIO(), force_terminal=True)
    shown.print(Text("$ qdebug " + " ".join(demo_command()), style="bold green"))
    for line in lines[:end]:
        shown.print(Text.from_ansi(line))
    svg = shown.export_svg(title="scripts/demo", unique_id="demo")
    target.write_text("\n".join(map(str.rstrip, svg.splitlines())) + "\n", "utf-8")


def main() -> None:
    """Rewrite every page and the picture."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        os.environ["QDEBUG_CACHE_DIR"] = cache
        prepare_files(Path(folder))
        with contextlib.chdir(folder):
            for page in documents():
                if update_page(page):
                    print("changed:", page.relative_to(REPOSITORY))
            picture = REPOSITORY / "docs" / "assets" / "demo.svg"
            picture.parent.mkdir(exist_ok=True)
            draw_demo(picture)


if __name__ == "__main__":
    main()
