"""What may be kept, and how a run file's parts are named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qdebug.errors import UsageError
from qdebug.store.schema import Keep


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [("all", "all", 0), ("none", "none", 0), ("worst:1", "worst", 1), (" worst:32 ", "worst", 32)],
)
def test_keep_parses_and_prints_itself(text: str, kind: str, count: int) -> None:
    keep = Keep.parse(text)
    assert (keep.kind, keep.count) == (kind, count)
    assert str(keep) == text.strip()


@pytest.mark.parametrize(
    "text", ["", "All", "worst", "worst:", "worst:0", "worst:-1", "worst:1.5", "worst:²", "all:3"]
)
def test_anything_else_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(UsageError, match="QD-USAGE-KEEP"):
        Keep.parse(text)


def test_schema_imports_without_h5py() -> None:
    code = (
        "import sys, qdebug.store, qdebug.store.schema\n"
        "assert not {'h5py', 'hdf5plugin'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
