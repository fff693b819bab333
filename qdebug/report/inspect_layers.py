"""The table of an engine's layers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.engine_info.layers import QUANTIZED, EngineLayer, EngineTensor, Role
from qdebug.measure.inspection import InspectResult
from qdebug.report.names import tail
from qdebug.report.tables import name_table, print_table
from qdebug.report.view import counted, number, printable

_LONGEST_TYPE = 14
_SHORTEST_NAME = 20
_NUMBERS = ("#", "ms")


def layers_table(console: Console, result: InspectResult, *, top: int, detailed: bool) -> None:
    """The first `top` layers: the slowest where times are known, else in execution order."""
    layers = list(result.info.working)
    order = "in execution order"
    if result.info.measured:
        layers.sort(key=lambda layer: -(layer.time_ms or 0.0))
        order = "slowest first"
    shown = layers[:top]
    hidden = len(layers) - len(shown)
    more = f"; {hidden} more (--top {len(layers)}, or --json)" if hidden else ""
    console.print(Text(f"{counted(len(layers), 'layer')}, {order}{more}", style="bold"))
    if shown:
        print_table(console, _table(console, result, shown))
    if detailed:
        for layer in shown:
            _print_details(console, layer)


def node_name(result: InspectResult, layer: EngineLayer) -> str:
    """What a layer computes, by the first ONNX node whose work it does; else its own name."""
    info = result.info
    own = [n for n in layer.onnx_nodes if info.layer_of(n) is layer]
    plain = [n for n in own if not info.op_types.get(n, "").lower().endswith("quantizelinear")]
    main = next(iter([*plain, *own]), None)
    if main is None:
        return printable(layer.name)
    others = len(plain or own) - 1
    return printable(main) + (f" +{others}" if others else "")


def _table(console: Console, result: InspectResult, shown: Sequence[EngineLayer]) -> Table:
    timed = result.info.measured
    number_of = {id(layer): i for i, layer in enumerate(result.info.layers, 1)}
    left = set(map(id, result.summary.left_high))
    rows = []
    for layer in shown:
        kind = tail(printable(layer.layer_type), _LONGEST_TYPE if console.is_terminal else 10_000)
        cells = [str(number_of[id(layer)]), kind, layer.precision or "–", _types(layer)]
        if timed:
            cells.append("–" if layer.time_ms is None else number(layer.time_ms, 3))
        style = "red" if id(layer) in left else _style(layer)
        rows.append((node_name(result, layer), cells, style))
    heads = ["ONNX nodes", "#", "type", "prec.", "in → out", *(["ms"] if timed else [])]
    return name_table(console, heads, rows)


def _style(layer: EngineLayer) -> str:
    if layer.role is Role.MATRIX:
        return "green" if layer.precision in QUANTIZED else ""
    return "dim"


def _types(layer: EngineLayer) -> str:
    reads = _kinds(layer.inputs) or _kinds(layer.constants)
    writes = _kinds(layer.outputs)
    return f"{reads} → {writes}" if reads or writes else "–"


def _kinds(tensors: Sequence[EngineTensor]) -> str:
    return ",".join(dict.fromkeys(t.dtype for t in tensors if t.dtype))


def _print_details(console: Console, layer: EngineLayer) -> None:
    console.print(Text(printable(layer.name), style="bold"), soft_wrap=True)
    lines = []
    if layer.onnx_nodes:
        lines.append(f"nodes   {', '.join(map(printable, layer.onnx_nodes))}")
    if layer.tactic:
        lines.append(f"tactic  {printable(layer.tactic)}")
    for word, tensors in (
        ("reads", layer.inputs),
        ("holds", layer.constants),
        ("writes", layer.outputs),
    ):
        lines += [f"{word:<7} {_tensor(t)}" for t in tensors]
    if layer.sparse:
        lines.append("sparse  2:4 weights")
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)


def _tensor(tensor: EngineTensor) -> str:
    dims = "" if tensor.dims is None else f" [{', '.join(map(str, tensor.dims))}]"
    return f"{printable(tensor.name)} {tensor.dtype}{dims} {printable(tensor.format)}".rstrip()
