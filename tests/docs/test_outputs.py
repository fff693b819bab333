"""What the documentation shows is what the program prints. If not: scripts/update_docs.py."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

import pytest
from documents import REPOSITORY, Block, blocks, documents, run_qdebug, selected, still_shown

SHOWN = [
    pytest.param(block, id=f"{page.relative_to(REPOSITORY).as_posix()}-{number}")
    for page in documents()
    for number, block in enumerate(blocks(page.read_text("utf-8")))
    if "output" in block.notes
]


@pytest.mark.parametrize("block", SHOWN)
def test_an_output_is_up_to_date(block: Block, prepared: Path) -> None:
    note = block.notes["output"]
    with contextlib.chdir(prepared):
        _, output, said = run_qdebug(shlex.split(note.split(" | ")[0])[1:])
    assert output, said
    printed = selected(output, note)
    assert still_shown(note, printed, block.body), printed


def test_there_are_outputs() -> None:
    assert len(SHOWN) >= 5
