"""The house rules that a machine can check: who imports whom, no printing."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from unittest.mock import patch

import numpy as np
import pytest

from qdebug.backends.registry import backend_names

ROOT = Path(__file__).parents[1] / "qdebug"
FILES = sorted(ROOT.rglob("*.py"))
STAGES = (
    ("types",), ("formats",), ("native",), ("inmemory",), ("wording",), ("errors",), ("memo",),
    ("inputfiles",), ("outputfiles",), ("result",), ("stages",), ("yamlfile",), ("userfile",),
    ("network",), ("calibrators",), ("plan",), ("engine_info",), ("metrics",), ("store",),
    ("backends",), ("run",), ("results",), ("config",), ("execute",), ("analyse",), ("decide",),
    ("display",), ("page",), ("commands",), ("api",), ("cli",), ("__main__",), ("testing",),
)  # fmt: skip
RANK = {name: i for i, names in enumerate(STAGES) for name in names}
ONLY_IN = {
    "tensorrt": ("backends/tensorrt/",),
    "tensorrt_rtx": ("backends/tensorrt/",),
    "tensorrt_bindings": ("backends/tensorrt/",),
    "pycuda": ("backends/tensorrt/",),
    "openvino": ("backends/openvino.py",),
    "dask": ("execute/cluster/",),
    "distributed": ("execute/cluster/",),
    "cloudpickle": ("execute/cluster/",),
    "h5py": ("store/", "network/samples/readers/hdf5.py"),
    "hdf5plugin": ("store/", "network/samples/readers/hdf5.py"),
    "cyclopts": ("cli/", "config/"),
    "rich": ("cli/", "display/", "results/words.py"),
}
CONFIG_USERS = ("execute", "analyse", "decide", "commands", "api", "cli")
MAY_PRINT = ("cli/", "display/", "__main__.py")


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def _module(file: Path) -> str:
    parts = ("qdebug", *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _nodes(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def _imports(file: Path) -> Iterator[str]:
    """Full names of everything a file imports, anywhere in it."""
    for node in _nodes(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(file)}:{node.lineno}: a relative import"
            assert node.module
            if node.module == "qdebug":
                yield from (f"qdebug.{alias.name}" for alias in node.names)
            else:
                yield node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _named_module(node.value)
        elif isinstance(node, ast.Call) and _called(node) in IMPORTERS:
            yield from _imported_by(file, node)


IMPORTERS = ("import_module", "__import__", "resolve_name")
LIBRARIES_BY_NAME = {
    "errors.py": "packages that are optional",
    "userfile.py": "the user's own modules",
    "backends/providers.py": "packages that add execution providers to ONNX Runtime",
    "backends/registry.py": "what a backend names: strings that are looked at here",
    "backends/tensorrt/library.py": "TensorRT, under one of its names",
    "execute/cluster/worker.py": "strings of that file, which are looked at here",
    "__init__.py": "strings of that file",
}
"""Files that import what a variable names, and what that may be."""


def _named_module(text: str) -> Iterator[str]:
    """The module of qdebug that a string names, alone or with something in it after a colon."""
    module = text.partition(":")[0]
    if re.fullmatch(r"qdebug(\.\w+)+", module):
        path = ROOT.parent / module.replace(".", "/")
        if path.is_dir() or path.with_suffix(".py").is_file():
            yield module


def _imported_by(file: Path, call: ast.Call) -> Iterator[str]:
    """What a call imports: a string, or one that begins with the name of a package."""
    name = call.args[0] if call.args else None
    if isinstance(name, ast.Constant):
        yield str(name.value)
    elif isinstance(name, ast.JoinedStr):
        first = name.values[0]
        begins = str(first.value) if isinstance(first, ast.Constant) else ""
        if isinstance(first, ast.FormattedValue) and isinstance(first.value, ast.Name):
            own = first.value.id in (
                "__name__",
                "__package__",
            )  # of a folder that imports its files
            begins = f"{_module(file)}." if own else ""
        assert begins.startswith("qdebug.") and begins.count(".") > 1, (
            f"{_name(file)}:{call.lineno}: nothing tells which package is imported"
        )
        yield begins.rpartition(".")[0]
    else:
        assert _name(file) in LIBRARIES_BY_NAME, (
            f"{_name(file)}:{call.lineno}: nothing tells what is imported"
        )


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _stage(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def files(rule: Callable[[Path], None]) -> Callable[[], None]:
    """A test that holds every file to `rule`: a test for each would be a third of all tests."""

    def test() -> None:
        broken = []
        for file in FILES:
            try:
                rule(file)
            except AssertionError as error:
                broken.append(str(error))
        assert not broken, "\n".join(broken)

    return test


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("import_module(f'qdebug.display.{name}')", "qdebug.display"),
        ("importlib.import_module('qdebug.cli.app')", "qdebug.cli.app"),
        ("FACTORY = 'qdebug.backends.simulation:SimulationBackend'", "qdebug.backends.simulation"),
        ("import_module(f'qdebug.{name}')", None),
        ("import_module('qdebug.' + name)", None),
        ("import_module(name)", None),
    ],
)
def test_imports_by_string_are_seen(source: str, imported: str | None) -> None:
    file = ROOT / "measure" / "made_up.py"
    tree = tuple(ast.walk(ast.parse(source)))
    with patch(f"{__name__}._nodes", lambda _: tree):
        if imported is None:
            with pytest.raises(AssertionError, match="nothing tells"):
                list(_imports(file))
        else:
            assert imported in list(_imports(file))


def test_every_stage_has_a_place_in_the_order() -> None:
    found = {_stage(_module(f)) for f in FILES} - {""}
    assert found <= set(RANK), "add the new stage to STAGES, in reading order"


@files
def test_imports_go_one_way(file: Path) -> None:
    stage = _stage(_module(file))
    for imported in _imports(file):
        if imported.split(".")[0] != "qdebug" or not stage:
            continue
        other = _stage(imported)
        if other in RANK:
            assert RANK[other] <= RANK[stage], f"{_name(file)} imports {imported}"
        if other == "config" and stage != "config":
            assert stage in CONFIG_USERS, f"{_name(file)} imports {imported}"


def test_the_settings_of_compare_stay_near_its_entry(tmp_path: Path) -> None:
    """A stage gets the values it needs: in one call, on an engine and with a run file, few files
    have a function that is given the settings, in any thread, as an argument or inside of one."""
    import qdebug
    from qdebug.config.commands import COMMANDS
    from qdebug.config.engine import EngineSettings
    from qdebug.testing.contract import network

    kinds = (EngineSettings, *(command.settings for command in COMMANDS.values()))
    given: set[str] = set()
    threads: set[int] = set()
    calls: Counter[CodeType] = Counter()

    def holds_settings(value: object, depth: int = 3) -> bool:
        if isinstance(value, kinds):
            return True
        inner: list[object] = []
        if isinstance(value, list | tuple):
            inner = list(value[:20])
        elif isinstance(value, dict):
            inner = list(value.values())[:50]
        elif is_dataclass(value) and not isinstance(value, type):
            inner = [getattr(value, field.name, None) for field in fields(value)]
        return depth > 0 and any(holds_settings(each, depth - 1) for each in inner)

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(ROOT)):
            return
        threads.add(threading.get_ident())
        calls[code] += 1
        if calls[code] > 8:  # of one function more would tell nothing, and take half a minute
            return
        more = bool(code.co_flags & inspect.CO_VARARGS) + bool(
            code.co_flags & inspect.CO_VARKEYWORDS
        )
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + more]
        file = _name(Path(code.co_filename))
        if file not in given and any(holds_settings(frame.f_locals.get(n)) for n in names):
            given.add(file)

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        qdebug.compare(
            network(),
            inputs={"x": np.eye(4, dtype=np.float32)},
            backend="onnxruntime",
            output=tmp_path / "run.h5",
            fail_on="output.cosine>=0.9",
        )
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    assert len(threads) > 1
    assert {"commands/compare/command.py", "analyse/engine.py"} <= given, given
    assert len(given) <= 12, given


OF_THE_PROCESS = {
    "_received": "cli/process.py",  # signals that came
    "_results": "cli/process.py",  # the stream that holds results only
    "_processes": "backends/tensorrt/process.py",  # one of each library, while somebody holds it
    "_kept": "backends/tensorrt/execute/runtime_cache.py",
    "_jobs": "execute/cluster/worker.py",  # what a worker process has open
}
"""What a module may hold that changes: nothing that one call asks for may reach another by it."""


@files
def test_no_state_of_the_process(file: Path) -> None:
    for node in _nodes(file):
        assert not isinstance(node, ast.Global), f"{_name(file)}:{node.lineno}: global"
    module = _nodes(file)[0]
    assert isinstance(module, ast.Module)
    for node in module.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and _may_change(node.value):
                where = OF_THE_PROCESS.get(target.id)
                assert where == _name(file), f"{_name(file)}: {target.id} may change"


def test_what_may_change_is_still_there() -> None:
    assigned = {
        (target.id, _name(file))
        for file in FILES
        for node in _nodes(file)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    assert set(OF_THE_PROCESS.items()) <= assigned


_CHANGING = {"list", "dict", "set", "defaultdict", "OrderedDict", "Counter", "deque"} | {
    *("Event", "local", "WeakKeyDictionary", "WeakValueDictionary", "_Jobs")
}


def _may_change(value: ast.expr) -> bool:
    """Whether an expression makes something to be filled: literals with content are tables."""
    if isinstance(value, ast.List | ast.Set):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    empty = isinstance(value, ast.Call) and not value.args and not value.keywords
    return isinstance(value, ast.Call) and empty and _called(value) in _CHANGING


@files
def test_libraries_stay_where_they_belong(file: Path) -> None:
    for imported in _imports(file):
        allowed = ONLY_IN.get(imported.split(".")[0])
        if allowed:
            assert _name(file).startswith(allowed), f"{_name(file)} imports {imported}"


@files
def test_backends_are_told_apart_by_what_they_can_do(file: Path) -> None:
    """Their names are compared, and matched, only where they are made."""
    if _name(file).startswith(("backends/", "testing/")):
        return
    names = set(backend_names()) | {"ort"}
    for node in _nodes(file):
        compared = []
        if isinstance(node, ast.Compare):
            compared = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            compared = [node.value]
        found = [c.value for c in compared if isinstance(c, ast.Constant)]
        assert not names.intersection(map(str, found)), f"{_name(file)}:{node.lineno}"


@files
def test_nodes_are_made_in_one_place(file: Path) -> None:
    """Beside it only models for tests, two probes of a node or two, and what a stage before `plan`
    makes: one of the probes, the joints of branches, and Casts at the ends."""
    before = ("network/load.py", "network/inline.py", "network/fp16_ends.py")
    others = ("testing/", "backends/doctor.py", *before)
    if _name(file).startswith(("plan/rewrite/edit.py", *others)):
        return
    for node in _nodes(file):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "helper":
            assert node.attr != "make_node", f"{_name(file)}:{node.lineno}"


@files
def test_sessions_get_their_options_in_one_place(file: Path) -> None:
    """Beside it what preparation asks ONNX Runtime: opsets that it takes, constants."""
    if _name(file) not in ("backends/options.py", "network/runtime.py"):
        names = {n.attr for n in _nodes(file) if isinstance(n, ast.Attribute)}
        assert "SessionOptions" not in names, _name(file)


def test_the_registry_imports_no_runtime() -> None:
    heavy = {"numpy", "onnx", "onnxruntime", "openvino", "tensorrt", "tensorrt_rtx", "pydantic"}
    code = (
        "import sys; from qdebug.backends.registry import backend_names, spec_of; "
        "[spec_of(n).installed for n in backend_names()]; print(*sys.modules)"
    )
    assert not heavy & set(_run(code).split())


@files
def test_library_code_neither_prints_nor_configures_logging(file: Path) -> None:
    if _name(file).startswith(MAY_PRINT):
        return
    for node in _nodes(file):
        if isinstance(node, ast.Call):
            assert _called(node) not in ("print", "basicConfig", "dictConfig"), (
                f"{_name(file)}:{node.lineno}"
            )
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "sys":
            assert node.attr not in ("stdout", "stderr", "exit"), f"{_name(file)}:{node.lineno}"


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BLOCK = """
import importlib, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Blocked())
"""


def test_every_module_imports_without_its_extras() -> None:
    blocked = (
        "cloudpickle",
        "dask",
        "distributed",
        "matplotlib",
        "pandas",
        "pyarrow",
        "hdf5plugin",
        "openvino",
        "tensorrt",
        "tensorrt_rtx",
        "tensorrt_bindings",
        "pycuda",
        "cuda",
        "cupy",
        "torch",
    )
    modules = [m for m in map(_module, FILES) if not m.endswith("__main__")]
    code = BLOCK.format(blocked=blocked) + f"for m in {modules!r}: importlib.import_module(m)"
    _run(code)


@pytest.mark.parametrize("module", ["qdebug", "qdebug.cli.app"])
def test_the_command_line_starts_without_heavy_libraries(module: str) -> None:
    heavy = {"onnxruntime", "onnx", "numpy", "h5py", "scipy", "polygraphy"}
    loaded = set(_run(f"import sys, {module}; print(*sys.modules)").split())
    assert not heavy & loaded
