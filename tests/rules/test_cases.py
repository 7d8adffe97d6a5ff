"""Every rule over real files: folders of `cases/` read the way `preflight lint` reads them.

A folder `fail-*` has one fault, at the location in its `expect.toml`; in `pass-*` the rule applies and finds nothing;
in `unknown-*` it cannot decide; in `na-*` it does not apply. `named` lists files given by name; without it the folder
is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from preflight._util import toml
from preflight.model.findings import Finding, Outcome, Status
from preflight.model.job import Job
from preflight.plugins import registry
from preflight.plugins.authoring import Rule
from preflight.sources.discovery.assemble import assemble
from tests.rules.rule_builders import judged

CASES = Path(__file__).parent / "cases"
FOLDERS = sorted(path.parent for path in CASES.glob("*/*/expect.toml"))


RULES: dict[str, Rule] = {rule.meta.id: rule for rule in registry.rules()}


def jobs_of(folder: Path, named: list[str]) -> tuple[Job, ...]:
    """The jobs of the folder, or of the files that it names."""
    paths = [folder / name for name in named] if named else [folder]
    return assemble(folder, paths, sources=registry.sources())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_case(folder: Path) -> None:
    expected = toml.loads((folder / "expect.toml").read_text())
    assert expected["id"] == folder.parent.name
    jobs = jobs_of(folder, expected.get("named", []))
    found: list[Outcome] = judged(RULES[expected["id"]], jobs)
    findings = [outcome.finding for outcome in found if outcome.finding is not None]
    statuses = {outcome.status for outcome in found}
    if folder.name.startswith("fail-"):
        assert len(findings) == 1, [f.message for f in findings] or statuses
        _check(findings[0], expected)
        assert findings[0].fix is None or RULES[expected["id"]].meta.fix != "none", "a rule declares its fix"
    elif folder.name.startswith("pass-"):
        assert not findings, findings[0].message
        assert Status.PASS in statuses, [o.reason for o in found]
        _has_no_error(jobs)
    elif folder.name.startswith("na-"):
        assert statuses == {Status.NOT_APPLICABLE}, [o.reason for o in found]
    else:
        assert not findings, findings[0].message
        assert Status.UNKNOWN in statuses, statuses


def _check(finding: Finding, expected: dict[str, Any]) -> None:
    first = finding.locations[0]
    assert (first.path, first.line, first.column) == (expected["path"], expected["line"], expected["column"])
    assert finding.severity.value == expected["severity"]
    assert expected.get("says", "") in finding.message
    assert expected.get("advises", "") in finding.remedy
    places = {f"{place.path}:{place.line} {place.note}".rstrip() for place in finding.locations[1:]}
    assert set(expected.get("also", [])) <= places
    assert finding.remedy.endswith(".")
    assert first.snippet, "a finding shows its line"


def _has_no_error(jobs: tuple[Job, ...]) -> None:
    """No rule finds an error in good files."""
    for job in jobs:
        for rule in RULES.values():
            errors = [o.finding for o in judged(rule, [job]) if o.finding and o.finding.severity.value == "error"]
            assert not errors, errors[0].message


@pytest.mark.parametrize("kind", ["fail", "pass", "unknown"])
def test_every_rule_has_a_case_of_each_kind(kind: str) -> None:
    there = {folder.parent.name for folder in FOLDERS if folder.name.startswith(f"{kind}-")}
    assert set(RULES) - there == set()
