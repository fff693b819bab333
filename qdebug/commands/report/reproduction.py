"""How to get a result again: the command line, the versions and the files."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from qdebug import __version__
from qdebug.config.commands import COMMANDS
from qdebug.config.flag import Setting, settings_of
from qdebug.page.data import Reproduction
from qdebug.store.manifest import package_versions

_IN_MEMORY = "given in memory"


def reproduction_of_run(manifest: Mapping[str, Any]) -> Reproduction:
    """Of a run file, by its manifest."""
    model, samples = manifest.get("model") or {}, manifest.get("samples") or {}
    versions = {
        "qdebug": manifest.get("qdebug"),
        "python": manifest.get("python"),
        **(manifest.get("versions") or {}),
    }
    hashes = {"model": model.get("sha256"), "samples": samples.get("digest")}
    return _reproduction("compare", manifest.get("settings") or {}, versions, hashes)


def reproduction_of_call(
    command: str, settings: Mapping[str, Any], hashes: Mapping[str, object]
) -> Reproduction:
    """Of a command that ran just now."""
    versions = {"qdebug": __version__, "python": sys.version.split()[0], **package_versions("")}
    return _reproduction(command, settings, versions, hashes)


def _reproduction(
    command: str,
    settings: Mapping[str, Any],
    versions: Mapping[str, object],
    hashes: Mapping[str, object],
) -> Reproduction:
    return Reproduction(
        command_line(command, settings),
        {name: str(version) for name, version in versions.items() if version},
        {role: str(digest) for role, digest in hashes.items() if digest},
    )


def command_line(command: str, given: Mapping[str, Any]) -> str:
    """What to type to run a command with these settings; those that write a file are left out. ""
    where an object in memory was given, which no command line can name.

    Args:
        command: its name.
        given: settings by name; those that this version does not have are left out.
    """
    words = ["qdebug", command]
    for setting in settings_of(COMMANDS[command].settings):
        value = given.get(setting.name, setting.default)
        if setting.written or setting.name == "force" or _same(value, setting.default):
            continue
        for text in _values(setting, value):
            if _IN_MEMORY in text:
                return ""
            words += [text] if setting.positional else [setting.flag, *[text] * (text != "")]
    return shlex.join(words)


def _same(value: object, default: object) -> bool:
    plain = tuple(value) if isinstance(value, list) else value
    return value is None or plain in ("", ()) or plain == default


def _values(setting: Setting, value: Any) -> Iterator[str]:
    """The values to give one flag with each; "" for a switch."""
    if setting.is_switch:
        yield ""
    elif isinstance(value, list | tuple):
        yield from map(str, value)
    else:
        yield str(value)
