"""CTRF, the Common Test Report Format (ctrf.io): a JSON format for test results, read by bots and dashboards.

Unlike JUnit it has a status `other`, used for what could not be decided, and keeps the writer's own status word.
"""

from __future__ import annotations

import json
from typing import Any

from preflight._util.json_output import escape_control_chars
from preflight.engine.report import Report
from preflight.model.findings import VerdictKind
from preflight.reporters.base import Style
from preflight.reporters.cases import Case, began, cases_of, durations_of, suites_of

#: Version of the specification.
SPEC_VERSION = "0.0.0"
_STATUSES = {"passed": "passed", "failed": "failed", "error": "other", "skipped": "skipped"}


class CtrfReporter:
    """Renders one test per finding, undecided check or pass."""

    name = "ctrf"

    def render(self, report: Report, style: Style) -> bytes:
        """Render the JSON document; `style` is ignored."""
        written = json.dumps(document(report), indent=2, ensure_ascii=False).encode("utf-8", "replace")
        return escape_control_chars(written.decode()).encode() + b"\n"


def document(report: Report) -> dict[str, Any]:
    """Return the report as plain values."""
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
            **(
                {"injected_fault": report.run.smoke_options.injected_fault.option_text}
                if report.run.smoke_options.injected_fault is not None
                else {}
            ),
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
