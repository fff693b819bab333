"""`script.py:function`."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from qdebug.errors import SampleError
from qdebug.network.samples import open_samples


@pytest.fixture
def script(tmp_path):
    def write(body: str) -> str:
        path = tmp_path / "feeds.py"
        path.write_text("import numpy as np\ncalls = []\n" + textwrap.dedent(body))
        return str(path)

    return write


@pytest.fixture
def x(make_spec):
    return [make_spec("x", None, 3)]


def test_a_list_is_asked_for_once(script, x) -> None:
    path = script("""
        def data():
            calls.append(1)
            assert len(calls) == 1
            return [{"x": np.full((1, 3), i, np.float32), "label": i} for i in range(5)]
    """)
    samples = open_samples(f"{path}:data", x)
    for _ in range(2):
        assert [samples.feeds(i, 1)["x"][0, 0] for i in range(5)] == [0, 1, 2, 3, 4]
    assert samples.extras["label"].tolist() == [0, 1, 2, 3, 4]


def test_a_generator_is_called_once_per_pass(script, x) -> None:
    path = script("""
        from pathlib import Path
        def data():
            with Path(__file__).with_suffix(".log").open("a") as log:
                log.write("call\\n")
            for i in range(6):
                yield {"x": np.full((1, 3), i, np.float32)}
    """)
    samples = open_samples(f"{path}:data", x)
    for _ in range(2):
        for order in (1, 0, 3, 2, 5, 4):  # as two threads would ask
            assert samples.feeds(order, 1)["x"][0, 0] == order
    log = Path(path).with_suffix(".log").read_text()
    assert len(log.splitlines()) <= 5


def test_an_iterable_object_is_kept_and_iterated_again(script, x) -> None:
    path = script("""
        class Loader:
            def __iter__(self):
                return ({"x": np.full((2, 3), i, np.float32)} for i in range(3))
        load_data = Loader
    """)
    samples = open_samples(path, x)
    assert samples.count == 6
    assert [samples.feeds(2 * i, 2)["x"][0, 0] for i in (2, 0, 1)] == [2, 0, 1]


def test_an_endless_generator_is_cut_by_samples(script, x) -> None:
    path = script("""
        def load_data():
            while True:
                yield {"x": np.ones(3, np.float32)}
    """)
    assert open_samples(path, x, limit=7).count == 7


def test_imports_beside_the_script(script, tmp_path, x) -> None:
    (tmp_path / "helper_of_feeds.py").write_text("WIDTH = 3\n")
    path = script("""
        def load_data():
            from helper_of_feeds import WIDTH
            return [{"x": np.ones((1, WIDTH), np.float32)}]
    """)
    assert open_samples(path, x).count == 1


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("def load_data(:\n", ["SyntaxError", "In feeds.py, line 3"]),
        ("import no_such_module\n", ["ModuleNotFoundError", "no_such_module", "line 3"]),
        ("def other(): pass\n", ["no function 'load_data'"]),
        ("load_data = 3\n", ["no function 'load_data'"]),
        ("def load_data(): return 1 / 0\n", ["load_data failed: ZeroDivisionError", "line 3"]),
        ("def load_data(path): pass\n", ["load_data failed: TypeError", "path"]),
        ("def load_data(): return None\n", ["load_data failed: TypeError"]),
        ("def load_data(): return []\n", ["holds no samples"]),
        ("def load_data(): yield None\n", ["item 0 is of type NoneType, not a dict"]),
        ("def load_data(): return [np.ones(3)]\n", ["item 0 is of type ndarray, not a dict"]),
        ("def load_data(): return [{'x': object()}]\n", ["'x' is of type object, not a numeric"]),
        ("def load_data(): return [{'x': [[1], [2, 3]]}]\n", ["item 0: 'x' failed: ValueError"]),
    ],
)
def test_errors_in_the_script(script, x, body, parts) -> None:
    path = script(body)
    with pytest.raises(SampleError) as error:
        open_samples(path, x)
    for part in ["feeds.py", *parts]:
        assert part in str(error.value)
    assert error.value.hint


def test_an_error_in_the_middle(script, x) -> None:
    path = script("""
        def load_data():
            yield {"x": np.ones((1, 3), np.float32)}
            raise RuntimeError("first line\\nlast line")
    """)
    with refused("QD-SAMPLES-FEEDS"):
        open_samples(path, x)


def test_fewer_feeds_on_the_next_pass(script, x) -> None:
    path = script("""
        def load_data():
            calls.append(1)
            for i in range(5 - len(calls)):
                yield {"x": np.full((1, 3), i, np.float32)}
    """)
    samples = open_samples(path, x)
    assert samples.count == 4
    samples.feeds(0, 1)
    with refused("QD-SAMPLES-CHANGED"):
        samples.feeds(3, 1)


def test_importing_the_package_is_cheap() -> None:
    import subprocess
    import sys

    code = (
        "import sys, qdebug.network.samples\n"
        "print([m for m in ('h5py', 'onnx', 'polygraphy', 'google') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_feeds_are_copies_of_the_users_list(script, x) -> None:
    path = script("""
        KEPT = [{"x": np.ones((1, 3), np.float32)}]
        def load_data():
            return KEPT
    """)
    samples = open_samples(path, x)
    samples.feeds(0, 1)["x"][:] = 9
    np.testing.assert_array_equal(samples.feeds(0, 1)["x"], np.ones((1, 3)))
