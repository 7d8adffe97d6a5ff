"""Fixes for the case folders: a fix removes the finding, and is as safe as the rule's metadata states."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from preflight.commands.fix import Files, plan
from preflight.engine.report import Report, report_on
from preflight.model.recording import Configuration
from preflight.plugins.authoring import Rule
from tests.builders import make_recording
from tests.rules.test_cases import FOLDERS, RULES, jobs_of, toml

FIXED = [f for f in FOLDERS if f.name.startswith("fail-") and RULES[f.parent.name].meta.fix != "none"]


def judged(rule: Rule, folder: Path) -> Report:
    """The findings of one rule in a folder, or in the files that its `expect.toml` names."""
    named = toml.loads((folder / "expect.toml").read_text()).get("named", [])
    return report_on(
        make_recording(*jobs_of(folder, named), configuration=Configuration(profile="pedantic")), [rule], []
    )


def rule_of(folder: Path) -> Rule:
    """The rule of a case folder."""
    return RULES[folder.parent.name]


@pytest.mark.parametrize("folder", FIXED, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_fix_has_the_declared_safety_and_removes_the_finding(folder: Path, tmp_path: Path) -> None:
    rule = rule_of(folder)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    report = judged(rule, copy)
    fixes = [finding.fix for finding in report.findings if finding.fix is not None]
    for fix in fixes:
        assert rule.meta.fix == "unsafe" or fix.safe
        assert not fix.description.endswith(".")
    if not fixes:
        return
    made = plan(report, Files(copy), unsafe=True).written()
    assert made.refused == ()
    after = judged(rule, copy)
    assert len(after.findings) == len(report.findings) - len(made.fixed), after.findings
    assert plan(after, Files(copy), unsafe=True).changes == ()


def test_every_rule_that_declares_a_fix_offers_one() -> None:
    offering = {folder.parent.name for folder in FIXED if any(f.fix for f in judged(rule_of(folder), folder).findings)}
    assert offering == {id for id, rule in RULES.items() if rule.meta.fix != "none"}


def test_there_are_safe_and_unsafe_fixes() -> None:
    fixes = [rule.meta.fix for rule in RULES.values()]
    assert fixes.count("safe") >= 4
    assert fixes.count("unsafe") >= 4
