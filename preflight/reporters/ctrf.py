"""CTRF, the Common Test Report Format (ctrf.io): one JSON shape for test results, read by bots and dashboards.

It knows more than JUnit: `other` for what could not be told, and the status in the words of whoever wrote it.
"""

from __future__ import annotations

import json
from typing import Any

from preflight.document import calm
from preflight.outcome import VerdictKind
from preflight.report import Report
from preflight.reporters.base import Style
from preflight.reporters.cases import Case, began, cases_of, durations_of, suites_of

#: The version of the specification whose fields are used.
SPEC_VERSION = "0.0.0"
_STATUSES = {"passed": "passed", "failed": "failed", "error": "other", "skipped": "skipped"}


class CtrfReporter:
    """One test a finding, open question or pass."""

    name = "ctrf"

    def render(self, report: Report, style: Style) -> bytes:
        """The document as JSON; `style` has no influence."""
        written = json.dumps(document(report), indent=2, ensure_ascii=False).encode("utf-8", "replace")
        return calm(written.decode()).encode() + b"\n"


def document(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    cases, when = cases_of(report), began(report)
    start_ms = int(when.timestamp() * 1000) if when is not None else 0
    took_ms = round(max((stage.finished_s for stage in report.run.stages), default=0.0) * 1000)
    states = [_STATUSES[case.state] for case in cases]
    durations = {stage: round(seconds * 1000) for stage, seconds in durations_of(report).items()}
    found: dict[str, Any] = {"reportFormat": "CTRF", "specVersion": SPEC_VERSION, "generatedBy": "preflight"}
    if when is not None:
        found["timestamp"] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    found["results"] = {
        "tool": {"name": "preflight", "version": report.tool.version},
        "summary": {
            "tests": len(cases),
            **{status: states.count(status) for status in ("passed", "failed", "skipped", "pending", "other")},
            "suites": len(suites_of(cases)),
            "start": start_ms,
            "stop": start_ms + took_ms,
            "duration": took_ms,
        },
        "tests": [_test(case) for case in cases],
        "environment": {"healthy": report.verdict is VerdictKind.GO},
        "extra": {
            "verdict": report.verdict.value,
            "exit_code": int(report.exit_code),
            "verb": report.run.verb,
            "not_applicable": report.coverage.not_applicable,
            "stage_durations_ms": durations,
            **({"drill": report.run.wish.drill.spelled} if report.run.wish.drill is not None else {}),
        },
    }
    return found


def _test(case: Case) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": f"{case.id} {case.name}".strip(),
        "status": _STATUSES[case.state],
        "duration": 0,
        "suite": [case.suite],
        "rawStatus": case.kind,
    }
    if case.message:
        found["message"] = case.message
    if case.detail:
        found["trace"] = case.detail
    if case.path:
        found["filePath"], found["line"] = case.path, case.line
    if case.id:
        found["tags"] = [case.id, case.id[:3]]
    return found


REPORTER = CtrfReporter()
