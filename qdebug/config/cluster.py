"""Settings of commands whose work can be spread over processes and machines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from qdebug.config.option import CLUSTER, Option

_LOCAL = re.compile(r"local:[1-9]\d{0,3}")
_ADDRESS = re.compile(r"(?:tcp|tls)://(?P<host>\[[\da-fA-F:.%]+\]|[^\s:/@\[\]]+)(?P<port>:.*)?")
_LAST_PORT = 65535


def parse_cluster(value: object) -> str:
    """Where work is spread.

    Raises:
        ValueError: neither processes of this machine nor an address with a port.
    """
    text = str(value).strip()
    wrong = _wrong_with(text)
    if wrong:
        raise ValueError(f"{wrong}; write for example local:4 or tcp://host:8786")
    return text


def _wrong_with(text: str) -> str:
    """What is wrong with the value of `cluster`; empty where nothing is."""
    kind, colon, _ = text.partition(":")
    if kind == "local" and colon:
        return "" if _LOCAL.fullmatch(text) else "N of local:N must be from 1 to 9999"
    if not text.startswith(("tcp://", "tls://")):
        return "must be local:N, tcp://host:port or tls://host:port"
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return "what follows :// must be host:port"
    port = found["port"]
    if port is None:
        return "the port is missing"
    if not re.fullmatch(r":[0-9]{1,5}", port) or not 0 < int(port[1:]) <= _LAST_PORT:
        return f"the port must be a number from 1 to {_LAST_PORT}"
    return ""


def local_processes(cluster: str | None) -> int:
    """How many processes of this machine `cluster` asks for; 0 where it is something else."""
    kind, _, count = (cluster or "").partition(":")
    return int(count) if kind == "local" else 0


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Where the work is spread to."""

    cluster: Annotated[
        str | None,
        Option(
            "Spread the work over N processes of this machine (local:N), or over the workers of a "
            "dask.distributed scheduler (tcp://host:8786).",
            CLUSTER,
            metavar="WHERE",
            unset="this process",
            parse=parse_cluster,
        ),
    ] = None
