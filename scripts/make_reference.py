"""Write the pages of the documentation that follow from the declared settings.

    .venv/bin/python scripts/make_reference.py           # write them
    .venv/bin/python scripts/make_reference.py --check   # exit 1 where one is not current

docs/reference/cli.md lists the flags of each command; docs/reference/configuration.md the keys of
configuration files, which are also the keywords of the Python functions.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from qdebug.config.commands import COMMANDS, Command  # noqa: E402
from qdebug.config.flag import ARGUMENT, InPython, Setting, settings_of  # noqa: E402

FOLDER = REPOSITORY / "docs" / "reference"
_MADE = "<!-- Made by scripts/make_reference.py from qdebug/config; do not edit. -->"

SHARED_BY = 5
"""A flag that is the same in so many commands is not said of each."""

_CLI = """\
# Command line

`qdebug COMMAND --help-all` shows the same in the terminal, `--help` the flags that matter first.
`qdebug --version` shows the version. The settings of a command can
also come from a [configuration file](configuration.md), or from [Python](python-api.md); flags
override the file. Where a flag may be given again and again, the table says *repeatable*; of any
other flag the last one counts. [Flags of many commands](#flags-of-many-commands) stand at the end.

| Exit code | Meaning |
|---|---|
| 0 | it is done, and the gate or the target holds |
| 1 | the gate failed, or no answer meets the target |
| 2 | bad input or usage |
| 3 | a backend failed |
| 129 | ended by SIGHUP; the same as 130 |
| 130 | interrupted; nothing half-written is left behind |
| 143 | ended by SIGTERM; the same |

An error is one message, which ends with a [code](errors.md); `-vv` adds the traceback.
"""

_CONFIGURATION = """\
# Configuration files and keywords

`--config FILE.yaml` reads the settings of a command from a file. Each key is the name of a setting
with hyphens; the keywords of the [Python functions](python-api.md) have underscores in their place.
Defaults come first, then the file, then flags. Paths in a file are relative to the working
directory. `command` is optional, and refuses the file to any other command.

```yaml
command: compare
model: model.onnx
inputs: samples.npz
calib-data: calib.npz
fail-on:
  - output.cosine>=0.99
```

Sizes may be written as `512M` or `2G`. A list with one value may be written as that value. A key
without a value (`null`), and in Python a keyword that is `None`, stands for the default.
In Python, what the table calls an object may be given as one; in a file or as a flag it is a path
or a name. What a setting means, and its default, is said of [its flag](cli.md).
"""


def cli_page() -> str:
    """The flags of every command; those that many have alike stand once, at the end."""
    users: dict[tuple[str, str, str], list[str]] = {}
    for command in COMMANDS.values():
        for setting in (s for members in command.grouped.values() for s in members):
            users.setdefault(_flag_row(setting), []).append(command.name)
    shared = {row: names for row, names in users.items() if len(names) >= SHARED_BY}
    parts = [_CLI]
    for command in COMMANDS.values():
        parts += _heading(command)
        example = f"\n# for example\n{command.command_line}" if command.example else ""
        parts.append(f"```sh\n{command.usage}{example}\n```\n")
        rows: list[tuple[str, str, str]] = []
        for group, members in command.grouped.items():
            own = [row for row in map(_flag_row, members) if row not in shared]
            rows += [(f"**{group.name}**", "", "")] if group is not ARGUMENT and own else []
            rows += own
        if rows:
            parts.append(_table(("Flag", "Meaning", "Default"), rows))
    parts.append("## Flags of many commands\n")
    common = sorted((*row, ", ".join(names)) for row, names in shared.items())
    parts.append(_table(("Flag", "Meaning", "Default", "Commands"), common))
    return _page(parts)


def configuration_page() -> str:
    """The keys of the commands' configuration files, each once with the commands that have it."""
    users: dict[tuple[str, str, str], list[str]] = {}
    for command in COMMANDS.values():
        for s in settings_of(command.settings):
            users.setdefault((f"`{s.key}`", _kind(s), _object(s)), []).append(command.name)
    rows = ((key, kind, taken, ", ".join(names)) for (key, kind, taken), names in users.items())
    table = _table(("Key", "Value", "Object in Python", "Commands"), sorted(rows))
    return _page([_CONFIGURATION, "## The keys\n", table])


PAGES: dict[str, Callable[[], str]] = {"cli.md": cli_page, "configuration.md": configuration_page}
"""The pages, by file name."""


def _heading(command: Command) -> Iterator[str]:
    yield f"## {command.name}\n"
    yield f"{command.about} {command.more}".rstrip() + "\n"


def _flag_row(setting: Setting) -> tuple[str, str, str]:
    bare = setting.is_switch or setting.counts
    value = "" if bare or setting.positional else f" {setting.parameter.metavar or 'NAME'}"
    name = ", ".join(f"`{flag}{value}`" for flag in setting.flags)
    text = setting.parameter.help or ""
    if setting.choices:
        text += f" One of {', '.join(f'`{word}`' for word in setting.choices)}."
    return name, text, "" if bare else _default(setting)


def _kind(setting: Setting) -> str:
    if setting.is_switch:
        return "`true` or `false`"
    word = "integer" if int in setting.parts else "number" if float in setting.parts else "text"
    if setting.choices:
        word = ", ".join(f"`{choice}`" for choice in setting.choices)
    return f"list of {word}" if setting.is_list else word


def _default(setting: Setting) -> str:
    if setting.required:
        return "required"
    shown = setting.shown_default
    return shown if setting.parameter.show_default or not shown else f"`{shown}`"


def _object(setting: Setting) -> str:
    types = next((part.types for part in setting.parts if isinstance(part, InPython)), "")
    kinds = re.split(r" \| (?![^\[]*\])", types)
    return ", ".join(f"`{kind}`" for kind in kinds if kind)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return (
        "\n".join(f"| {' | '.join(c.replace('|', chr(92) + '|') for c in r)} |" for r in lines)
        + "\n"
    )


def _page(parts: Iterable[str]) -> str:
    return f"{_MADE}\n\n" + "\n".join(parts)


def main() -> int:
    """Write the pages, or check that they are current."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check, code = parser.parse_args().check, 0
    for name, page in PAGES.items():
        path, text = FOLDER / name, page()
        if path.exists() and path.read_text("utf-8") == text:
            continue
        if check:
            print(f"{path.relative_to(REPOSITORY)} is not current: run scripts/make_reference.py")
            code = 1
        else:
            path.write_text(text, "utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
