"""The conditions of a comparison as JUnit's XML, which CI systems show beside other tests."""

from __future__ import annotations

from xml.etree import ElementTree

from qdebug.display.blocks import found_by
from qdebug.results.compare import CompareResult
from qdebug.wording import printable


def junit_xml(result: CompareResult) -> str:
    """A test suite with a test for each condition, and an error for each stage that failed."""
    suite = ElementTree.Element("testsuite", name=f"qdebug {printable(result.model.name)}")
    failures = 0
    for condition in result.conditions:
        case = _case(suite, result, condition.expression)
        if not condition.passed:
            failures += 1
            found = condition.reason or found_by(condition)
            ElementTree.SubElement(case, "failure", message=printable(f"found {found}"))
    if not result.conditions:
        ElementTree.SubElement(_case(suite, result, "no condition was given"), "skipped")
    for failed in result.failed:
        case = _case(suite, result, failed.stage)
        ElementTree.SubElement(case, "error", message=printable(str(failed)), type=failed.code)
    suite.set("tests", str(max(1, len(result.conditions)) + len(result.failed)))
    suite.set("failures", str(failures))
    suite.set("errors", str(len(result.failed)))
    suite.set("skipped", str(int(not result.conditions)))
    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _case(suite: ElementTree.Element, result: CompareResult, name: str) -> ElementTree.Element:
    group = f"qdebug.{printable(result.model.name)}"
    return ElementTree.SubElement(suite, "testcase", classname=group, name=printable(name))
