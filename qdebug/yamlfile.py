"""YAML files that a person wrote: validated by a schema, with the line number in every error."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from qdebug.errors import QdebugError

SchemaT = TypeVar("SchemaT", bound=BaseModel)


def read_yaml(path: Path, schema: type[SchemaT], error: type[QdebugError]) -> SchemaT:
    """Read `path` as a `schema`.

    Raises:
        error: the file is missing, not YAML or not valid; the message is "file:line: …".
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"{path}: cannot be read as text: {problem}") from problem
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise error(_yaml_message(path, problem)) from problem
    if not isinstance(data, dict):
        raise error(f"{path}: holds no mapping of keys to values")
    try:
        return schema.model_validate(data)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        line = _line_of(root, first["loc"])
        raise error(f"{path}:{line}: {where}: {_reason(first)}", _hint(schema, first)) from problem


def _yaml_message(path: Path, problem: yaml.YAMLError) -> str:
    mark = getattr(problem, "problem_mark", None)
    reason = getattr(problem, "problem", None) or "not valid YAML"
    return f"{path}:{mark.line + 1 if mark else 1}: {reason}"


def _line_of(node: yaml.Node | None, location: tuple[int | str, ...]) -> int:
    """The line (from 1) of the deepest part of `location` that is in the file."""
    line = node.start_mark.line if node else 0
    for part in location:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if str(key.value) == str(part):
                    line, node = key.start_mark.line, value
                    break
            else:
                break
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line
    return line + 1


def _reason(problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        return "unknown key"
    if problem["type"] == "missing":
        return "is missing"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]} (got {problem['input']!r})"


def _hint(schema: type[BaseModel], problem: Any) -> str:
    if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
        return f"Known keys: {', '.join(schema.model_fields)}."
    return ""
