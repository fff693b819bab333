"""Every configuration under configs/ is run; its comment says how it ends."""

from __future__ import annotations

import os
import re
from pathlib import Path

import forked
import pytest

REPOSITORY = Path(__file__).parents[1]
CONFIGS = sorted((REPOSITORY / "configs").glob("*.yaml"))
ENDS = {  # exit code, last lines
    "digits_cnn_bisect.yaml": (0, ": 3 layers pinned, each needed there."),
    "digits_cnn_int8.yaml": (1, "FAILS  metric>=0.95"),
    "digits_cnn_repair.yaml": (0, "PASSED with channel-scales, nothing pinned: "),
    "digits_cnn_per_channel.yaml": (0, "PASSED: 2 conditions passed."),
    "digits_encoder_calibrate.yaml": (
        0,
        "Best: mse, by output SQNR among the 3 that the metric cannot tell apart",
    ),
    "digits_encoder_fp16.yaml": (0, "PASSED: 2 conditions passed."),
}


def test_every_configuration_is_covered() -> None:
    assert {path.name for path in CONFIGS} == set(ENDS)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_configuration_ends_as_its_comment_says(path: Path, tmp_path: Path) -> None:
    command = re.search(r"^# Run it with: qdebug (.*)$", path.read_text("utf-8"), re.MULTILINE)
    assert command, "a configuration says how to run it"
    words = command.group(1).split()
    how = ["--effect", "none"] if words[0] == "compare" else []  # no gate of theirs is on effects
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "QDEBUG_CACHE_DIR": str(tmp_path)}
    done = forked.run(["-m", "qdebug", *words, *how], cwd=REPOSITORY, env=environment)
    code, said = ENDS[path.name]
    assert done.returncode == code, done.stderr
    assert said in done.stdout
