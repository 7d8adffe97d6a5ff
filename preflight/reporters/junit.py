"""JUnit XML, which Jenkins, GitLab and most reporters of GitHub actions show as test results.

There is no one schema. What is written here holds against the one that Jenkins' xUnit plugin keeps, which is also what
Ant wrote and what all others read: no attribute of anybody's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree

from preflight.lazy.patterns import lazy_pattern
from preflight.report import Report
from preflight.reporters.base import Style
from preflight.reporters.cases import RUN, Case, began, cases_of, durations_of, suites_of

_ELEMENTS = {"failed": "failure", "error": "error", "skipped": "skipped"}
#: What no XML document may hold and `clean` does not take out: it is not assigned to anything.
_ILLEGAL = lazy_pattern("[\ufffe\uffff]")


class JunitReporter:
    """One suite a stage, one case a finding, open question or pass."""

    name = "junit"

    def render(self, report: Report, style: Style) -> bytes:
        """The document in UTF-8; `style` has no influence."""
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
    if report.run.wish.drill is not None:
        values["drill"] = report.run.wish.drill.spelled
    for name, value in values.items():
        ElementTree.SubElement(held, "property", {"name": name, "value": _legal(value)})


def _case(suite: ElementTree.Element, case: Case) -> None:
    # Jenkins takes what stands before the last dot for a package and the rest for a class.
    classname = f"preflight.{case.suite}.{case.id}" if case.id else RUN
    element = ElementTree.SubElement(
        suite, "testcase", {"classname": _legal(classname), "name": _legal(case.name), "time": "0"}
    )
    if case.state in _ELEMENTS:
        said = {"type": _legal(case.kind), "message": _legal(case.message)}
        ElementTree.SubElement(element, _ELEMENTS[case.state], said).text = _legal(case.detail) or None


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)


REPORTER = JunitReporter()
