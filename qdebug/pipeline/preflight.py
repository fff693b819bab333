"""What every command checks before any work: the model that a plan names, the files it writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qdebug.config.option import settings_of
from qdebug.errors import given_by
from qdebug.inmemory import path_in
from qdebug.outputfiles import check_distinct, check_new, check_writable
from qdebug.plan.planfile import model_for, named_model
from qdebug.wording import option


def planned_model(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The model that the plan names, where `settings` give a plan and no model; of several plans
    the first that names one. To be given to `config.resolve`.

    Raises:
        PlanError: a plan cannot be read, or names no model that is there.
    """
    given = settings.get("plan")
    several = given if isinstance(given, (list, tuple)) else [given]
    plans: list[str] = [plan for plan in several if isinstance(plan, str)]
    if settings.get("model") or not plans:
        return {}
    with given_by("plan"):
        named = {plan: named_model(plan) for plan in plans}
        plan = next((plan for plan, model in named.items() if model), plans[0])
        return {"model": model_for(plan, named[plan], hint=f"Give {option('model')}.")}


def check_files(*declared: Any) -> None:
    """Refuse what would overwrite an input, or a file unasked, before anything runs.

    Args:
        declared: records of settings; which are files is declared with them.

    Raises:
        UsageError: two settings that are written, or one that is read, are the same file.
        StoreError: a file cannot be written, or exists and must not be replaced.
    """
    force = any(getattr(record, "force", False) for record in declared)
    reads: dict[str, str] = {}
    writes: dict[str, str] = {}
    checks: dict[str, str] = {}
    for record in declared:
        for setting in settings_of(type(record)):
            one = setting.option
            for name, path in _paths(record, setting.name):
                if one.writes:
                    writes[name], checks[name] = path, one.writes
                elif one.reads and path != getattr(record, one.replaced_by, None):
                    reads[name] = path
    check_distinct(writes, reads)
    for name, path in writes.items():
        if checks[name] == "new":
            check_new(path, name, force=force)
        elif checks[name] == "any":
            check_writable(path, name)


def _paths(record: Any, setting: str) -> Iterator[tuple[str, str]]:
    """The paths that a setting names, by what the user calls them."""
    value, name = getattr(record, setting), option(setting)
    several = isinstance(value, tuple)
    for number, path in enumerate(value if several else (value,), start=1):
        if isinstance(path, str) and path_in(path) not in ("", "-"):
            yield (f"{name} ({number})" if several else name), path
