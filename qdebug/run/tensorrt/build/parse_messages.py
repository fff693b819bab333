"""What TensorRT's ONNX parser refuses, in the user's terms: which node, why, what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx

from qdebug.errors import ModelError, QdebugError
from qdebug.run.tensorrt.build.logger import LogMessage
from qdebug.run.tensorrt.build.messages import GENERAL_HINT, build_failure, cause_in, tidy
from qdebug.run.tensorrt.library import Library

_NODE = re.compile(r'While parsing node number (\d+) \[(.*?) -> "(.*)"\]')
_NODE_NAME = re.compile(r'^(?:Node name: (.*)|name: "(.*)")$', re.MULTILINE)
_REASON = re.compile(r"ERROR: .*?In function \w+:\s*\[\d+\] (.*)", re.DOTALL)


def parse_failure(
    library: Library, messages: Sequence[LogMessage], proto: onnx.ModelProto, error: Exception
) -> QdebugError:
    """The error for a model that the parser refused."""
    failed = _failed_nodes(messages)
    if not failed:
        return _without_node(library, messages, error)
    message, hint = _node_failure(library, failed[0], proto)
    others = [f"'{f.name or f.output}' ({f.op_type})" for f in failed[1:6]]
    if others:
        message += f"; nor {', '.join(others)}" + (" and others" if len(failed) > 6 else "")
    return ModelError(message, hint)


@dataclass(frozen=True)
class _FailedNode:
    index: int
    op_type: str
    output: str
    name: str
    reason: str


def _failed_nodes(messages: Sequence[LogMessage]) -> list[_FailedNode]:
    """The parser logs for each: where, the node between two marks, why."""
    texts = [m.text for m in messages if m.severity in ("ERROR", "INTERNAL_ERROR")]
    starts = [i for i, text in enumerate(texts) if _NODE.search(text)]
    failed = []
    for start, end in pairwise([*starts, len(texts)]):
        where = _NODE.search(texts[start])
        assert where is not None  # by the choice of starts
        rest = "\n".join(texts[start + 1 : end])
        name, reason = _NODE_NAME.search(rest), _REASON.search(rest)
        failed.append(
            _FailedNode(
                int(where[1]),
                where[2],
                where[3],
                (name[1] or name[2] or "") if name else "",
                reason[1] if reason else "",
            )
        )
    return failed


def _node_failure(library: Library, failed: _FailedNode, proto: onnx.ModelProto) -> tuple[str, str]:
    node = _find(failed, proto)
    opsets = {o.domain: o.version for o in proto.opset_import}
    domain = node.domain if node is not None else ""
    opset = opsets.get(domain, opsets.get("ai.onnx", 0) if not domain else 0)
    called = f"node '{failed.name or failed.output}' ({failed.op_type}, "
    called += f"domain '{domain}'" if domain not in ("", "ai.onnx") else f"opset {opset}"
    called += ")"
    if "Plugin not found" in failed.reason:
        return (
            f"{library.name} has no operator and no plugin for {called}",
            "Give the shared object that holds its plugin (--plugin FILE), or run it elsewhere: "
            "cut the model at this node.",
        )
    if failed.reason.split("\n")[0].strip() == "false" or "UNSUPPORTED" in failed.reason:
        return (
            f"{library.name} cannot parse {called}: it does not support the operator",
            "Express it with other operators, or cut the model at this node.",
        )
    if "shiftIsAllZeros" in failed.reason:
        return (
            f"{library.name} cannot parse {called}: its zero point is not 0",
            "TensorRT quantizes symmetrically: quantize to INT8 with zero point 0.",
        )
    return f"{library.name} cannot parse {called}: {tidy(cause_in(failed.reason))}", GENERAL_HINT


def _find(failed: _FailedNode, proto: onnx.ModelProto) -> onnx.NodeProto | None:
    nodes = proto.graph.node
    if failed.name:
        return next((n for n in nodes if n.name == failed.name), None)
    at = failed.index  # counts within a subgraph, too: only trusted if it fits
    if at < len(nodes) and nodes[at].op_type == failed.op_type:
        return nodes[at]
    return None


def _without_node(
    library: Library, messages: Sequence[LogMessage], error: Exception
) -> QdebugError:
    text = "\n".join(m.text for m in messages if m.severity in ("ERROR", "INTERNAL_ERROR"))
    text = text or str(error)
    if "convertDtype" in text or "Failed to convert ONNX date type" in text:
        return ModelError(
            f"{library.name} does not take the element type of a model input or constant",
            "Change it to float32, float16, int32, int64 or bool in the model.",
        )
    general = build_failure(library, messages, error, ())
    return ModelError(general.message, general.hint) if _REASON.search(text) else general
