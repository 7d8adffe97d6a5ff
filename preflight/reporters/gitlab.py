"""GitLab's Code Quality report: findings in the diff of a merge request.

GitLab requires a location in a file. A finding about a node is placed at the claim that caused the check, otherwise at
the first line of the job's first file; the description names the nodes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from preflight._util.json_output import escape_control_chars
from preflight._util.sanitize import clean, fold_nodes
from preflight.engine.report import Report
from preflight.model.findings import Finding, Location, Outcome, Severity
from preflight.reporters.base import Style

_SEVERITIES = {Severity.ERROR: "critical", Severity.WARNING: "major", Severity.INFO: "info"}
#: Path of a finding if the job has no file.
_NOWHERE = "preflight"


class GitlabReporter:
    """Renders one issue per finding, and one per required check that could not be decided."""

    name = "gitlab"

    def render(self, report: Report, style: Style) -> bytes:
        written = json.dumps(issues(report), indent=2, ensure_ascii=False).encode("utf-8", "replace")
        return escape_control_chars(written.decode()).encode() + b"\n"


def issues(report: Report) -> list[dict[str, Any]]:
    """Return the issues as plain values. Suppressed findings are omitted, because GitLab has no such state."""
    fallback = report.inputs[0].path if report.inputs else _NOWHERE
    found = [_finding_issue(finding, fallback) for finding in report.findings]
    found.extend(_outcome_issue(outcome, fallback) for outcome in report.coverage.unknown_outcomes if outcome.required)
    unique = {issue["fingerprint"]: issue for issue in reversed(found)}
    return [issue for issue in found if unique[issue["fingerprint"]] is issue]


def _finding_issue(finding: Finding, fallback: str) -> dict[str, Any]:
    on = f" (on {fold_nodes(finding.nodes)})" if finding.nodes else ""
    fix = f" Fix: {finding.remedy}" if finding.remedy else ""
    place = finding.locations[0] if finding.locations else None
    description = f"{finding.message}{on}{fix}"
    return _issue(description, finding, finding.fingerprint, _SEVERITIES[finding.severity], place, fallback)


def _outcome_issue(outcome: Outcome, fallback: str) -> dict[str, Any]:
    parts = ("open", outcome.id, outcome.subject, outcome.reason)
    fingerprint = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:24]
    description = f"could not be decided for {outcome.subject}: {outcome.reason}"
    return _issue(description, outcome, fingerprint, "major", next(iter(outcome.locations), None), fallback)


def _issue(
    description: str, subject: Finding | Outcome, fingerprint: str, severity: str, place: Location | None, fallback: str
) -> dict[str, Any]:
    return {
        "description": clean(f"{subject.id}: {description}"),
        "check_name": clean(f"{subject.id} {subject.name}"),
        "fingerprint": fingerprint,
        "severity": severity,
        "location": {
            "path": clean(place.path if place is not None else fallback),
            "lines": {"begin": max(1, place.line) if place is not None else 1},
        },
    }


REPORTER = GitlabReporter()
