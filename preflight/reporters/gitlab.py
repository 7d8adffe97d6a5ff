"""GitLab's Code Quality report: findings in the diff of a merge request.

GitLab knows faults in files alone. One of a node stands at the claim that made us look, and where no claim did, at the
first line of the job's first file: that is what was asked about, and the description names the nodes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from preflight.document import calm
from preflight.outcome import Finding, Location, Outcome, Severity
from preflight.report import Report
from preflight.reporters.base import Style
from preflight.reporters.clean import clean, fold_nodes

_SEVERITIES = {Severity.ERROR: "critical", Severity.WARNING: "major", Severity.INFO: "info"}
#: Where there is not even a file.
_NOWHERE = "preflight"


class GitlabReporter:
    """One issue a finding, and one for everything that had to be told and could not be."""

    name = "gitlab"

    def render(self, report: Report, style: Style) -> bytes:
        """The list as JSON; `style` has no influence."""
        written = json.dumps(issues(report), indent=2, ensure_ascii=False).encode("utf-8", "replace")
        return calm(written.decode()).encode() + b"\n"


def issues(report: Report) -> list[dict[str, Any]]:
    """The issues as plain values; GitLab has no word for what is suppressed, so that is left out."""
    fallback = report.inputs[0].path if report.inputs else _NOWHERE
    found = [_of_finding(finding, fallback) for finding in report.findings]
    found.extend(_of_outcome(outcome, fallback) for outcome in report.coverage.not_told if outcome.required)
    unique = {issue["fingerprint"]: issue for issue in reversed(found)}
    return [issue for issue in found if unique[issue["fingerprint"]] is issue]


def _of_finding(finding: Finding, fallback: str) -> dict[str, Any]:
    on = f" (on {fold_nodes(finding.nodes)})" if finding.nodes else ""
    fix = f" Fix: {finding.remedy}" if finding.remedy else ""
    place = finding.locations[0] if finding.locations else None
    description = f"{finding.message}{on}{fix}"
    return _issue(description, finding, finding.fingerprint, _SEVERITIES[finding.severity], place, fallback)


def _of_outcome(outcome: Outcome, fallback: str) -> dict[str, Any]:
    parts = ("open", outcome.id, outcome.subject, outcome.reason)
    fingerprint = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:24]
    description = f"could not be told of {outcome.subject}: {outcome.reason}"
    return _issue(description, outcome, fingerprint, "major", next(iter(outcome.locations), None), fallback)


def _issue(
    description: str, said: Finding | Outcome, fingerprint: str, severity: str, place: Location | None, fallback: str
) -> dict[str, Any]:
    return {
        "description": clean(f"{said.id}: {description}"),
        "check_name": clean(f"{said.id} {said.name}"),
        "fingerprint": fingerprint,
        "severity": severity,
        "location": {
            "path": clean(place.path if place is not None else fallback),
            "lines": {"begin": max(1, place.line) if place is not None else 1},
        },
    }


REPORTER = GitlabReporter()
