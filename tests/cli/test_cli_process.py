"""What only a process of its own can show: signals, full disks, pipes, imports, real exit codes."""

from __future__ import annotations

import ast
import os
import resource
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from patience import PATIENCE_S

from qdebug import memo

QDEBUG = [sys.executable, "-m", "qdebug"]
COMPARE = [*QDEBUG, "compare", "net.onnx", "--inputs", "data.npz"]


def limited(file_bytes: int) -> Callable[[], None]:
    """For a child: no file may grow beyond `file_bytes`, as on a disk that is full."""
    return partial(resource.setrlimit, resource.RLIMIT_FSIZE, (file_bytes, file_bytes))


def test_exit_codes_and_streams(desk: Any) -> None:
    held = desk.spawn("compare", "net.onnx", "--inputs", "data.npz", "-o", "run.h5", fresh=True)
    assert (held.code, held.err) == (0, "")
    assert "Run file: run.h5" in held.out.splitlines()
    gate = ("compare", "net.onnx", "--inputs", "data.npz", "--fail-on", "output.sqnr_db>=200")
    failed = desk.spawn(*gate, fresh=True)
    assert (failed.code, failed.err) == (1, "")
    assert any(line.startswith("FAILED") for line in failed.out.splitlines()[-3:])
    desk.refused(
        "compare",
        "no.onnx",
        "--inputs",
        "data.npz",
        says=["QD-MODEL-NOT-FOUND", "no.onnx"],
        spawn=True,
    )
    desk.refused(*gate, "--precision", "foo", says=["QD-USAGE-CHOICE", "--precision"], spawn=True)


def test_traceback_only_with_vv(desk: Any) -> None:
    missing = ("compare", "no.onnx", "--inputs", "data.npz")
    shown = [desk.run(*missing, *flags) for flags in (["-v", "-v"], ["--verbose", "--verbose"])]
    for done in (desk.spawn(*missing, "-vv"), *shown):
        assert done.code == 2 and "Traceback" in done.err
    assert "Traceback" not in desk.run(*missing, "-v").err


@pytest.mark.parametrize(
    ("existing", "how", "code"),
    [(False, signal.SIGINT, 130), (True, signal.SIGTERM, 143), (True, signal.SIGHUP, 129)],
)
def test_ctrl_c(desk: Any, existing: bool, how: signal.Signals, code: int) -> None:
    desk.data("long.npz", x=np.random.default_rng(0).normal(size=(60_000, 3, 8, 8)).astype("f4"))
    if existing:
        desk.write("run.h5", "precious")
        desk.write("plan.yaml", "precious")
    before = desk.files()
    command = ["compare", "net.onnx", "--inputs", "long.npz", "-o", "run.h5", "--force"]
    command += ["--save-plan", "plan.yaml", "--json", "out.json", "--batch-size", "1"]
    command += ["--calib-data", "calib.npz"]
    deadline = time.monotonic() + PATIENCE_S
    with desk.started(*command) as running:
        while not list(Path().glob(".run.h5.partial")):
            assert running.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.5)
        running.send_signal(how)
        out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == code, err
    assert out == "" and "Traceback" not in err
    saved, last = err.strip().splitlines()
    assert "progress is saved" in saved
    assert last == "qdebug: interrupted; nothing half-written was left behind"
    assert desk.files() == before


@pytest.mark.parametrize("as_script", [False, True])
def test_ctrl_c_while_the_program_is_imported(desk: Any, repository: Path, as_script: bool) -> None:
    command = [*QDEBUG, "--version"]
    if as_script:
        project = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))["project"]
        module, function = project["scripts"]["qdebug"].split(":")
        code = f"import sys; from {module} import {function}; sys.exit({function}())"
        command = [sys.executable, "-c", code, "--version"]
    whole = subprocess.run(command, capture_output=True, text=True, check=True)
    assert whole.stdout.startswith("qdebug ")
    # Stands for the library of that name.
    desk.write("cyclopts.py", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "qdebug: interrupted\n")


@pytest.mark.parametrize("error", ["ImportError('half an import')", "OSError(5, 'x')"])
def test_an_interruption_that_foreign_code_makes_another_error_of(desk: Any, error: str) -> None:
    """As extensions do whose import it meets, and HDF5 when it closes a file."""
    lines = ["import os, signal", "def load():", "    try:"]
    lines += ["        os.kill(os.getpid(), signal.SIGINT)", "    except KeyboardInterrupt:"]
    lines += [f"        raise {error} from None", "    yield {}"]
    desk.write("mine.py", "\n".join(lines))
    done = desk.spawn("compare", "net.onnx", "--inputs", "mine.py:load")
    assert done.code == 130
    assert done.err == "qdebug: interrupted; nothing half-written was left behind\n"


def test_an_interruption_leaves_no_temporary_weights(desk: Any, tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(600, 600)).astype(np.float32)
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "g",
        [value("x", onnx.TensorProto.FLOAT, ["N", 600])],
        [value("y", onnx.TensorProto.FLOAT, ["N", 600])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), "wide.onnx")
    desk.data("wide.npz", x=weight[:4], labels=np.zeros(4, np.int64))
    place = tmp_path / "temporary"
    place.mkdir()
    lines = ["import os, signal", "from pathlib import Path", "def stop(outputs, labels):"]
    lines += [f"    Path('seen').write_text(str(os.listdir({str(place)!r})))"]
    lines += ["    os.kill(os.getpid(), signal.SIGTERM)", "    return 1.0"]
    desk.write("metric.py", "\n".join(lines))
    command = ("compare", "wide.onnx", "--inputs", "wide.npz", "--metric", "metric.py:stop")
    done = desk.spawn(*command, env=os.environ | {"TMPDIR": str(place)})
    assert done.code == 143, done.err
    assert "qdebug-weights" in Path("seen").read_text() and not list(place.iterdir())


@pytest.mark.parametrize(
    ("flags", "target", "limit", "existing"),
    [
        (["-o", "run.h5", "--keep", "all"], "run.h5", 20_000, False),
        (["-o", "run.h5", "--keep", "all"], "run.h5", 20_000, True),
        (["--json", "out.json"], "out.json", 500, False),
        (["--save-plan", "plan.yaml"], "plan.yaml", 100, True),
    ],
)
def test_full_disk(desk: Any, flags: list[str], target: str, limit: int, existing: bool) -> None:
    if existing:
        desk.write(target, "precious")
    before = desk.files()
    command = ("compare", "net.onnx", "--inputs", "data.npz", *flags, "--force")
    done = desk.spawn(*command, preexec_fn=limited(limit))
    assert done.code == 2, done
    assert target in done.err and "Traceback" not in done.err
    assert desk.files() == before


def test_full_disk_while_exporting(desk: Any) -> None:
    assert desk.compare("--save-plan", "plan.yaml").code == 0
    command = ("export", "plan.yaml", "-o", "int8.onnx")
    before = desk.files()
    done = desk.spawn(*command, preexec_fn=limited(500))
    assert done.code == 2 and "int8.onnx" in done.err and "Traceback" not in done.err
    assert desk.files() == before


def test_times_of_layers_that_cannot_be_written_down(desk: Any) -> None:
    """ONNX Runtime's profile ends in the middle then."""
    command = ("compare", "net.onnx", "--inputs", "data.npz", "--backend", "onnxruntime")
    done = desk.spawn(*command, preexec_fn=limited(10 << 10))
    assert done.code == 2 and "[QD-STORE-TEMPORARY]" in done.err


def test_a_page_without_a_run_file_that_finds_no_room(desk: Any) -> None:
    """Nobody asked for the temporary run file that it is made from."""
    command = ("compare", "net.onnx", "--inputs", "data.npz", "--html", "page.html", "--no-cache")
    done = desk.spawn(*command, preexec_fn=limited(8 << 10))
    assert done.code == 2 and "[QD-STORE-TEMPORARY]" in done.err and "--keep" not in done.err


def test_standard_output_on_a_full_disk(desk: Any) -> None:
    for flags in ([], ["--json", "-"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [*COMPARE, *flags], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert done.returncode == 2
        assert done.stderr.startswith("qdebug: error: the standard output cannot be written")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["compare", "--help"]])
def test_help_on_a_full_disk(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "qdebug", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("[QD-STORE-OUTPUT]\n") and len(done.stderr.splitlines()) == 1


def test_an_error_that_nobody_can_be_told_of_has_its_exit_code(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "qdebug", "inspect", str(tmp_path / "none.onnx")]
        done = subprocess.run(command, stderr=full, check=False)
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("flags", "gate", "code"),
    [(["--json", "-"], "output.sqnr_db>=1", 0), ([], "output.sqnr_db>=200", 1)],
)
def test_reader_that_goes_away_keeps_the_verdict(
    desk: Any, flags: list[str], gate: str, code: int
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMPARE, "--fail-on", gate, *flags], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (code, b"")


def test_json_into_a_device(desk: Any) -> None:
    done = desk.spawn("compare", "net.onnx", "--inputs", "data.npz", "--json", "/dev/stderr")
    assert done.code == 0
    assert '"schema": "qdebug.compare/1"' in done.err


def test_names_that_the_locale_cannot_show(desk: Any, cnn: Any) -> None:
    desk.save(cnn(names={"conv1": "畳み込み"}))
    done = desk.spawn(
        *("compare", "net.onnx", "--inputs", "data.npz"),
        fresh=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert (done.code, done.err) == (0, "")
    assert r"\u7573" in done.out


def test_a_working_directory_that_was_deleted(desk: Any, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()

    def leave() -> None:
        os.chdir(gone)
        gone.rmdir()

    done = desk.spawn("doctor", fresh=True, preexec_fn=leave)
    assert done.code == 2 and "QD-USAGE-DIRECTORY" in done.err


def test_onnx_runtime_reports_to_nobody(desk: Any, tmp_path: Path) -> None:
    """Where it does, it keeps what it will send in the user's cache folder."""
    code = "import onnxruntime"
    homes = {}
    for first in ("", "import qdebug; "):
        home = tmp_path / f"home{len(homes)}"
        home.mkdir()
        env = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
        env |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        subprocess.run([sys.executable, "-c", first + code], env=env, check=True)
        homes[first] = sorted(p.name for p in home.rglob("*"))
    assert homes["import qdebug; "] == [], homes


@pytest.mark.parametrize("limit", [1 << k for k in range(11, 21, 3)])
def test_files_that_may_not_grow(desk: Any, tmp_path: Path, limit: int) -> None:
    """No file, of the cache neither, may be larger: one message, or a result without a crash."""
    cache = tmp_path / "cache"
    env = os.environ | {"QDEBUG_CACHE_DIR": str(cache)}
    command = ("compare", "net.onnx", "--inputs", "data.npz", "--keep", "all", "-o", "run.h5")
    done = desk.spawn(*command, env=env, preexec_fn=limited(limit))
    assert done.code in (0, 2), done
    if done.code:
        assert "QD-STORE-FILE-LIMIT" in done.err and done.err.count("\n") == 2, done.err
        assert not Path("run.h5").exists()
    assert not list(Path().glob(".*.partial")) and not list(cache.rglob(".*"))


def test_plain_text_in_a_pipe(desk: Any) -> None:
    done = desk.spawn("compare", "net.onnx", "--inputs", "data.npz", "--fail-on", "output.cosine>2")
    assert "\x1b" not in done.out
    assert all(line == line.rstrip() for line in done.out.splitlines())


def test_help_imports_no_numeric_package() -> None:
    code = (
        "import sys\nfrom qdebug.cli.app import main\n"
        "for line in sys.argv[1:]:\n    assert main(line.split()) == 0\n"
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'h5py', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    lines = ("--help", "compare --help", "export --help", "--version")
    done = subprocess.run([sys.executable, "-c", code, *lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_pulls_in_nothing() -> None:
    code = "import sys, qdebug\nassert not {'numpy', 'onnxruntime', 'cyclopts'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_texts() -> None:
    top = subprocess.run([*QDEBUG, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(command in top for command in ("compare", "export", "doctor"))
    compare = subprocess.run(
        [*QDEBUG, "compare", "--help-all"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "100"},
    ).stdout
    for flag in ("--inputs", "--precision", "--plan", "--memory-budget", "--fail-on", "--metric"):
        assert flag in compare
    bare = subprocess.run(QDEBUG, capture_output=True, text=True, check=False)
    assert bare.returncode == 2 and "compare" in bare.stdout + bare.stderr


def test_a_file_whose_name_is_no_text(desk: Any) -> None:
    name = os.fsdecode(b"\xff")
    Path(f"{name}.onnx").write_bytes(Path("net.onnx").read_bytes())
    done = desk.run("compare", f"{name}.onnx", "--inputs", "data.npz", "-o", "a.h5")
    assert done.code == 0
    assert desk.run("report", "a.h5", "-o", "page.html").code == 0
    assert desk.compare("--save-plan", "plan.yaml").code == 0
    for kind in ("trtexec", "polygraphy", "python", "ort"):
        script = f"{name}.{kind}"
        done = desk.run("export", "plan.yaml", "--to", kind, "-o", script)
        assert done.code == 0, done
        if kind == "trtexec":
            assert b"\xff" in Path(script).read_bytes()
        else:
            ast.parse(Path(script).read_text(encoding="utf-8"))


def test_an_optimized_network_that_cannot_be_written(desk: Any) -> None:
    """By ONNX Runtime, which says that it cannot serialize it."""
    command = ("sweep", "net.onnx", "--inputs", "data.npz", "--backend", "onnxruntime")
    done = desk.spawn(*command, "--no-cache", preexec_fn=limited(1 << 10))
    assert done.code == 3 and "Protobuf serialization failed" in done.err, done


def test_an_import_that_fails_after_a_signal_is_no_defect(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the first one dropped the interruption, an extension is half-loaded."""

    def fail(*_: object, **__: object) -> None:
        monkeypatch.setattr("qdebug.cli.process._received", [signal.SIGTERM])
        raise ImportError("the type is already registered")

    monkeypatch.setattr("qdebug.commands.compare.command.load_model", fail)
    done = desk.compare()
    assert done.code == 143 and done.err.startswith("qdebug: interrupted")


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "net.onnx", "--inputs", "data.npz"),
        ("calibrate", "net.onnx", "--calib-data", "calib.npz"),
        ("bisect", "net.onnx", "--inputs", "calib.npz", "--target", "output.sqnr_db>=20"),
    ],
)
def test_a_user_without_a_home(
    desk: Any, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """As in a container that runs under a number alone: one note, and nothing is kept."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME", "QDEBUG_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    memo._nowhere.cache_clear()
    done = desk.run(*arguments, "--no-progress")
    assert done.code == 0, done.err
    assert done.err.count("QDEBUG_CACHE_DIR") == 1, done.err


NOISY = """
import os, subprocess, sys
print("loaded")
def noisy(labels, outputs):
    print("printed")
    sys.stdout.buffer.write(b"bytes\\n")
    sys.stdout.flush()
    os.write(1, b"past Python's stdout\\n")
    return 0.5
def closing(labels, outputs):
    sys.stdout.close()
    return 0.5
def huge(labels, outputs):
    return 10**400
def aborting(labels, outputs):
    os.write(2, b"last words\\n")
    os.abort()
"""


def test_what_a_metric_prints_is_apart_from_the_result(desk: Any) -> None:
    desk.write("metric.py", NOISY)
    command = ("compare", "net.onnx", "--inputs", "data.npz", "--json", "-", "--metric")
    done = desk.spawn(*command, "metric.py:noisy")
    assert (done.code, done.json["metric"]["reference"]) == (0, 0.5)
    for text in (
        "loaded",
        "printed",
        "bytes",
        "past Python's stdout",
    ):
        assert text in done.err.splitlines()
    done = desk.spawn(*command, "metric.py:closing")
    assert (done.code, done.json["metric"]["reference"]) == (0, 0.5)
    done = desk.spawn(*command, "metric.py:huge")
    assert done.code == 2 and done.json["failed"][0]["code"] == "QD-METRIC-VALUE"
    assert "metric.py:huge" in done.err
    done = desk.spawn(*command, "metric.py:aborting")
    assert done.code == -signal.SIGABRT and "last words" in done.err


@pytest.mark.parametrize("spawn", [False, True])
def test_results_printed_in_process_stay_apart_too(desk: Any, spawn: bool) -> None:
    desk.write("metric.py", NOISY)
    command = ("compare", "net.onnx", "--inputs", "data.npz", "--metric", "metric.py:closing")
    done = desk.spawn(*command) if spawn else desk.run(*command)
    assert done.code == 0 and "loaded" not in done.out and "fc" in done.out


def test_logs_of_libraries_move_no_cursor(desk: Any, make: Callable[..., Any]) -> None:
    """ONNX Runtime's own, where constants that are folded do not fit together."""
    node = onnx.helper.make_node
    nodes = [
        node("Reshape", ["six", "twenty"], ["reshaped"], "evil\x1b]0;title\x07"),
        node("ReduceSum", ["reshaped"], ["sum"], "sum", keepdims=0),
        node("MatMul", ["x", "w"], ["product"], "matmul"),
        node("Add", ["product", "sum"], ["out"], "add"),
    ]
    weights = {"six": np.ones((2, 3), "f4"), "twenty": np.array([4, 5]), "w": np.eye(4, dtype="f4")}
    desk.save(make(nodes, {"x": ("N", 4)}, {"out": ("N", 4)}, weights), "evil.onnx")
    desk.data("four.npz", x=np.ones((2, 4), "f4"))
    for command in (("inspect", "evil.onnx"), ("compare", "evil.onnx", "--inputs", "four.npz")):
        done = desk.spawn(*command)
        assert "[E:onnxruntime" not in done.err
        assert not set(done.out + done.err) & set("\x1b\x07\r")
