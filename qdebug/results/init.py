"""What `qdebug init` wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qdebug.result import ModelRef, ReadData, Result
from qdebug.results.check import Finding


@dataclass(frozen=True)
class ChosenSetting:
    """A setting of the configuration, as YAML has it, and why it is so."""

    key: str
    value: str
    why: str


@dataclass(frozen=True, repr=False)
class InitResult(Result):
    """A configuration of `qdebug compare`.

    Attributes:
        file: where it is written.
        settings: in their order.
        further: commands that go on from there.
        findings: what is wrong with the labels, or that FP32 is no better than chance: then the
            gate is a comment.
    """

    SCHEMA: ClassVar[str] = "qdebug.init/1"
    ROWS: ClassVar[str] = "settings"

    model: ModelRef
    file: Path
    settings: tuple[ChosenSetting, ...]
    further: tuple[str, ...]
    data: tuple[ReadData, ...] = ()
    findings: tuple[Finding, ...] = ()

    def headline(self) -> str:
        """What to run next."""
        return f"{self.file}: run `qdebug compare --config {self.file}`"

    def config_yaml(self) -> str:
        """The file's text."""
        lines = [
            f"# How {self.model.name} is compared, and when that fails. Run it with:",
            f"#   qdebug compare --config {self.file}",
            "# Paths are relative to the folder that the command is run in.",
            "command: compare",
        ]
        for setting in self.settings:
            lines += ["", *(f"# {line}" for line in setting.why.split("\n"))]
            lines.append(f"{setting.key}: {setting.value}")
        if self.further:
            lines += ["", "# Then:", *(f"#   {command}" for command in self.further)]
        return "\n".join(lines) + "\n"
