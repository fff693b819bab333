"""What layers of a quantized model cost, by hand: put the FP32 model's nodes into the file."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort


def in_fp32(
    quantized: onnx.ModelProto, fp32: onnx.ModelProto, layers: Sequence[Collection[str]]
) -> onnx.ModelProto:
    """`quantized`, of ONNX Runtime with float tensors between nodes, with the FP32 model's nodes of
    these names in the place of its own. They read what is not rounded, and others as before.

    ONNX Runtime keeps the names of tensors. Of a Relu or Clip that it leaves out, the name is that
    of what it should have read.
    """
    wanted = {name for names in layers for name in names}
    mine = {n.name: n for n in fp32.graph.node}
    makers = {t: n for n in fp32.graph.node for t in n.output}
    constants = {t.name: t for t in fp32.graph.initializer}
    constants |= {n.output[0]: n.attribute[0].t for n in fp32.graph.node if n.op_type == "Constant"}
    kept_names = {n.name for n in quantized.graph.node}
    made: dict[str, onnx.NodeProto] = {}
    clipped: dict[str, str] = {}

    def raw(tensor: str) -> str:
        """The float tensor of the new model, after the activation that was left out."""
        if tensor in constants:
            return f"fp32/{tensor}"
        maker = makers.get(tensor)
        left_out = maker is not None and maker.name not in kept_names
        if left_out and maker.name not in wanted and maker.op_type in ("Relu", "Clip"):
            if tensor not in clipped:
                clipped[tensor] = f"{tensor}/clipped"
                node = copy.deepcopy(maker)
                node.name, node.output[0] = clipped[tensor], clipped[tensor]
                node.input[:] = [tensor, *(f"fp32/{t}" for t in node.input[1:])]
                made[clipped[tensor]] = node
            return clipped[tensor]
        return tensor

    new = copy.deepcopy(quantized)
    del new.graph.node[:], new.graph.value_info[:]
    nodes: list[onnx.NodeProto] = []
    for name in (n.name for n in fp32.graph.node if n.name in wanted):
        node = copy.deepcopy(mine[name])
        node.input[:] = [raw(t) for t in node.input]
        nodes.append(node)
    written = {t for n in nodes for t in n.output}
    nodes += made.values()
    nodes += [
        copy.deepcopy(n)
        for n in quantized.graph.node
        if n.name not in wanted and written.isdisjoint(n.output)
    ]
    for name in constants:
        tensor = copy.deepcopy(constants[name])
        tensor.name = f"fp32/{name}"
        new.graph.initializer.append(tensor)
    new.graph.node.extend(_sorted(_read(nodes, new), new))
    return new


def _read(nodes: list[onnx.NodeProto], proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Those whose outputs are read."""
    while True:
        read = {t for n in nodes for t in n.input} | {v.name for v in proto.graph.output}
        kept = [n for n in nodes if not read.isdisjoint(n.output)]
        if len(kept) == len(nodes):
            return nodes
        nodes = kept


def _sorted(nodes: list[onnx.NodeProto], proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    ready = {t.name for t in proto.graph.initializer} | {v.name for v in proto.graph.input} | {""}
    found: list[onnx.NodeProto] = []
    while nodes:
        some = [n for n in nodes if ready.issuperset(n.input)]
        assert some, [n.name for n in nodes]
        found += some
        ready |= {t for n in some for t in n.output}
        nodes = [n for n in nodes if n not in some]
    return found


def outputs(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """What ONNX Runtime gives for each sample, with Q/DQ as they stand."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    count = len(next(iter(feeds.values())))
    runs = [session.run(None, {n: a[i : i + 1] for n, a in feeds.items()}) for i in range(count)]
    return [np.concatenate(parts) for parts in zip(*runs, strict=True)]


def noise(expected: Sequence[Any], found: Sequence[Any]) -> float:
    """Σerr²/Σref² of the outputs, the mean over them."""
    parts = [
        np.square(a.astype(np.float64) - b).sum() / np.square(a.astype(np.float64)).sum()
        for a, b in zip(expected, found, strict=True)
    ]
    return float(np.mean(parts))
