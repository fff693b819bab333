"""Every name of TensorRT that our code uses exists where it is used."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from qdebug.backends.tensorrt.build import implicit
from qdebug.backends.tensorrt.library import Library
from qdebug.plan import parsed_network

PACKAGE = Path(implicit.__file__).parent
MODULE = re.compile(r"(?:[\w.]*\.)?(?:_?trt|(?:_?library|self)\.module)\.(.+)")
"""How our code writes the module: `trt`, `self._trt`, `self.library.module` and the like."""

ONLY_RTX = ("ComputeCapability",)
LAYER_TYPES = set(re.findall(r'"([A-Z_]{5,})"', parsed_network.script_source()))
LAYER_TYPES -= {"OBEY_PRECISION_CONSTRAINTS"}
ONLY_10 = ("BuilderFlag.FP16", "BuilderFlag.INT8", "BuilderFlag.OBEY_PRECISION_CONSTRAINTS")


def used_names() -> set[str]:
    """`A.B` for every `trt.A.B` in the package: its longest chains of attributes."""
    names: set[str] = set()
    for file in (*PACKAGE.rglob("*.py"), Path(parsed_network.__file__)):
        names.update(_chains(ast.parse(file.read_text(encoding="utf-8"))))
    asked = SimpleNamespace(precisions={"a": "int8", "b": "fp16"}, stored={})
    names |= {f"BuilderFlag.{name}" for name in parsed_network.builder_flags(asked)}
    return names | {f"LayerType.{name}" for name in LAYER_TYPES}


def _chains(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found = MODULE.fullmatch(ast.unparse(node))
            if found:
                yield found[1].split(".__members__")[0]


CODE = """
import json, tensorrt
lacking = []
for name in {names!r}:
    value = tensorrt
    for part in name.split("."):
        value = getattr(value, part, None)
    if value is None:
        lacking.append(name)
print(json.dumps(lacking))
"""


def test_names_are_found() -> None:
    assert {"ILogger", "IProgressMonitor.__init__", "BuilderFlag.TF32"} <= used_names()
    assert {"DataType.HALF", "LayerType.CONVOLUTION", "LayerType.SHUFFLE"} <= used_names()


@pytest.mark.parametrize(("version", "without"), [("10.16.1.11", ()), ("11.4.0.106", ONLY_10)])
def test_names_exist_in_the_bindings(
    classic: Callable[..., str], version: str, without: tuple[str, ...]
) -> None:
    names = used_names()
    if not without:
        names |= set(implicit._CLASSES.values())
    lacks = json.loads(classic(version, CODE.format(names=sorted(names))))
    assert set(lacks) == {n for n in names if n.startswith(ONLY_RTX) or n in without}


def test_names_exist_in_tensorrt_for_rtx(rtx: Library) -> None:
    for name in used_names():
        value: object = rtx.module
        for part in name.split("."):
            value = getattr(value, part, None)
        assert (value is None) == (name in ONLY_10), name
