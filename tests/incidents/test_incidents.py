"""Every incident is found at its place, or a reason is given; mended, the same job is silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.incidents.cases import Incident, incidents, linted, said, table

INCIDENTS = incidents()
ROOT = Path(__file__).parent.parent.parent


def name(incident: Incident) -> str:
    return f"{incident.subject}-{incident.source.split()[0].replace('/', '-')}-{incident.fault[:24]}"


@pytest.mark.parametrize("incident", INCIDENTS, ids=name)
def test_the_fault_is_found_where_it_stands(incident: Incident, tmp_path: Path) -> None:
    found = linted(incident.files, tmp_path, together=incident.together)
    assert sorted(map(said, found)) == sorted(incident.finds), [finding.message for finding in found]
    assert bool(incident.finds) != bool(incident.reason), "either it is found, or a reason says why not"


@pytest.mark.parametrize("incident", [item for item in INCIDENTS if item.mended], ids=name)
def test_without_the_fault_nothing_is_said(incident: Incident, tmp_path: Path) -> None:
    found = linted(incident.mended, tmp_path, together=incident.together)
    assert not found, [f"{said(finding)} {finding.message}" for finding in found]


def test_the_table_in_the_documentation_is_this_one() -> None:
    assert (ROOT / "docs" / "incidents.md").read_text() == table(), "write it anew: python -m tests.incidents"


def test_nearly_all_of_them_are_found() -> None:
    found = [incident for incident in INCIDENTS if incident.finds]
    print(table())
    assert len(found) / len(INCIDENTS) > 0.85
