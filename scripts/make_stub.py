#!/usr/bin/env python
"""Write qdebug/__init__.pyi, by which editors and type checkers know the public API.

The parameters of its functions are the settings that qdebug/config declares. With `--check` nothing
is written, and the exit code is 1 where the stub is not current.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import qdebug  # noqa: E402
from qdebug import api  # noqa: E402
from qdebug.config.commands import COMMANDS, Command  # noqa: E402
from qdebug.config.option import Setting, settings_of  # noqa: E402

STUB = ROOT / "qdebug" / "__init__.pyi"
_FIRST_LINE = "# Written by scripts/make_stub.py from what qdebug/config declares: run it again.\n"
_HEAD = """
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import onnx
from numpy.typing import ArrayLike

{imports}

__version__: str
# fmt: off
__all__ = [
{names}
]
# fmt: on

Feeds = Mapping[str, ArrayLike]
Path = str | os.PathLike[str]

"""


def stub() -> str:
    """The text of the stub, formatted."""
    functions = (_function(name) for name in qdebug._PUBLIC["qdebug.api"])
    names = textwrap.fill(
        ", ".join(f'"{name}"' for name in sorted(qdebug.__all__)),
        100,
        initial_indent="    ",
        subsequent_indent="    ",
    )
    head = _HEAD.format(imports="\n".join(_imports()), names=names)
    text = f'{_FIRST_LINE}"""{qdebug.__doc__}"""\n{head}' + "\n".join(functions)
    for arguments in (["check", "--select", "I,F401", "--fix"], ["format"]):
        text = _ruff(text, *arguments)
    return text


def _ruff(text: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--quiet", "--stdin-filename", str(STUB)]
    done = subprocess.run(
        [*command, "-"], input=text, capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout


def _imports() -> Iterator[str]:
    for module, names in qdebug._PUBLIC.items():
        if module != "qdebug.api":
            yield f"from {module} import " + ", ".join(f"{name} as {name}" for name in names)


def _function(name: str) -> str:
    function = getattr(api, name)
    command = COMMANDS.get(name)
    settings = settings_of(command.settings) if command else ()
    if command is None or not settings:  # what it takes is in its own signature
        signature = str(inspect.signature(function)).replace("'", "")
        return f"def {name}{signature}:\n{_docstring(inspect.getdoc(function) or '')}\n"
    progress = "progress" in inspect.signature(function).parameters
    return _overloads(command, function.__annotations__["return"], progress=progress)


def _overloads(command: Command, returned: str, *, progress: bool) -> str:
    """A command's function, with keywords and with one settings object."""
    settings = sorted(settings_of(command.settings), key=lambda s: not s.option.positional)
    first, others = settings[0], settings[1:]
    by_plan = any(s.name == "plan" for s in others)  # which may name the model
    keywords = [_parameter(setting) for setting in others]
    extra = []
    if progress:
        extra = ["progress: Callable[[Progress], None] | None = None"]
    head = f"{first.name}: {first.keyword_type}{' | None = None' if by_plan else ''}"
    doc = (inspect.getdoc(getattr(api, command.name)) or "").split("\n\nArgs:")
    raises = "Raises:" + doc[1].partition("Raises:")[2] if "Raises:" in doc[-1] else ""
    text = f"{doc[0]}\n\nThe keywords: see `{command.settings.__name__}`.\n\n{raises}"
    first_form = ", ".join([head, "*", *keywords, *extra])
    whole = f"{first.name}: {command.settings.__name__}"
    second_form = ", ".join([whole, "*", *extra] if extra else [whole])
    return (
        f"@overload\ndef {command.name}({first_form}) -> {returned}:\n{_docstring(text)}\n"
        f"@overload\ndef {command.name}({second_form}) -> {returned}: ...\n"
    )


def _parameter(setting: Setting) -> str:
    default = "" if setting.required else f" = {setting.default!r}"
    return f"{setting.name}: {setting.keyword_type}{default}"


def _docstring(text: str) -> str:
    return textwrap.indent(f'"""{text.strip()}\n"""', "    ")


def main() -> int:
    """Write the stub, or say whether it is current."""
    text = stub()
    if sys.argv[1:] == ["--check"]:
        return int(STUB.read_text(encoding="utf-8") != text)
    STUB.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
