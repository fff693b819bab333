"""How long tests wait for what must happen: far longer than it takes, so that no test fails on a
machine that is busy with others."""

from __future__ import annotations

PATIENCE_S = 300
