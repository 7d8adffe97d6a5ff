"""Every rule over its cases, read the way `preflight lint` reads files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from preflight.engine.suppress import fold
from preflight.model.findings import Finding, Outcome, Status
from preflight.model.job import Job
from preflight.plugins import registry
from preflight.plugins.authoring import Rule
from preflight.sources.discovery.assemble import assemble
from tests.rules.case_files import Case, all_cases
from tests.rules.rule_builders import judged

RULES: dict[str, Rule] = {rule.meta.id: rule for rule in registry.rules()}


def jobs_of(case: Case, above: Path) -> tuple[Job, ...]:
    """The jobs of a case, whose files are written to a folder below `above`."""
    folder = case.write(above)
    return assemble(folder, case.given(folder), sources=registry.sources())


@pytest.mark.parametrize("rule", RULES)
def test_cases(rule: str, tmp_path: Path) -> None:
    cases = [case for case in all_cases() if case.rule == rule]
    wrong = {}
    for case in cases:
        try:
            _check_case(case, tmp_path)
        except AssertionError as error:
            wrong[case.name] = str(error)
    assert not wrong, "\n\n".join(f"{rule} {name}: {why}" for name, why in wrong.items())


def _check_case(case: Case, above: Path) -> None:
    jobs = jobs_of(case, above)
    found: list[Outcome] = judged(RULES[case.rule], jobs)
    findings = fold(outcome.finding for outcome in found if outcome.finding is not None)
    statuses = {outcome.status for outcome in found}
    if case.name.startswith("fail-"):
        assert len(findings) == 1, [f.message for f in findings] or statuses
        _check(findings[0], case.expected)
        assert findings[0].fix is None or RULES[case.rule].meta.fix != "none", "a rule declares its fix"
    elif case.name.startswith("pass-"):
        assert not findings, findings[0].message
        assert Status.PASS in statuses, [o.reason for o in found]
        _has_no_error(jobs)
    elif case.name.startswith("na-"):
        assert statuses == {Status.NOT_APPLICABLE}, [o.reason for o in found]
    else:
        assert not findings, findings[0].message
        assert Status.UNKNOWN in statuses, statuses


def _check(finding: Finding, expected: dict[str, Any]) -> None:
    first = finding.locations[0]
    assert f"{first.path}:{first.line}:{first.column}" == expected["at"]
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
    assert {case.rule for case in all_cases()} <= set(RULES), "no case of a rule that does not exist"
    there = {case.rule for case in all_cases() if case.name.startswith(f"{kind}-")}
    assert set(RULES) - there == set()
