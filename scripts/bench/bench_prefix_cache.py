"""What a search saves where candidates start from activations that earlier ones stored.

The same search by `auto` without them, with them kept at every place, and where the first candidate
shows that this pays, in turns: CPU seconds of the process, the least of some rounds, of the whole
and of its evaluations. The evaluations must be the same to the bit.

    python scripts/bench/bench_prefix_cache.py [--nets digits_cnn digits_encoder W1 W2 W3]
    python scripts/bench/bench_prefix_cache.py --nets model.onnx --inputs data.npz \\
        [--calib-data calib.npz] --target "output.sqnr_db>=25"
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import DATA, add_networks, network, parser_of
from nets import USUAL

from qdebug.backends.ort_fast.prefix_cache import PrefixCache
from qdebug.backends.ort_fast.session import CandidateSessions
from qdebug.commands.bisect import bisect
from qdebug.config.bisect import BisectSettings
from qdebug.decide.bisect import candidates
from qdebug.decide.bisect.candidates import CandidateRunner, PrecisionOverrides
from qdebug.decide.bisect.setup import prepare
from qdebug.types import ignore_progress

BETTER_DB = 6.0
"""How far above that of all INT8 the output's SQNR must be, where no target is given."""


def main() -> None:
    """Print what each network saves."""
    parser = parser_of(__doc__, samples=64, rounds=2)
    add_networks(parser, ["digits_cnn", "digits_encoder", *USUAL])
    parser.add_argument("--calib-data", metavar="DATA")
    parser.add_argument("--target", metavar="CONDITION")
    arguments = parser.parse_args()
    evaluating = _Evaluating()
    for net in arguments.nets:
        with tempfile.TemporaryDirectory() as folder:
            settings = _settings(net, arguments, Path(folder))
            _bench(net, settings, evaluating, arguments.rounds)


def _settings(net: str, arguments: argparse.Namespace, folder: Path) -> BisectSettings:
    journal = str(folder / "journal")
    own = BisectSettings("", "", journal=journal, cache=False, target=arguments.target)
    path, data = network(net, arguments.inputs, arguments.samples, folder)
    own = replace(own, model=str(path), inputs=str(data), calib_data=arguments.calib_data)
    if data.parent == DATA:
        own = replace(own, calib_data=str(DATA / "digits_calib.npz"), weights="per-tensor")
        if net == "digits_cnn" and not own.target:
            return replace(own, metric="top1", max_drop=0.01)
    return _with_target(own)


def _with_target(settings: BisectSettings) -> BisectSettings:
    if settings.target:
        return settings
    setup = prepare(replace(settings, target="output.sqnr_db>=0"), ignore_progress)
    with CandidateRunner(setup.context, setup.model, setup.planned.bound, setup.searched) as runner:
        (base,) = runner.evaluate_many([{}])
    return replace(settings, target=f"output.sqnr_db>={base.sqnr_db + BETTER_DB:.2f}")


class _Evaluating:
    """Adds up what evaluations take."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._evaluate = CandidateRunner.evaluate_many
        CandidateRunner.evaluate_many = self._timed()  # type: ignore[method-assign]

    def _timed(self) -> Any:
        def evaluate(
            runner: CandidateRunner, sets: Sequence[PrecisionOverrides], **how: bool
        ) -> Any:
            started = time.process_time()
            try:
                return self._evaluate(runner, sets, **how)
            finally:
                self.seconds += time.process_time() - started

        return evaluate


def _bench(net: str, settings: BisectSettings, evaluating: _Evaluating, rounds: int) -> None:
    whole: dict[str, float] = {}
    inside: dict[str, float] = {}
    found: dict[str, list[Any]] = {}
    strides: list[int | None] = []
    for _ in range(rounds):
        for way, opens in _ways(strides).items():
            candidates.PrefixCache = opens  # type: ignore[misc,assignment]
            for journal in _journals(settings):
                journal.unlink()
            evaluating.seconds, started = 0.0, time.process_time()
            bisect(settings)
            whole[way] = min(whole.get(way, 1e9), time.process_time() - started)
            inside[way] = min(inside.get(way, 1e9), evaluating.seconds)
            found[way] = [_evaluation(x) for j in _journals(settings) for x in j.open()]
    without = found["without"]
    assert all(evaluations == without for evaluations in found.values())
    print(f"{Path(net).name}: {len(without)} evaluations, strides {strides}")
    for name, seconds in (("evaluations", inside), ("the search", whole)):
        parts = [
            f"{way} {s:.2f} s ({s / seconds['without'] - 1:+.1%})" for way, s in seconds.items()
        ]
        print(f"  {name:12} {', '.join(parts)}")


def _ways(strides: list[int | None]) -> dict[str, Callable[[CandidateSessions, int], Any]]:
    """What opens candidates; `strides` collects what was decided."""

    class Everywhere(PrefixCache):
        def __init__(self, sessions: CandidateSessions, limit: int) -> None:
            super().__init__(sessions, limit)
            super().measured(running=1.0, keeping={})

    class Measured(PrefixCache):
        def measured(self, running: float, keeping: Mapping[int, float]) -> None:
            super().measured(running, keeping)
            strides.append(self.stride)

    return {"without": lambda *_: None, "everywhere": Everywhere, "measured": Measured}


def _journals(settings: BisectSettings) -> list[Path]:
    assert settings.journal is not None
    return sorted(Path(settings.journal).parent.glob("journal*"))


def _evaluation(line: str) -> Any:
    return {
        name: value for name, value in json.loads(line).items() if name not in ("seconds", "digest")
    }


if __name__ == "__main__":
    main()
