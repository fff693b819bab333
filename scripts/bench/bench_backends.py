"""How far engines are from the simulation, and how much of that is explained, as Markdown tables.

For each network and backend, in INT8: the SQNR at the (worst) output of the simulation against
FP32, of the engine against the simulation, and of the engine against FP32; how many tensors inside
the engine were observed, and in which way; for how many of those with an error below 60 dB the
simulation predicts it within 1 dB; to how many the larger part of the error is attributed to
kernels; and what the audit says of the layers that multiply matrices.

    python scripts/bench/bench_backends.py [--nets digits_cnn digits_encoder | model.onnx
                                            --inputs data.npz --calib-data calib.npz]
                                           [--backends onnxruntime openvino] [--samples 100]
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from common import DATA, add_networks, network, parser_of

import qdebug
from qdebug.backends.registry import specs
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.results.engine import EngineReport

HEADS = (
    *("network", "backend", "quantization dB", "kernels dB", "together dB", "ms"),
    *("observed", "as", "within 1 dB", "by kernels", "INT8 products built", "other layers"),
)


def main() -> None:
    """Print a table row for each network and backend."""
    parser = parser_of(__doc__, samples=100)
    add_networks(parser, ["digits_cnn", "digits_encoder"])
    parser.add_argument("--calib-data", metavar="DATA", help="samples to calibrate on")
    installed = [s.name for s in specs() if s.builds and s.installed]
    parser.add_argument("--backends", nargs="+", default=installed, metavar="NAME")
    arguments = parser.parse_args()
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    with tempfile.TemporaryDirectory() as folder:
        for net in arguments.nets:
            path, data = network(net, arguments.inputs, arguments.samples, Path(folder))
            bundled = DATA / "digits_calib.npz" if data.parent == DATA else data
            calibration = arguments.calib_data or str(bundled)
            for backend in arguments.backends:
                found = qdebug.compare(
                    str(path),
                    inputs=str(data),
                    calib_data=calibration,
                    samples=arguments.samples,
                    backend=backend,
                )
                cells = [path.parent.name if path.stem == "model" else path.stem, backend]
                assert found.engine is not None
                print(f"| {' | '.join([*cells, *row(found.engine)])} |", flush=True)


def row(engine: EngineReport) -> list[str]:
    """The figures of one engine."""
    done = engine.execution
    products, others = audited(engine)
    if done is None:
        return ["–"] * 8 + [products, others]
    worst = min(done.outputs, key=lambda a: a.total_db)
    check = done.checks[-1]
    total = len(done.tensors) + len(done.skipped)
    agreement = done.agreement
    near = round((agreement.within or 0) * agreement.tensors)
    kernels = sum(a.label == "kernel" for a in done.tensors)
    return [
        *(f"{db:.1f}" for db in (worst.quantization_db, worst.kernel_db, worst.total_db)),
        f"{done.latency_ms:.2f}",
        f"{len(done.tensors)} of {total}",
        check.way + (" (changes the engine)" if check.hides else ""),
        f"{near} of {agreement.tensors}",
        str(kernels),
        products,
        others,
    ]


def audited(engine: EngineReport) -> tuple[str, str]:
    """Of the products that were to run in INT8, how many do; and what became of other layers."""
    if engine.audit is None:
        return "–", "–"
    rows = engine.audit.layers
    products = [r for r in rows if r.op_type in QUANTIZABLE_OPS and r.requested == "int8"]
    built = sum(r.built == "int8" for r in products)
    others = Counter(str(r.verdict) for r in rows if r not in products)
    return f"{built} of {len(products)}", ", ".join(f"{n} {v}" for v, n in others.items())


if __name__ == "__main__":
    main()
