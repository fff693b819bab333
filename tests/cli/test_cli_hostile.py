"""Files that are made to hang the program, fill its memory, read other files or write to the
terminal: one message, exit 2."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qdebug

BASE = ("compare", "net.onnx", "--inputs", "data.npz")


@pytest.mark.parametrize(
    ("arguments", "name", "code"),
    [
        (("compare", "pipe.onnx", "--inputs", "data.npz"), "pipe.onnx", "QD-MODEL-UNREADABLE"),
        (("inspect", "pipe.log"), "pipe.log", "QD-USAGE-FILE-UNREADABLE"),
        ((*BASE, "--plan", "pipe.yaml"), "pipe.yaml", "QD-PLAN-FILE"),
        (("compare", "--config", "pipe.yaml"), "pipe.yaml", "QD-USAGE-CONFIG-FILE"),
        ((*BASE, "--calibration", "pipe.cache"), "pipe.cache", "QD-PLAN-FILE"),
        (("compare", "net.onnx", "--inputs", "pipe.npz"), "pipe.npz", "QD-SAMPLES-DAMAGED"),
        (("compare", "net.onnx", "--inputs", "pipe.npy"), "pipe.npy", "QD-SAMPLES-DAMAGED"),
        (("compare", "net.onnx", "--inputs", "pipe.json"), "pipe.json", "QD-SAMPLES-DAMAGED"),
        (("compare", "net.onnx", "--inputs", "pipe.h5"), "pipe.h5", "QD-SAMPLES-DAMAGED"),
        (("report", "pipe.h5", "-o", "page.html"), "pipe.h5", "QD-STORE-NOT-A-RUN"),
        (("report", "pipe.json", "-o", "page.html"), "pipe.json", "QD-USAGE-FILE-UNREADABLE"),
    ],
)
def test_a_pipe_in_place_of_a_file(
    desk: Any, arguments: tuple[str, ...], name: str, code: str
) -> None:
    os.mkfifo(name)
    desk.refused(*arguments, says=[code, name])


def test_devices(desk: Any) -> None:
    desk.refused("compare", "/dev/zero", "--inputs", "data.npz", says=["QD-MODEL-UNREADABLE"])
    desk.refused(*BASE, "--plan", "/dev/zero", says=["QD-PLAN-FILE", "/dev/zero"])


@pytest.mark.parametrize("location", ["/dev/zero", "pipe", "../outside.data", "a\0b", ""])
def test_external_data_elsewhere(desk: Any, cnn: Any, location: str) -> None:
    os.mkfifo("pipe")
    Path("../outside.data").write_bytes(bytes(4000))
    proto = cnn()
    options = {"save_as_external_data": True, "location": "w.data", "size_threshold": 0}
    onnx.save_model(proto, "external.onnx", **options)
    assert desk.run("compare", "external.onnx", "--inputs", "data.npz").code == 0
    proto = onnx.load("external.onnx", load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    desk.save(proto, "external.onnx")
    says = ["QD-MODEL-EXTERNAL-DATA", "external.onnx"]
    desk.refused("compare", "external.onnx", "--inputs", "data.npz", says=says)


ALIASES = "a0: &a0 {x: 1, y: 2}\n" + "".join(
    f"a{n}: &a{n} {{b: *a{n - 1}, c: *a{n - 1}, d: *a{n - 1}}}\n" for n in range(1, 30)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 30)
)


@pytest.mark.parametrize("text", [ALIASES, MERGES, "a: &a [*a]\n", "a: &a {<<: *a}\n"])
def test_aliases_that_fill_the_memory(desk: Any, text: str) -> None:
    desk.write("bomb.yaml", text)
    desk.refused("compare", "--config", "bomb.yaml", says=["QD-USAGE-CONFIG-FILE", "bomb.yaml:"])
    desk.refused(*BASE, "--plan", "bomb.yaml", says=["QD-PLAN-FILE", "bomb.yaml:"])


def test_aliases_that_a_person_writes(desk: Any) -> None:
    ranges = "tensors:\n  x: &same {amax: 3.0}\n  r1: *same\n  f: {<<: *same}\n"
    desk.write("plan.yaml", f"schema: qdebug.plan/1\n{ranges}")
    assert desk.compare("--plan", "plan.yaml").code == 0


def test_hdf5_that_shows_another_file(desk: Any, pictures: Callable[[int], Any]) -> None:
    secret = pictures(2)
    Path("secret").write_bytes(secret.tobytes())
    with h5py.File("elsewhere.h5", "w") as file:
        file.create_dataset(
            "x", secret.shape, np.float32, external=[("secret", 0, h5py.h5f.UNLIMITED)]
        )
    with h5py.File("whole.h5", "w") as file:
        file["x"] = secret
    with h5py.File("virtual.h5", "w") as file:
        layout = h5py.VirtualLayout(secret.shape, np.float32)
        layout[:] = h5py.VirtualSource("whole.h5", "x", secret.shape)
        file.create_virtual_dataset("x", layout)
    for name in ("elsewhere.h5", "virtual.h5"):
        says = ["QD-SAMPLES-HDF5-EXTERNAL", name]
        desk.refused("compare", "net.onnx", "--inputs", name, says=says)
    with h5py.File("linked.h5", "w") as file:
        file["x"] = h5py.ExternalLink("whole.h5", "x")
    desk.refused("compare", "net.onnx", "--inputs", "linked.h5", says=["QD-SAMPLES-FORMAT"])


def test_a_run_file_whose_parts_are_links(desk: Any) -> None:
    assert desk.compare("-o", "run.h5", "--keep", "all").code == 0
    whole = Path("run.h5").read_bytes()
    for name in ("results", "samples", "network", "tensors", "tensors/00000/reference"):
        Path("run.h5").write_bytes(whole)
        Path("other.h5").write_bytes(whole)
        with h5py.File("run.h5", "r+") as file:
            del file[name]
            file[name] = h5py.ExternalLink("other.h5", f"/{name}")
        desk.refused("report", "run.h5", "-o", "page.html", says=["QD-STORE-DAMAGED", "run.h5"])


def test_labels_are_read_where_a_metric_needs_them(
    desk: Any, pictures: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from qdebug.network.samples.readers import npy

    read: list[tuple[int, ...]] = []
    values = npy.StoredArray.read

    def watched(self: Any, start: int, stop: int) -> Any:
        read.append(self.shape)
        return values(self, start, stop)

    monkeypatch.setattr(npy.StoredArray, "read", watched)
    desk.data("labelled.npz", x=pictures(3), labels=np.arange(3))
    for flags, wanted in (((), False), (("--metric", "top1"), True)):
        read.clear()
        done = desk.run("compare", "net.onnx", "--inputs", "labelled.npz", *flags)
        assert done.code == 0 and ((3,) in read) is wanted


ODD = "\x1b[31mred\x1b[0m\x1b]0;title\x07\r\x9b2J\u202e\nqdebug: error: forged"


def test_names_that_would_move_the_cursor(desk: Any, cnn: Any, pictures: Any) -> None:
    desk.save(cnn(names={"conv1": ODD}))
    desk.data("odd.npz", **{"x": pictures(2), "y" + ODD.replace("\n", ""): np.arange(2)})
    desk.write("plan.yaml", "schema: qdebug.plan/1\nlayers:\n  " + json.dumps(ODD) + ": int9\n")
    for arguments in (
        ("compare", "net.onnx", "--inputs", "data.npz", "-v"),
        ("inspect", "net.onnx"),
        ("compare", "net.onnx", "--inputs", "odd.npz", "--metric", "top1"),
        (*BASE, "--plan", "plan.yaml"),
        (*BASE, "--plan", ODD),
    ):
        done = desk.spawn(*arguments)
        for text in (done.out, done.err):
            assert all(c.isprintable() or c == "\n" for c in text), arguments
            assert "\nqdebug: error: forged" not in text, arguments


def test_what_onnx_runtime_logs_stays_off_the_terminal(desk: Any, cnn: Any) -> None:
    """It writes its errors in colour, with the names of the model, past Python."""
    proto = cnn()
    weight = proto.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(np.zeros((4, 7, 3, 3), np.float32), weight.name))
    proto.graph.node[0].name = ODD
    desk.save(proto, "wrong.onnx")
    done = desk.spawn("compare", "wrong.onnx", "--inputs", "data.npz")
    assert done.code in (2, 3) and done.err.startswith("qdebug: error: ")
    assert "wrong.onnx" in done.err and "\x1b" not in done.err
    assert done.err.count("\n") <= 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda g: g.initializer[0].dims.append(7), "'w1'"),
        (lambda g: g.initializer[0].dims.__setitem__(0, -4), "'w1'"),
        (lambda g: setattr(g.initializer[0], "data_type", 57), "'w1'"),
        (lambda g: g.node[0].ClearField("input"), "'conv1'"),
        (lambda g: g.node[1].ClearField("output"), "'relu1'"),
        (lambda g: g.node[1].input.__setitem__(0, "nothing"), "'nothing'"),
        (lambda g: g.node[1].output.__setitem__(0, "c1"), "'c1'"),
        (lambda g: g.node[6].attribute.add(name="axis", type=1, f=0.5), "'flatten'"),
        (lambda g: g.node[6].attribute.add(name="axis", type=2, ref_attr_name="a"), "'flatten'"),
        (
            lambda g: (g.node[6].attribute.add(name="axis"), setattr(g.node[6], "domain", "own")),
            "flatten",
        ),
        (lambda g: g.ClearField("output"), "outputs"),
        (lambda g: setattr(g.output[0], "name", "none"), "'none'"),
        (lambda g: setattr(g.node[0], "name", "a\0b"), "zero byte"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "inspect"])
def test_models_that_break_a_rule_of_onnx(
    desk: Any, cnn: Any, change: Callable[[Any], None], says: str, command: str
) -> None:
    proto = cnn()
    change(proto.graph)
    desk.save(proto, "broken.onnx")
    data = ("--inputs", "data.npz") if command == "compare" else ()
    desk.refused(command, "broken.onnx", *data, says=["QD-MODEL-INVALID", "broken.onnx", says])


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (((((",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3, 8, 8), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2.5, 3, 8, 8), }",
        "('descr' \"",
        "[" * 300,
    ],
)
def test_headers_of_npy_files(desk: Any, header: str) -> None:
    text = header.encode() + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(2000)
    Path("odd.npy").write_bytes(data)
    says = ["QD-SAMPLES-DAMAGED", "odd.npy"]
    desk.refused("compare", "net.onnx", "--inputs", "odd.npy", says=says)


@pytest.mark.parametrize("value", ["1" + "0" * 5000, "1e400", "-1", '"text"', "null"])
def test_times_that_are_none(desk: Any, value: str) -> None:
    desk.write("profile.json", f'[{{"count": 10}}, {{"name": "conv1", "averageMs": {value}}}]')
    says = ["QD-USAGE-ENGINE-FILE-DAMAGED", "profile.json"]
    desk.refused("inspect", "profile.json", says=says)


def test_a_plan_in_place_of_a_configuration(desk: Any) -> None:
    assert desk.compare("--save-plan", "plan.yaml").code == 0
    says = ["QD-USAGE-CONFIG-FILE", "plan.yaml:1", "--plan"]
    desk.refused("compare", "--config", "plan.yaml", says=says)


def test_more_samples_are_to_be_kept_than_there_are(desk: Any) -> None:
    assert desk.compare("--keep", "worst:100000000", "-o", "run.h5").code == 0
    assert Path("run.h5").stat().st_size < 4 << 20


def test_an_input_without_a_shape(desk: Any, cnn: Any) -> None:
    proto = cnn()
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    desk.save(proto, "shapeless.onnx")
    says = ["QD-SAMPLES-SHAPE", "'x'", "declares no axes"]
    desk.refused("compare", "shapeless.onnx", "--inputs", "data.npz", says=says)


def test_samples_of_another_type_than_bfloat16(desk: Any, make: Any) -> None:
    node = onnx.helper.make_node
    nodes = [node("Cast", ["x"], ["c"], "cast", to=1), node("MatMul", ["c", "w"], ["y"], "m")]
    proto = make(nodes, {"x": (1, 4)}, {"y": (1, 4)}, {"w": np.eye(4, dtype=np.float32)})
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    desk.save(proto, "bf16.onnx")
    desk.data("four.npz", x=np.ones((2, 4), np.float32))
    says = ["QD-SAMPLES-DTYPE", ".astype(ml_dtypes.bfloat16)"]
    desk.refused("compare", "bf16.onnx", "--inputs", "four.npz", says=says)
    np.save("four.npy", np.ones((2, 4), np.float32).astype(ml_dtypes.bfloat16))
    for backend in ("simulation", "onnxruntime"):
        flags = "--inputs", "four.npy", "--backend", backend
        assert desk.run("compare", "bf16.onnx", *flags).code == 0


@pytest.fixture
def sequence(desk: Any, make: Any) -> str:
    """A model whose only output is a sequence."""
    node = onnx.helper.make_node
    nodes = [node("MatMul", ["x", "w"], ["y"], "m"), node("SequenceConstruct", ["y"], ["s"], "s")]
    proto = make(nodes, {"x": (1, 4)}, {"s": (1, 4)}, {"w": np.eye(4, dtype=np.float32)})
    output = onnx.helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    proto.graph.output[0].CopyFrom(output)
    desk.save(proto, "sequence.onnx")
    desk.data("four.npz", x=np.ones((8, 4), np.float32), labels=np.arange(8))
    return "sequence.onnx"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("compare {} --inputs four.npz --metric top1", "QD-METRIC-OUTPUT"),
        ("calibrate {} --calib-data four.npz --metric top1", "QD-METRIC-OUTPUT"),
        ("bisect {} --inputs four.npz --metric top1 --max-drop 0", "QD-METRIC-OUTPUT"),
        ("bisect {} --inputs four.npz --target output.cosine>=1", "QD-USAGE-NOTHING-TO-JUDGE"),
        ("repair {} --calib-data four.npz --metric top1", "QD-METRIC-OUTPUT"),
        ("repair {} --calib-data four.npz", "QD-USAGE-NOTHING-TO-JUDGE"),
        ("sweep {} --inputs four.npz --backend onnxruntime", "QD-USAGE-NOTHING-TO-JUDGE"),
    ],
)
def test_what_needs_an_output_that_is_an_array(
    desk: Any, sequence: str, words: str, code: str
) -> None:
    desk.refused(*words.format(sequence).split(), says=[code, sequence])


@pytest.mark.parametrize(
    "words",
    ["compare {} --inputs four.npz --backend onnxruntime", "calibrate {} --calib-data four.npz"],
)
def test_the_tensors_of_a_model_without_such_an_output(
    desk: Any, sequence: str, words: str
) -> None:
    done = desk.run(*words.format(sequence).split())
    assert done.code == 0 and "Best:" not in done.out


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "1" + ":0" * 3000, "9" * 400])
def test_a_number_that_is_no_number_of_a_plan(desk: Any, number: str) -> None:
    desk.write("large.yaml", f"schema: qdebug.plan/1\ntensors:\n  x: {{amax: {number}}}\n")
    desk.refused(*BASE, "--plan", "large.yaml", says=["QD-PLAN-FILE", "large.yaml:3"])


@pytest.mark.parametrize("command", ["ranges", "repair", "export"])
def test_a_configuration_of_another_command(desk: Any, command: str) -> None:
    desk.write("other.yaml", f"command: {command}\n")
    says = ["QD-USAGE-CONFIG-FILE", f"qdebug {command} --config"]
    desk.refused("compare", "--config", "other.yaml", says=says)


def test_values_near_the_largest_of_float32(desk: Any, pictures: Any) -> None:
    """Their squares are beyond it: that is no warning about qdebug's own arithmetic."""
    desk.data("huge.npz", x=pictures(3) * np.float32(1e30))
    done = desk.run("compare", "net.onnx", "--inputs", "huge.npz", "-v")
    assert done.code == 0 and "RuntimeWarning" not in done.err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 4 TiB"),
        ImportError("h5ac.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_too_little_memory(desk: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("qdebug.commands.compare.command.load_model", exhausted)
    done = desk.compare()
    assert done.code == 3 and "QD-BACKEND-HOST-MEMORY" in done.err and "defect" not in done.err


IMPORTED_LATE = ("json", "struct", "multiprocessing", "tensorrt_rtx", "openvino", "dask", "tornado")


@pytest.fixture
def traps(desk: Any) -> Path:
    """A module of every such name in the folder of the desk; the file that is there once one of
    them was executed."""
    for name in IMPORTED_LATE:
        desk.write(f"{name}.py", "from pathlib import Path\nPath('executed').touch()\n")
    return desk.folder / "executed"


def _program(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The installed program; with -m, Python itself has the current folder on its path."""
    return subprocess.run(
        [Path(sys.executable).with_name("qdebug"), *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(qdebug.__file__).parents[1])},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "arguments", [("doctor",), (*BASE, "--cluster", "local:1", "--no-progress")]
)
def test_processes_take_no_file_of_the_folder_for_a_module(
    desk: Any, traps: Path, arguments: tuple[str, ...]
) -> None:
    if "--cluster" in arguments:
        pytest.importorskip("distributed")
    done = _program(desk.folder, *arguments)
    assert done.returncode == 0, done.stderr
    assert not traps.exists()


def test_a_module_beside_a_metric_is_not_taken_for_a_library(desk: Any, traps: Path) -> None:
    pytest.importorskip("openvino")
    desk.write("metric.py", "import helper\ndef metric(labels, outputs):\n    return helper.V\n")
    desk.write("helper.py", "V = 0.5\n")
    flags = ("--metric", "metric.py:metric", "--backend", "openvino", "--json", "-")
    done = _program(desk.folder, *BASE, *flags)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metric"]["reference"] == 0.5
    assert not traps.exists()
