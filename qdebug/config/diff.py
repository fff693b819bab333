"""Settings of `qdebug diff`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from qdebug.config.candidate import FORCE
from qdebug.config.option import GATE, Option

_RUN = "A run file of compare (-o)"


@dataclass(frozen=True)
class DiffSettings:
    """The settings of `qdebug diff`."""

    run: Annotated[str, Option(f"{_RUN}.", metavar="RUN", positional=True, reads=True)]
    other: Annotated[
        str,
        Option(
            f"{_RUN} of the same model and samples, made elsewhere or by another backend.",
            metavar="OTHER",
            positional=True,
            reads=True,
        ),
    ]
    fail_on: Annotated[
        tuple[str, ...],
        Option(
            'Exit with 1 unless this holds of the difference, such as "output.sqnr_db>=40" or '
            '"tensor.cosine>=0.999"; repeatable.',
            GATE,
            metavar="CONDITION",
        ),
    ] = ()
    force: Annotated[bool, FORCE] = False
