"""The files that a command writes beside its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from qdebug.commands.report.attached import write_result_page
from qdebug.config.search import RepairSettings
from qdebug.decide.remedies.result import RepairResult
from qdebug.errors import StoreError
from qdebug.network.weights import write_model
from qdebug.outputfiles import write_text
from qdebug.plan.repaired import is_unfinished, record_in
from qdebug.result import Result
from qdebug.stages import attempted, with_failure
from qdebug.wording import option

if TYPE_CHECKING:
    from onnx import ModelProto

ResultT = TypeVar("ResultT", bound=Result)


def with_file(
    settings: Any,
    name: str,
    content: Callable[[ResultT], str | ModelProto],
    result: ResultT,
    *,
    force: bool = False,
) -> ResultT:
    """`result`, after text or a model made of it was written to the file that the setting `name`
    gives, if any. A file that cannot be written is listed in its `failed`: nothing that was
    measured is lost."""
    path = getattr(settings, name)
    if not path:
        return result

    def written(made: ResultT) -> ResultT:
        data = content(made)
        replace = force or settings.force
        if isinstance(data, str):
            write_text(path, data, option(name), force=replace)
        else:
            write_model(data, path, option(name), force=replace)
        return made

    return attempted(option(name), result, written, file=path)


def with_page(settings: Any, model: str | None, result: ResultT) -> ResultT:
    """`result`, of which the page that is asked for is written."""
    page = settings.html
    if not page:
        return result

    def written(made: ResultT) -> ResultT:
        write_result_page(settings, page, model, made)
        return made

    return attempted(option("html"), result, written, file=page)


def write_files(settings: RepairSettings, result: RepairResult) -> RepairResult:
    """`result`, after the files that are asked for were written, unless one of them holds a better
    result for the same question."""
    better = _with_better_kept(settings, result)
    if better is not None:
        return better
    path = settings.output
    unfinished = path is not None and is_unfinished(path, result.model.sha256)
    result = with_file(settings, "output", lambda r: r.model_proto(), result, force=unfinished)
    result = with_file(settings, "save_fp32", lambda r: r.fp32_proto(), result)
    result = with_file(settings, "save_plan", lambda r: r.plan_yaml(), result)
    result = with_file(settings, "trt_cache", lambda r: r.trt_cache(), result)
    return with_page(settings, settings.model, result)


def publish(settings: RepairSettings, best: RepairResult) -> str:
    """Write the best so far, unless what is there is better; returns what is to be said of it."""
    path = settings.output
    if path is None:
        return ""
    there = record_in(path)
    if there is not None and replace(there, unfinished=False).better_than(best.record()):
        return ""
    force = settings.force or is_unfinished(path, best.model.sha256)
    try:
        write_model(best.model_proto(), path, option("output"), force=force)
    except StoreError:  # the last write says it
        return ""
    return f"the best so far is in {path}"


def _with_better_kept(settings: RepairSettings, result: RepairResult) -> RepairResult | None:
    """`result`, of which no file is written because one of them holds a better one for the same
    question; None where none does."""
    names = ("output", "save_plan", "save_fp32", "trt_cache", "html")
    files = {name: getattr(settings, name) for name in names if getattr(settings, name)}
    records = {n: record_in(files[n]) for n in ("output", "save_plan") if n in files}
    better = [n for n, found in records.items() if found and found.better_than(result.record())]
    if not better:
        return None
    for name in (*better[:1], *(n for n in files if n != better[0])):
        what, hint = f"{option(name)}: {files[name]}", ""
        if name == better[0] and (found := records[name]):
            what += f" holds a better result for the same target ({found.told}), and stays"
            hint = "Give other paths to write this result, or remove that file."
        else:
            what += " is not written either: files of one repair belong together"
        error = StoreError(what, hint, code="QD-STORE-BETTER-RESULT")
        result = with_failure(result, option(name), error, file=files[name])
    return result
