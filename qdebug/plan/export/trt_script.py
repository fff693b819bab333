"""Python that tells TensorRT 10 the constraints of a plan, for the scripts of two targets."""

from __future__ import annotations

from qdebug.plan.export.implicit import Implicit, asked_literal
from qdebug.plan.parsed_network import script_source

_SCRIPT = '''\
# What TensorRT 10's implicit way is asked, as by `qdebug compare --typing implicit`: precisions by
# ONNX node; by tensor the types that are fixed (`rest`: of all else that INT8 layers write, less
# `free`) and the largest magnitudes; of the nodes of INT8 layers the largest magnitudes of what
# else they read or write, and of their weights.
ASKED = {asked}


def apply_plan(network, trt):
    """Tell a parsed network what is asked."""
    lost = constrain(network, trt, ASKED)
    lost += set_ranges(network, ranges_in(network, trt, ASKED))
    if lost:
        sys.exit(f"TensorRT parsed another network: nothing to constrain for {{', '.join(lost)}}")


{functions}'''


def plan_script(form: Implicit) -> str:
    """The functions `apply_plan(network, trt)` and `builder_flags(ASKED)`, and all that they need
    but `from __future__ import annotations`, `sys`, `SimpleNamespace` and `Any`."""
    return _SCRIPT.format(asked=asked_literal(form.asked), functions=script_source())


def docstring(text: str) -> str:
    """`text` such as it may stand in a docstring, on one line."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"').replace("\n", " ")
