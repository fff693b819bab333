"""Engines in FP8, BF16, FP16 and INT8 beside the simulation, tensor by tensor, and what they take.

    python scripts/bench/bench_gpu_formats.py [--nets digits_cnn face FOLDER …]
        [--precisions fp8 bf16 fp16 int8] [--json FILE] [--limit 540]

Needs TensorRT for RTX and a GPU that it executes on; with --compute-capability 8.9 the engines are
only built and audited, which needs none. FOLDER holds model.onnx, inputs.npz and, for its ranges,
calib.npz; beside the bundled networks, `face` and `minilm` are folders of ../shared/assets. After
them come a search for layers to raise from FP8, and a CNN that is repaired in FP8, both judged on
the engine.

Rows are written after every engine, so that what a time limit cuts off is the rest. A build that
the library refuses is a row with the reason.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import BUNDLED, FOLDERS, data_of, parser_of

import qdebug
from qdebug.errors import QdebugError
from qdebug.results.attribution import RELEVANT_DB, TOLERANCE_DB
from qdebug.types import Precision

PRECISIONS = ("fp8", "bf16", "fp16", "int8")
TARGETS = {"digits_cnn": "output.sqnr_db>=28", "digits_encoder": "output.sqnr_db>=30"}
"""What FP8 alone misses on the bundled networks, and higher layers reach."""


def main() -> None:
    """Print a line for each engine, and write all figures as JSON."""
    parser = parser_of(__doc__, samples=8, limit=540)
    parser.add_argument("--nets", nargs="+", default=[*BUNDLED, *FOLDERS], metavar="NET")
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), metavar="P")
    parser.add_argument("--compute-capability", metavar="X.Y", help="build for it, execute nothing")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-searches", action="store_true", help="no bisect, no repair")
    args = parser.parse_args()
    bench = _Bench(args.samples, args.compute_capability, args.json, time.monotonic() + args.limit)
    for net in args.nets:
        for precision in args.precisions:
            bench.row(f"{net} {precision}", lambda n=net, p=precision: bench.compared(n, p))
    if not args.no_searches and not args.compute_capability:
        for net in [n for n in args.nets if n in TARGETS]:
            bench.row(f"{net} bisect from fp8", lambda n=net: bench.searched(n))
        bench.row("digits_cnn repaired in fp8", bench.repaired)


class _Bench:
    """Runs engines, and keeps the rows."""

    def __init__(
        self, samples: int, capability: str | None, output: Path | None, ends_at: float
    ) -> None:
        self.samples, self.output, self.ends_at = samples, output, ends_at
        self.engine: dict[str, Any] = {"backend": "tensorrt-rtx", "cache": False}
        if capability:
            self.engine["compute_capability"] = capability
        self.rows: list[dict[str, Any]] = []

    def row(self, title: str, make: Callable[[], dict[str, Any]]) -> None:
        """One row: what `make` gives, or why it gave nothing."""
        if time.monotonic() > self.ends_at:
            print(f"{title}: left out, the time is over", flush=True)
            return
        began = time.monotonic()
        try:
            found = make()
        except QdebugError as error:
            found = {"refused": error.message, "code": error.code, "says": f"refused: {error}"}
        found = {"row": title, "seconds": round(time.monotonic() - began, 1), **found}
        print(f"{title}: {found['says']} ({found['seconds']} s)", flush=True)
        self.rows.append(found)
        if self.output is not None:
            self.output.write_text(json.dumps(self.rows, indent=1, default=str), "utf-8")

    def compared(self, net: str, precision: str) -> dict[str, Any]:
        """An engine in one precision beside the simulation."""
        result = qdebug.compare(
            **data_of(net), precision=precision, samples=self.samples, effect="none", **self.engine
        )
        return _engine_row(result)

    def searched(self, net: str) -> dict[str, Any]:
        """The layers to raise from FP8, the answer verified on the engine."""
        result = qdebug.bisect(
            **data_of(net),
            precision="fp8",
            pin_to="ladder",
            target=TARGETS[net],
            samples=64,
            **self.engine,
        )
        pinned = {x.name: str(x.precision) for x in result.layers}
        said = result.to_dict()
        checks = [(c["on"], c["value"]) for c in said["checks"]]
        return {"result": said, "says": f"pinned {pinned}; {checks}"}

    def repaired(self) -> dict[str, Any]:
        """A CNN with one scale per weight that is repaired in FP8, and its engine."""
        data = data_of("digits_cnn")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "repaired.onnx"
            repaired = qdebug.repair(
                **data, precision="fp8", weights="per-tensor", pin=False, output=path
            )
            result = qdebug.compare(
                path, reference=data["model"], inputs=data["inputs"], effect="none", **self.engine
            )
        row = _engine_row(result)
        before = repaired.to_dict()
        return {**row, "repair": before, "says": f"{repaired.headline()}; then {row['says']}"}


def _engine_row(result: Any) -> dict[str, Any]:
    engine = result.engine
    if engine is None:
        return {"notes": result.notes, "says": f"no engine: {' '.join(result.notes)}"}
    outputs = {o.name: o.metrics.sqnr_db for o in result.outputs}
    mismatches = engine.audit.mismatched if engine.audit is not None else ()
    row: dict[str, Any] = {
        "library": engine.library,
        "built_for": engine.built_for,
        "simulated_outputs_db": outputs,
        "not_as_planned": {x.name: str(x.built) for x in mismatches},
        "engine_layers": engine.layers,
        "notes": result.notes,
    }
    ran = engine.execution
    mismatched = f"{len(row['not_as_planned'])} not as planned"
    if ran is None:
        return {**row, "says": f"built; {mismatched}; {engine.not_executed_because}"}
    cast = (Precision.FP16, Precision.BF16)
    kinds = {x.tensor: (x.op_type, str(x.precision)) for x in result.layers}
    row |= {
        "latency_ms": ran.latency_ms,
        "capture": ran.capture,
        "checks": [vars(c) for c in ran.checks],
        "agreement": vars(ran.agreement),
        "skipped": len(ran.skipped),
        "outputs": [vars(x) for x in ran.outputs],
        "tensors": [{**vars(x), "of": kinds.get(x.tensor)} for x in ran.tensors],
        "cast_layers": sum(x.precision in cast for x in result.layers),
    }
    share = ran.agreement.within
    within = "none" if share is None else f"{share:.1%} of {ran.agreement.tensors}"
    worst = min(ran.outputs, key=lambda x: x.total_db)
    return {
        **row,
        "says": f"{ran.latency_ms:.3f} ms; output {worst.quantization_db:.1f} dB simulated, "
        f"{worst.total_db:.1f} on the engine, {worst.kernel_db:.1f} between; tensors below "
        f"{RELEVANT_DB:.0f} dB within {TOLERANCE_DB:.0f}: {within}; {mismatched}",
    }


if __name__ == "__main__":
    main()
