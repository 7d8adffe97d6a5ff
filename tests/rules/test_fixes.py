"""Fixes for the cases: a fix removes the finding, and is as safe as the rule's metadata states."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.commands.fix import Files, plan
from preflight.engine.report import Report, report_on
from preflight.model.recording import Configuration
from preflight.plugins import registry
from preflight.sources.discovery.assemble import assemble
from tests.builders import make_recording
from tests.rules.case_files import Case, all_cases
from tests.rules.test_cases import RULES

FIXED = [case for case in all_cases() if case.name.startswith("fail-") and RULES[case.rule].meta.fix != "none"]


def judged(case: Case, folder: Path) -> Report:
    """The findings of the rule in the folder of its case."""
    jobs = assemble(folder, case.given(folder), sources=registry.sources())
    return report_on(make_recording(*jobs, configuration=Configuration(profile="pedantic")), [RULES[case.rule]], [])


@pytest.mark.parametrize("case", FIXED, ids=lambda case: f"{case.rule}-{case.name}")
def test_a_fix_has_the_declared_safety_and_removes_the_finding(case: Case, tmp_path: Path) -> None:
    rule, folder = RULES[case.rule], case.write(tmp_path)
    report = judged(case, folder)
    fixes = [finding.fix for finding in report.findings if finding.fix is not None]
    for fix in fixes:
        assert rule.meta.fix == "unsafe" or fix.safe
        assert not fix.description.endswith(".")
    if not fixes:
        return
    made = plan(report, Files(folder), unsafe=True).written()
    assert made.refused == ()
    after = judged(case, folder)
    assert len(after.findings) == len(report.findings) - len(made.fixed), after.findings
    assert plan(after, Files(folder), unsafe=True).changes == ()


def test_every_rule_that_declares_a_fix_offers_one(tmp_path: Path) -> None:
    offering = {
        case.rule
        for case in FIXED
        if any(finding.fix for finding in judged(case, case.write(tmp_path / case.rule)).findings)
    }
    assert offering == {id for id, rule in RULES.items() if rule.meta.fix != "none"}


def test_there_are_safe_and_unsafe_fixes() -> None:
    fixes = [rule.meta.fix for rule in RULES.values()]
    assert fixes.count("safe") >= 4
    assert fixes.count("unsafe") >= 4
