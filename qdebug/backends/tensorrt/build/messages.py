"""What TensorRT's ONNX parser and builder say, in the user's terms: which node or layer, why, and
what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx

from qdebug.backends.engine import BuildWarning
from qdebug.backends.tensorrt.build.logger import LogMessage
from qdebug.backends.tensorrt.library import Library
from qdebug.errors import BackendError, ModelError, QdebugError
from qdebug.wording import option

GENERAL_HINT = "-vv shows all that TensorRT said about it."

_NOISE = re.compile(r"^Make sure input .* has Int64 binding\.$")
"""Warnings about what qdebug does anyway."""

_POSITION = re.compile(r"^\S+\.(?:cpp|h|cc):\d+: ")


def warnings_of(messages: Sequence[LogMessage], proto: onnx.ModelProto) -> tuple[BuildWarning, ...]:
    """The distinct warnings of a log, in the order of their first appearance."""
    counts: dict[str, int] = {}
    for message in messages:
        if message.severity == "WARNING":
            text = tidy(message.text)
            if not _NOISE.match(text):
                counts[text] = counts.get(text, 0) + 1
    names = [node.name for node in proto.graph.node if node.name]
    return tuple(BuildWarning(t, nodes_in(t, names), n) for t, n in counts.items())


def nodes_in(text: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that stand in `text` as a whole: between blanks, quotes, brackets."""
    found = []
    for name in dict.fromkeys(names):
        at = text.find(name)
        while at >= 0:
            before, after = text[:at][-1:], text[at + len(name) :][:1]
            if not (_in_name(before) or _in_name(after)):
                found.append(name)
                break
            at = text.find(name, at + 1)
    return tuple(found)


def _in_name(character: str) -> bool:
    return character.isalnum() or (character != "" and character in "_/.")


def cause_in(text: str) -> str:
    """What is said within `… Error Code 4: API Usage Error (… In function at file)`: the library's
    own error rather than the parser's, without its position in the sources."""
    inner = re.search(r"Error Code \d+: [^(]*\((.*?)\s*(?:\. In |In \w+ at |$)", text, re.MULTILINE)
    cause = inner[1] if inner else text.split("\n")[0].removeprefix("Assertion failed: ")
    return re.sub(r"^(?:\[[^\]]*\]\s*)+", "", cause)


def build_failure(
    library: Library, messages: Sequence[LogMessage], error: Exception, names: Iterable[str]
) -> QdebugError:
    """The error for a network that the builder refused, or a builder that could not be made."""
    errors = [m.text for m in messages if m.severity in ("ERROR", "INTERNAL_ERROR")]
    text = "\n".join(errors)
    for failure in _KNOWN:
        match = failure.pattern.search(text) or failure.pattern.search(str(error))
        if match and failure.of in (None, library.rtx):
            return failure.error(library, match)
    shown = tidy(cause_in(errors[0])) if errors else tidy(str(error))
    named = nodes_in(text, names)
    at = f" at layer '{named[0]}'" if named else ""
    return BackendError(
        f"{library.name} cannot build the engine{at}: {shown}",
        GENERAL_HINT,
        code="QD-BACKEND-BUILD",
    )


@dataclass(frozen=True)
class _Failure:
    """A failure that is known by what the library says.

    Attributes:
        problem, hint: templates; {1} is a group of the pattern, {0} all that it matches, {said}
            the first line, and {workspace} a setting as the user knows it.
        of: TensorRT for RTX only, or TensorRT only; None for both.
    """

    pattern: re.Pattern[str]
    code: str
    problem: str
    hint: str
    of: bool | None = None

    def error(self, library: Library, match: re.Match[str]) -> BackendError:
        """What the user is told."""
        size = re.search(r"size was (\d+) bytes", match.string)
        known = {str(number): text for number, text in enumerate(match.groups(), 1)}
        known["0"] = tidy(match[0])
        known["said"] = tidy(match.string.splitlines()[0])
        known["asked"] = f": it asked for {int(size[1]) / 2**30:.1f} GiB" if size else ""

        def value(found: re.Match[str]) -> str:
            return known[found[1]] if found[1] in known else option(found[1])

        problem, hint = (re.sub(r"{(\w+)}", value, x) for x in (self.problem, self.hint))
        return BackendError(f"{library.name} {problem}", hint, code=self.code)


_RTX, _CLASSIC = True, False
_NEEDS_GPU = "compiles the kernels of a refittable engine on a GPU, and can use none here"
_REFIT_HINT = "Build where there is one, or drop {refit}."


def no_device_for_refit(library: Library) -> BackendError:
    """The error for an engine that was to be refittable, on a machine without a GPU: TensorRT for
    RTX compiles its products on one."""
    hint = _REFIT_HINT.format(refit=option("refit"))
    return BackendError(f"{library.name} {_NEEDS_GPU}", hint, code="QD-BACKEND-REFIT-NEEDS-GPU")


_ABSENT = re.compile(r"cudaError (?:35|100)\b|no CUDA-capable device|error: (?:35|100)\b")
_UNSUPPORTED = re.compile(r"does not support this compute capability")
_CHECK = re.compile(r"CHECK\(dtype == [^)]*\) failed")
_KNOWN = (
    _Failure(
        re.compile(r"OutOfMemory|out of memory", re.IGNORECASE),
        "QD-BACKEND-MEMORY",
        "ran out of memory while building{asked}",
        "Use smaller input shapes, observe fewer tensors, or limit the workspace.",
    ),
    _Failure(
        _UNSUPPORTED,
        "QD-BACKEND-GPU-UNSUPPORTED",
        "does not support the compute capability of this GPU",
        "TensorRT for RTX 1.7 does not run on 9.0 (H100, H200): 1.6 and 1.5 do, without INT8 "
        "convolutions.",
        _RTX,
    ),
    _Failure(
        _UNSUPPORTED,
        "QD-BACKEND-GPU-UNSUPPORTED",
        "does not support the compute capability of this GPU",
        "Install a TensorRT that still supports this GPU.",
        _CLASSIC,
    ),
    _Failure(
        _ABSENT,
        "QD-BACKEND-NO-GPU",
        "finds no GPU that it can use here",
        "Name the GPU to build for ({compute_capability}), such as 8.9.",
        _RTX,
    ),
    _Failure(
        _ABSENT,
        "QD-BACKEND-NO-GPU",
        "finds no GPU that it can use here, and builds only where there is one",
        "On a machine without a GPU use tensorrt-rtx ({backend}) for a named GPU "
        "({compute_capability}), such as 8.9.",
        _CLASSIC,
    ),
    _Failure(
        re.compile(r"Cannot compile operation '([^']+)' for ([^:]+): (.+?)\. In "),
        "QD-BACKEND-NO-KERNEL",
        "cannot build layer '{1}' for {2}: {3}",
        "Build for a later compute capability, or give the layer another precision.",
    ),
    _Failure(
        re.compile(r"within workspace limit|due to insufficient workspace"),
        "QD-BACKEND-WORKSPACE",
        "has no kernel for a layer within the limit of the workspace",
        "Raise {workspace}, or drop it: the builder then takes what the GPU has.",
    ),
    _Failure(
        re.compile(r"Could not find any implementation for node (.+?)\.\)?\s*$", re.M),
        "QD-BACKEND-NO-KERNEL",
        "has no kernel for '{1}' in the precision and types asked for",
        "Keep it in a higher precision in the plan (layers:); where the typing is implicit, try "
        "strong.",
    ),
    _Failure(
        re.compile(r"Unable to load library: ([^:\s]*lean[^:\s]*)"),
        "QD-BACKEND-NOT-LOADABLE",
        "cannot load {1}",
        "{version_compatible} needs the lean runtime, which the packages of TensorRT for RTX do "
        "not hold: install it, or drop {version_compatible}.",
    ),
    _Failure(
        re.compile(r"Unable to load library: ([^:\s]+)"),
        "QD-BACKEND-NOT-LOADABLE",
        "cannot load {1}",
        "Install the complete library.",
    ),
    _Failure(
        re.compile(r"CHECK\(status == CUDA_SUCCESS\) failed"),
        "QD-BACKEND-REFIT-NEEDS-GPU",
        _NEEDS_GPU,
        _REFIT_HINT,
    ),
    _Failure(
        _CHECK,
        "QD-BACKEND-NO-KERNEL",
        "cannot build a layer in this precision ({0}): before 1.7 it has no INT8 convolutions",
        "1.7 has (but does not run on compute capability 9.0); or keep Conv layers in FP16.",
        _RTX,
    ),
    _Failure(
        _CHECK,
        "QD-BACKEND-NO-KERNEL",
        "has no kernel for a layer in this precision: {0}",
        "Keep the layer in a higher precision.",
        _CLASSIC,
    ),
    _Failure(
        re.compile(r"factory function returned nullptr|version mismatch", re.I),
        "QD-BACKEND-VERSIONS-DIFFER",
        "cannot create a builder: {said}",
        "The Python bindings and the shared objects must be of one version, and the GPU driver new "
        "enough for it; `qdebug doctor` shows them.",
    ),
)


def tidy(text: str) -> str:
    """One line without source positions."""
    return " ".join(_POSITION.sub("", text.strip()).split())[:400]


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
    return ModelError(message, hint, code="QD-MODEL-REFUSED")


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
            f"Give the shared object that holds its plugin ({option('plugin', 'FILE')}), or "
            "run it elsewhere: cut the model at this node.",
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
            code="QD-MODEL-ELEMENT-TYPE",
        )
    general = build_failure(library, messages, error, ())
    return (
        ModelError(general.message, general.hint, code="QD-MODEL-REFUSED")
        if _REASON.search(text)
        else general
    )
