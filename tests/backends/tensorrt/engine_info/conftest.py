"""What the logs of real builds say: networks lowered to a precision, built with no GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import onnx
import pytest

from qdebug.backends.engine import BuiltEngine
from qdebug.backends.tensorrt.build.build import build_engine
from qdebug.backends.tensorrt.build.settings import BuildSettings
from qdebug.backends.tensorrt.library import Library
from qdebug.engine_info.files.build_log import read_build_log
from qdebug.engine_info.layers import EngineInfo
from qdebug.network.graph import Graph
from qdebug.plan.lower import Lowered
from qdebug.plan.plan import BoundPlan


@dataclass(frozen=True)
class Inspected:
    """A plan, the model it was lowered to, and what the log of its build says."""

    bound: BoundPlan
    graph: Graph
    log: str
    info: EngineInfo


@pytest.fixture(scope="session")
def inspected(
    built: Callable[[str, str], BuiltEngine],
    bound_plan: Callable[[str, str], BoundPlan],
    lowered: Callable[[str, str], Lowered],
) -> Callable[[str, str], Inspected]:
    """`inspected(net, kind)`, as `built(net, kind)`."""

    @cache
    def inspect(net: str, kind: str) -> Inspected:
        log = built(net, kind).log
        info = read_build_log(log, "build.log")
        return Inspected(bound_plan(net, kind), lowered(net, kind).graph, log, info)

    return inspect


@pytest.fixture(scope="session")
def build_log(rtx: Library, ada: BuildSettings) -> Callable[[onnx.ModelProto], str]:
    """`build_log(proto)`: the log of a build of a model of fixed shapes."""

    def build(proto: onnx.ModelProto) -> str:
        return build_engine(rtx, proto, replace(ada, profile=None)).log

    return build
