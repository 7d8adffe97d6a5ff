"""Every incident is found at its location, or a reason is given; the repaired job has no finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.incidents.cases import Incident, format_finding, incidents, lint_files, table
from tests.incidents.reports import reports_text

INCIDENTS = incidents()
ROOT = Path(__file__).parent.parent.parent


def name(incident: Incident) -> str:
    return f"{incident.subject}-{incident.source.split()[0].replace('/', '-')}-{incident.fault[:24]}"


@pytest.mark.parametrize("incident", INCIDENTS, ids=name)
def test_the_fault_is_found_at_its_location(incident: Incident, tmp_path: Path) -> None:
    found = lint_files(incident.files, tmp_path, together=incident.together)
    assert sorted(map(format_finding, found)) == sorted(incident.finds), [finding.message for finding in found]
    assert bool(incident.finds) != bool(incident.reason), "an incident has findings or a reason, not both"


@pytest.mark.parametrize("incident", [item for item in INCIDENTS if item.repaired], ids=name)
def test_the_repaired_job_has_no_findings(incident: Incident, tmp_path: Path) -> None:
    found = lint_files(incident.repaired, tmp_path, together=incident.together)
    assert not found, [f"{format_finding(finding)} {finding.message}" for finding in found]


def test_the_documented_table_is_current() -> None:
    expected = table() + reports_text()
    assert (ROOT / "docs" / "incidents.md").read_text() == expected, "regenerate it: python -m tests.incidents"


def test_nearly_all_incidents_are_found() -> None:
    found = [incident for incident in INCIDENTS if incident.finds]
    print(table())
    assert len(found) / len(INCIDENTS) > 0.85
