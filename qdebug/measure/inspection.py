"""The result of `inspect`, judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qdebug.engine_info.diff import Diff
from qdebug.engine_info.layers import EngineInfo
from qdebug.engine_info.plan_audit import PlanAudit
from qdebug.engine_info.summary import Summary, gate_values
from qdebug.measure.conditions import Checked, Condition, check_condition


@dataclass(frozen=True)
class Compared:
    """Another engine of the same model, and what differs."""

    path: str
    values: Mapping[str, float | None]
    diff: Diff


@dataclass(frozen=True)
class Inspection:
    """What a file tells of an engine, and whether that is what was wanted.

    Attributes:
        values: by gate name; None for what the file does not tell.
        plan: the plan's file, "" without an audit.
    """

    path: str
    info: EngineInfo
    summary: Summary
    values: Mapping[str, float | None]
    audit: PlanAudit | None = None
    plan: str = ""
    other: Compared | None = None
    conditions: tuple[Checked, ...] = ()

    @property
    def judged(self) -> bool:
        """Whether there was anything to hold."""
        return self.audit is not None or bool(self.conditions)

    @property
    def passed(self) -> bool:
        """Nothing was built otherwise than planned, and every condition holds."""
        as_planned = self.audit is None or self.audit.audit.passed
        return as_planned and all(c.passed for c in self.conditions)


def judge(
    path: str,
    info: EngineInfo,
    summary: Summary,
    conditions: Sequence[Condition] = (),
    *,
    audit: PlanAudit | None = None,
    plan: str = "",
    other: Compared | None = None,
) -> Inspection:
    """Put the findings together and check the conditions; what is not told fails them."""
    values = gate_values(summary, audit.audit if audit else None)
    checked = tuple(check_condition(c, [values[c.name]]) for c in conditions)
    return Inspection(path, info, summary, values, audit, plan, other, checked)
