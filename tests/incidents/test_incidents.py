"""Every incident is found at its location, or a reason is given; the repaired job has no finding."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from preflight.model.findings import Severity
from tests.incidents.cases import Incident, format_finding, incidents, lint_files, table
from tests.incidents.reports import (
    REACHED,
    SEALED_BY_CAUSE,
    Report,
    Score,
    blamed_lines,
    finds_the_cause,
    is_sealed,
    lint_report,
    load_by_cause,
    load_node_reports,
    load_reports,
    reports_text,
    score,
)

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


# The reported failures are well-formed and divided by their addresses; both scores of lint are reached.


REPORTS = {(collection, half): load_reports(half, collection) for collection, half in REACHED}


def measure(reports: tuple[Report, ...], folder: Path) -> Score:
    """The score of lint on some reports."""
    return score([(report, lint_report(report, folder / str(number))) for number, report in enumerate(reports)])


@pytest.mark.parametrize(("collection", "half"), REPORTS)
def test_the_address_decides_the_half(collection: str, half: str) -> None:
    wrong = [r.address for r in REPORTS[collection, half] if is_sealed(r.address, collection) != (half == "sealed")]
    assert wrong == []


def test_no_address_is_there_twice() -> None:
    addresses = [report.address for reports in REPORTS.values() for report in reports]
    addresses += [report.address for report in load_node_reports()]
    assert len(addresses) == len(set(addresses))
    assert all(address.startswith("https://") for address in addresses)


@pytest.mark.parametrize(("collection", "half"), REPORTS)
def test_causes_and_repairs_are_in_the_files(collection: str, half: str) -> None:
    def is_written(report: Report) -> bool:
        re.compile(report.words)
        places = [(place.file, place.text) for place in report.cause]
        places += [(repair.file, repair.old) for repair in report.repairs]
        return bool(blamed_lines(report)) and all(text in report.files[file] for file, text in places)

    assert [report.address for report in REPORTS[collection, half] if not is_written(report)] == []


@pytest.mark.parametrize("half", ["learnt", "sealed"])
def test_a_repaired_job_is_silent(half: str, tmp_path: Path) -> None:
    for number, report in enumerate(REPORTS["by_cause", half]):
        repaired = report.repaired()
        findings = lint_report(repaired, tmp_path / str(number))
        wrong = [f for f in findings if f.severity is Severity.ERROR or finds_the_cause(repaired, f)]
        assert report.repairs
        assert wrong == [], report.address


@pytest.mark.parametrize(("collection", "half"), [key for key in REACHED if key != ("by_cause", "sealed")])
def test_the_score_is_reached(collection: str, half: str, tmp_path: Path) -> None:
    _compare(measure(REPORTS[collection, half], tmp_path), REACHED[collection, half])


def test_the_score_by_cause_is_reached(tmp_path: Path) -> None:
    scores = {
        cause: measure(reports, tmp_path / cause) for cause, reports in load_by_cause("sealed", "by_cause").items()
    }
    assert {cause: (found.reports, found.found) for cause, found in scores.items()} == SEALED_BY_CAUSE
    total = [sum(column) for column in zip(*(_numbers(found) for found in scores.values()), strict=True)]
    _compare(Score(*total), REACHED["by_cause", "sealed"])


def _numbers(found: Score) -> tuple[int, int, int, int]:
    return found.reports, found.found, found.stops, found.stops_at_error


def _compare(found: Score, reached: Score) -> None:
    print(found)
    assert (found.reports, found.stops) == (reached.reports, reached.stops)
    assert found.found >= reached.found
    assert found.stops_at_error >= reached.stops_at_error
