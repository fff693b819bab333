"""The conditions of a comparison as JUnit's XML, which CI systems show beside other tests."""

from __future__ import annotations

from xml.etree import ElementTree

from qdebug.display.blocks import found_by
from qdebug.results.compare import CompareResult
from qdebug.results.conditions import Checked
from qdebug.wording import printable


def junit_xml(result: CompareResult) -> str:
    """A test suite with a test for each condition, and an error for each stage that failed."""
    name = printable(result.model.name)
    cases: list[tuple[str, str, dict[str, str]]] = [
        (c.expression, "" if c.passed else "failure", {"message": f"found {_found(c)}"})
        for c in result.conditions
    ] or [("no condition was given", "skipped", {})]
    cases += [(f.stage, "error", {"message": str(f), "type": f.code}) for f in result.failed]
    suite = ElementTree.Element("testsuite", name=f"qdebug {name}")
    for case, outcome, about in cases:
        test = ElementTree.SubElement(
            suite, "testcase", classname=f"qdebug.{name}", name=printable(case)
        )
        if outcome:
            about = {key: printable(text) for key, text in about.items()}
            ElementTree.SubElement(test, outcome, about)
    suite.set("tests", str(len(cases)))
    for key, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(sum(found == outcome for _, found, _ in cases)))
    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _found(condition: Checked) -> str:
    return condition.reason or found_by(condition)
