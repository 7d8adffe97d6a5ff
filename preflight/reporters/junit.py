"""JUnit XML, which Jenkins, GitLab and most report actions of GitHub show as test results.

There is no single schema. The output is valid against the one of Jenkins' xUnit plugin, which matches what Ant wrote
and what other tools read: no additional attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree import ElementTree

from preflight.engine.report import Report
from preflight.reporters.base import Style
from preflight.reporters.cases import RUN, Case, began, cases_of, durations_of, suites_of

_ELEMENTS = {"failed": "failure", "error": "error", "skipped": "skipped"}
#: Characters that XML forbids and `clean` keeps: code points that are not assigned.
_ILLEGAL = re.compile("[\ufffe\uffff]")


class JunitReporter:
    """Renders one suite per stage and one case per finding, undecided check or pass."""

    name = "junit"

    def render(self, report: Report, style: Style) -> bytes:
        """Render the document in UTF-8; `style` is ignored."""
        cases, durations, when = cases_of(report), durations_of(report), began(report)
        root = ElementTree.Element("testsuites", {"name": "preflight", **_counts(cases)})
        for number, (name, members) in enumerate(suites_of(cases).items()):
            attributes = {
                "name": name if name == RUN else f"preflight {name}",
                **_counts(members),
                "skipped": _count(members, "skipped"),
                "time": f"{durations.get(name, 0.0):.3f}",
                "id": str(number),
            }
            if when is not None:
                attributes["timestamp"] = when.strftime("%Y-%m-%dT%H:%M:%S")
            suite = ElementTree.SubElement(root, "testsuite", attributes)
            if name == RUN:
                _properties(suite, report)
            for case in members:
                _case(suite, case)
        ElementTree.indent(root)
        written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
        return written + b"\n"


def _counts(cases: Iterable[Case]) -> dict[str, str]:
    held = list(cases)
    return {"tests": str(len(held)), "failures": _count(held, "failed"), "errors": _count(held, "error")}


def _count(cases: Iterable[Case], state: str) -> str:
    return str(sum(case.state == state for case in cases))


def _properties(suite: ElementTree.Element, report: Report) -> None:
    held = ElementTree.SubElement(suite, "properties")
    values = {
        "version": report.tool.version,
        "verb": report.run.verb,
        "verdict": report.verdict.value,
        "exit_code": str(int(report.exit_code)),
        "not_applicable": str(report.coverage.not_applicable),
    }
    if report.run.smoke_options.injected_fault is not None:
        values["injected_fault"] = report.run.smoke_options.injected_fault.option_text
    for name, value in values.items():
        ElementTree.SubElement(held, "property", {"name": name, "value": _legal(value)})


def _case(suite: ElementTree.Element, case: Case) -> None:
    # Jenkins takes the text before the last dot for a package and the rest for a class.
    classname = f"preflight.{case.suite}.{case.id}" if case.id else RUN
    element = ElementTree.SubElement(
        suite, "testcase", {"classname": _legal(classname), "name": _legal(case.name), "time": "0"}
    )
    if case.state in _ELEMENTS:
        attributes = {"type": _legal(case.kind), "message": _legal(case.message)}
        ElementTree.SubElement(element, _ELEMENTS[case.state], attributes).text = _legal(case.detail) or None


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)


REPORTER = JunitReporter()
