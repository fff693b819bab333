"""Rewrite the tables of the documentation that follow from the sources.

    .venv/bin/python scripts/update_tables.py           # rewrite them
    .venv/bin/python scripts/update_tables.py --check   # exit 1 where one is not current

A table stands between ``<!-- table: NAME -->`` and ``<!-- /table -->``; TABLES says who writes it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from qdebug.backends.registry import CAPABILITIES, built_in  # noqa: E402
from qdebug.calibrators.registry import CALIBRATORS  # noqa: E402
from qdebug.metrics.tasks.registry import BUILT_IN, DECODERS  # noqa: E402
from qdebug.metrics.tensor import LAYER_METRICS, METRICS, Metric  # noqa: E402
from qdebug.network.dataformats import FORMATS  # noqa: E402

PACKAGE = REPOSITORY / "qdebug"
REGION = re.compile(
    r"(?P<head><!-- table: (?P<name>[\w-]+) -->\n).*?(?P<tail><!-- /table -->)", re.DOTALL
)
_UNITS = {"": "the tensor's", "share": "share, 0 to 1", "index": "–"}


def calibrators() -> str:
    """The calibrators, as users write them."""
    rows = ((f"`{m.usage}`", m.summary, m.strength, m.weakness) for m in CALIBRATORS)
    return table(("Method", "The range ends at", "Good", "Bad"), rows)


def data_formats() -> str:
    """What samples are given in."""
    return table(("DATA", "Holds"), ((f"`{f.phrase}`", f.holds) for f in FORMATS))


def tensor_metrics() -> str:
    """The metrics of every compared tensor."""
    return _metrics(METRICS)


def layer_metrics() -> str:
    """What a layer has beside them."""
    return _metrics([m for m in LAYER_METRICS if m not in METRICS])


def task_metrics() -> str:
    """The end-to-end metrics that have a name."""
    rows = (
        (
            f"`{m.usage}`",
            m.meaning,
            "higher" if m.higher_is_better else "lower",
            "yes" if m.needs_labels else "no",
            "yes" if m.loss else "no",
        )
        for m in BUILT_IN
    )
    return table(("Metric", "Value", "Better", "Needs labels", "Per-sample loss"), rows)


def decoders() -> str:
    """How outputs of detectors and recognizers are read."""
    rows = ((f"`{d.name}`", d.reads) for d in DECODERS)
    return table(("Decoder", "Reads"), rows)


def packages() -> str:
    """The packages in reading order, and what each imports of the others. The small modules that
    stand before all of them share the first line."""
    imports = imported_packages()
    placed = [name for name in stages() if name in imports]
    if missing := set(imports) - set(placed):
        raise SystemExit(f"no stage in tests/test_architecture.py: {', '.join(missing)}")
    shared = placed[: placed.index("network")]
    width = max(map(len, placed))
    lines = textwrap.wrap(", ".join(shared), width=98)
    for name in placed[len(shared) :]:
        needed = [n for n in placed if n in imports[name] and n not in shared]
        lines += textwrap.wrap(
            f"{name:{width}}  <-  {', '.join(needed)}" if needed else name,
            width=98,
            subsequent_indent=" " * (width + 6),
        )
    return "\n".join(["```text", *lines, "```"])


def stages() -> list[str]:
    """The packages in reading order, as tests/test_architecture.py holds them to."""
    tests = ast.parse((REPOSITORY / "tests" / "test_architecture.py").read_text(encoding="utf-8"))
    for node in tests.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "STAGES":
            return [name for names in ast.literal_eval(node.value) for name in names]
    raise SystemExit("tests/test_architecture.py has no STAGES")


def imported_packages() -> dict[str, set[str]]:
    """Which packages of qdebug, or modules at its top, each of them imports."""
    found: dict[str, set[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        own = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own.startswith("__"):
            continue
        needed = found.setdefault(own, set())
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "qdebug":
                modules = [f"qdebug.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            parts = [module.split(".") for module in modules]
            needed |= {p[1] for p in parts if p[0] == "qdebug" and len(p) > 1}
        needed -= {own, "__version__"}
    return found


def backends() -> str:
    """What each backend can do."""
    heads = ("`--backend`", "What it is", *CAPABILITIES, "Precisions", "Get it by")
    rows = (
        (
            f"`{spec.name}`",
            spec.help,
            *("yes" if spec.can(capability) else "–" for capability in CAPABILITIES),
            ", ".join(spec.precisions),
            spec.install,
        )
        for spec in built_in()
    )
    return table(heads, rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "calibrators": calibrators,
    "data-formats": data_formats,
    "tensor-metrics": tensor_metrics,
    "layer-metrics": layer_metrics,
    "task-metrics": task_metrics,
    "decoders": decoders,
    "packages": packages,
    "backends": backends,
}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        f"| {' | '.join(c.replace('|', chr(92) + '|') for c in row)} |" for row in lines
    )


def updated(text: str) -> str:
    """A page with its tables as they should be.

    Raises:
        SystemExit: a table that nothing writes.
    """

    def write(found: re.Match[str]) -> str:
        if found["name"] not in TABLES:
            raise SystemExit(f"there is no table '{found['name']}'; known: {', '.join(TABLES)}")
        return f"{found['head']}\n{TABLES[found['name']]()}\n\n{found['tail']}"

    return REGION.sub(write, text)


def pages() -> list[Path]:
    """Every page that may hold a table."""
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def _metrics(metrics: Sequence[Metric]) -> str:
    rows = (
        (
            f"`{m.name}`",
            m.meaning,
            f"`{m.formula}`",
            _UNITS.get(m.unit, m.unit),
            m.better or "–",
            "yes" if m.can_be_gated else "no",
        )
        for m in metrics
    )
    return table(("Name", "Meaning", "Formula", "Unit", "Better", "In conditions"), rows)


def main() -> int:
    """Rewrite or check all pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if one is old")
    check = parser.parse_args().check
    changed = False
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = updated(before)
        if before != after:
            changed = True
            print(f"{'out of date' if check else 'updated'}: {page.relative_to(REPOSITORY)}")
            if not check:
                page.write_text(after, encoding="utf-8")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
