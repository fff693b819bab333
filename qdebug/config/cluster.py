"""Settings of commands whose work can be spread over processes and machines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Le

from qdebug.config.option import CLUSTER, Option

_FORM = re.compile(r"local:[1-9]\d{0,3}|[a-z]+://\S+")


def parse_cluster(value: object) -> str:
    """Where work is spread.

    Raises:
        ValueError: neither processes of this machine nor an address.
    """
    text = str(value).strip()
    if not _FORM.fullmatch(text):
        raise ValueError("write for example local:4 or tcp://host:8786")
    return text


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
            "Spread the work over local:N processes of this machine, or over the workers of a "
            "dask.distributed scheduler, such as tcp://host:8786.",
            CLUSTER,
            metavar="WHERE",
            unset="this process",
            parse=parse_cluster,
        ),
    ] = None
    cluster_config: Annotated[
        str | None,
        Option(
            "Spread the work over workers that a job queue (Slurm, PBS, LSF) or SSH starts, as "
            "the file says.",
            CLUSTER,
            metavar="FILE.yaml",
            reads=True,
        ),
    ] = None
    unit_timeout: Annotated[
        float,
        Gt(0),
        Le(1e6),
        Option(
            "Seconds after which a part of the work is given to another worker.",
            CLUSTER,
            metavar="SECONDS",
        ),
    ] = 600.0
