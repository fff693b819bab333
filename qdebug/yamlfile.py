"""YAML files that a person wrote: validated by a schema, with the line number in every error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from yaml.reader import ReaderError

from qdebug.errors import PlanError, QdebugError, UsageError
from qdebug.inputfiles import read_text
from qdebug.wording import option

SchemaT = TypeVar("SchemaT", bound=BaseModel)


def read_yaml(path: Path, schema: type[SchemaT], error: type[QdebugError]) -> SchemaT:
    """Read `path` as a `schema`.

    Raises:
        QdebugError: an `error`: the file is missing, not YAML or not valid; the message is
            "file:line: …".
    """
    return parse_yaml(_text(path, error), str(path), schema, error)


def read_keys(path: Path, error: type[QdebugError]) -> dict[str, tuple[int, str, Any]]:
    """The keys in a YAML file: the line (from 1) of each, its value as it is written, "" where that
    is a list or a mapping, and the value.

    Raises:
        QdebugError: an `error`: the file is missing, not YAML or no mapping.
    """
    root, data = _mapping(_text(path, error), str(path), error)
    return {
        key.value: (key.start_mark.line + 1, _text_of(value), data[key.value])
        for key, value in root.value
        if key.value in data
    }


def _text(path: Path, error: type[QdebugError]) -> str:
    wrong = _with_code(error)
    try:
        return read_text(path)
    except FileNotFoundError:
        raise wrong(f"{path}: no such file", "Check the path.") from None
    except UnicodeDecodeError as problem:
        message = f"{path}: cannot be read as text"
        raise wrong(message, "A YAML file is expected.") from problem
    except OSError as problem:
        raise wrong(f"{path}: cannot be read: {problem.strerror}") from problem


def _text_of(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def parse_yaml(text: str, name: str, schema: type[SchemaT], error: type[QdebugError]) -> SchemaT:
    """As `read_yaml`, of text that is called `name` in messages.

    Raises:
        QdebugError: an `error`: the text is not YAML or not valid.
    """
    root, data = _mapping(text, name, error)
    try:
        return schema.model_validate(data)
    except ValidationError as problem:
        first = _first_problem(root, problem.errors())
        where = ".".join(str(part) for part in _in_file(root, first["loc"]))
        line = _line_of(root, first["loc"])
        message = f"{name}:{line}: {where}: {_reason(first)}"
        raise _with_code(error)(message, _hint(schema, first)) from problem


def _mapping(text: str, name: str, error: type[QdebugError]) -> tuple[yaml.Node, dict[str, Any]]:
    """The node tree, which knows lines, and the values of a document that is a mapping."""
    wrong = _with_code(error)
    root, data = _parse(name, text, wrong)
    if root is None:
        raise wrong(f"{name}:1: the file is empty", "Run what writes it again, until it ends.")
    if not isinstance(data, dict):
        raise wrong(f"{name}:{_line_of(root, ())}: the file is not a mapping of keys to values")
    return root, data


def _with_code(error: type[QdebugError]) -> Callable[..., QdebugError]:
    return partial(error, code=_CODES[error.family])


_CODES = {PlanError.family: "QD-PLAN-FILE", UsageError.family: "QD-USAGE-CONFIG-FILE"}


class _Loader(yaml.SafeLoader):
    """Keys are names, so they stay as they are written: a layer may be called 12 or `on`."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(None, None, "a key must be text", key.start_mark)
            if key.tag == _MERGE_TAG:
                continue
            key.tag = "tag:yaml.org,2002:str"
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    None, None, f"'{key.value}' is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            found = super().construct_object(node, deep)
            if isinstance(found, int) and found.bit_length() > _LARGEST_BITS:
                raise ValueError("the number is too large")
            return found
        except ValueError as problem:  # a date in month 13
            raise yaml.MarkedYAMLError(None, None, str(problem), node.start_mark) from problem


_LARGEST_BITS = 1024
"""Of a whole number: what is larger is no float either, and Python refuses to print the largest."""
_MERGE_TAG = "tag:yaml.org,2002:merge"


def _parse(name: str, text: str, wrong: Callable[..., QdebugError]) -> tuple[yaml.Node | None, Any]:
    """The node tree, which knows lines, and the values."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is not None:
            _check_size(root)
        return root, None if root is None else loader.construct_document(root)
    except yaml.YAMLError as problem:
        raise wrong(_yaml_message(name, text, problem)) from problem
    except RecursionError as problem:
        raise wrong(f"{name}:1: is nested too deeply") from problem


def _check_size(root: yaml.Node) -> None:
    """Refuse a document in which aliases repeat so much that it does not fit the memory.

    Raises:
        yaml.MarkedYAMLError: it is such a document, or repeats itself without end.
    """
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        key = id(node)
        if sizes.get(key) == 0:
            raise yaml.MarkedYAMLError(None, None, "holds itself", node.start_mark)
        if key not in sizes:
            sizes[key] = 0
            sizes[key] = 1 + sum(map(size, _children(node)))
        return sizes[key]

    if size(root) > max(_MOST_NODES, _MOST_REPEATED * len(sizes)):
        raise yaml.MarkedYAMLError(
            None, None, "its aliases repeat too much: write it without them", root.start_mark
        )


_MOST_NODES, _MOST_REPEATED = 100_000, 4


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    for child in node.value if isinstance(node, yaml.CollectionNode) else ():
        yield from child if isinstance(child, tuple) else (child,)


def _yaml_message(name: str, text: str, problem: yaml.YAMLError) -> str:
    if isinstance(problem, ReaderError):
        line = text.count("\n", 0, problem.position) + 1
        return f"{name}:{line}: holds a control character ({problem.character:#x})"
    mark = getattr(problem, "problem_mark", None) or getattr(problem, "context_mark", None)
    reason = getattr(problem, "problem", None) or "not valid YAML"
    return f"{name}:{mark.line + 1 if mark else 1}: {reason}"


def _first_problem(root: yaml.Node | None, problems: list[Any]) -> Any:
    """The first problem, one of the file's own schema before all: it is then a file of another
    kind. Of those that the members of a union have with one value, the one that points deepest into
    the file."""
    of_schema = (p for p in problems if p["loc"] == ("schema",))
    first = _in_file(root, next(of_schema, problems[0])["loc"])
    same = [p for p in problems if _in_file(root, p["loc"])[: len(first)] == first]
    return max(same, key=lambda p: len(_in_file(root, p["loc"])))


def _in_file(node: yaml.Node | None, location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """`location` without pydantic's names for the members of a union; a missing key stays."""
    found: list[int | str] = []
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found.append(part)
            node = next((v for k, v in node.value if k.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            found.append(part)
            node = node.value[part]
    return tuple(found)


def _line_of(node: yaml.Node | None, location: tuple[int | str, ...]) -> int:
    """The line (from 1) of the deepest part of `location` that is in the file."""
    line = node.start_mark.line if node else 0
    for part in location:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == part:
                    line, node = key.start_mark.line, value
                    break
            else:
                break
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line
    return int(line) + 1


def _reason(problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        return "unknown key"
    if problem["type"] == "missing":
        return "required key is missing"
    if problem["type"] == "dict_type":
        return f"must be a mapping of names to values (got {problem['input']!r})"
    message = str(problem["msg"]).removeprefix("Value error, ")
    message = message.replace("Input should be", "must be")
    return f"{message[0].lower()}{message[1:]} (got {problem['input']!r})"


def _hint(schema: type[BaseModel], problem: Any) -> str:
    if problem["loc"] == ("schema",) and (taken := taken_by(problem["input"])):
        return taken
    if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
        known = (field.alias or name for name, field in schema.model_fields.items())
        return f"Known keys: {', '.join(known)}."
    if problem["type"] == "missing" and problem["loc"] == ("schema",):
        return f"The file must start with 'schema: {_expected(schema)[0]}'."
    return ""


def taken_by(schema: object) -> str:
    """Which setting takes a file that claims to be of a schema; "" where that is not known."""
    setting = _TAKEN_BY.get(str(schema))
    return f"It is what {option(setting)} takes, in the commands that have it." if setting else ""


_TAKEN_BY = {"qdebug.plan/1": "plan", "qdebug.scales/1": "calibration"}
"""The setting that takes a file, by its schema."""


def _expected(schema: type[BaseModel]) -> tuple[str, ...]:
    """The schemas that a file of this kind may claim."""
    field = schema.model_fields.get("schema_")
    return get_args(field.annotation) if field else ()


def dump_yaml(data: dict[str, Any]) -> str:
    """The text of a YAML file, keys in the order given; reading it gives `data` back."""
    text = _dump(data, allow_unicode=True)
    # PyYAML writes these as they are, and reads them back as a space.
    return _dump(data, allow_unicode=False) if any(c in text for c in _LINE_BREAKS) else text


_LINE_BREAKS = "\x85\u2028\u2029"


def _dump(data: dict[str, Any], *, allow_unicode: bool) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=allow_unicode, width=100)
