"""Suppression comments take the finding of their line out of the verdict, and idle ones are named."""

from __future__ import annotations

import pytest

from preflight.job import Suppression
from preflight.judgement import failed
from preflight.outcome import VerdictKind
from preflight.report import Report
from tests.building import a_recording, a_rule, job, judged, seen, span


def comment(*names: str, line: int = 3, path: str = "run.sh", reason: str = "tried, works here") -> Suppression:
    """`# preflight: ignore[names] reason` about a line."""
    return Suppression(path, line, names, reason, span(path, line))


def with_comments(*comments: Suppression, jobs: int = 1) -> Report:
    """The report on a job with a fault in line 3 and these comments."""
    rule = a_rule(lambda subject: [failed("run.sh:3", "wrong", at=span(line=3), also=[span(line=7)], remedy="-")])
    return judged(a_recording(*[job(suppressions=comments)] * jobs), [rule])


@pytest.mark.parametrize("name", ["TST001", "tst001", "fault-tst001", "Fault-TST001"])
def test_a_finding_is_suppressed_by_id_or_name(name: str) -> None:
    report = with_comments(comment(name))
    assert report.findings == ()
    (finding,) = report.suppressed
    assert finding.suppression == "tried, works here"
    assert report.verdict is VerdictKind.GO
    assert report.coverage.idle_suppressions == ()


@pytest.mark.parametrize(
    "idle",
    [
        comment("TST002"),
        comment("TST001", line=4),
        comment("TST001", line=7),
        comment("TST001", path="other.sh"),
        comment(),
        comment("TST"),
    ],
    ids=["other-rule", "other-line", "second-place", "other-file", "no-name", "whole-area"],
)
def test_what_does_not_fit_suppresses_nothing_and_is_named(idle: Suppression) -> None:
    report = with_comments(idle)
    assert len(report.findings) == 1
    assert report.suppressed == ()
    assert report.coverage.idle_suppressions == (idle,)
    assert report.verdict is VerdictKind.NO_GO


def test_of_two_comments_for_one_finding_neither_is_idle() -> None:
    report = with_comments(comment("TST001", reason=""), comment("fault-tst001"))
    assert report.coverage.idle_suppressions == ()
    assert report.suppressed[0].suppression == "tried, works here"


def test_a_comment_without_a_reason_says_so() -> None:
    assert with_comments(comment("TST001", reason="")).suppressed[0].suppression == "no reason given"


def test_a_file_of_several_jobs_has_its_comments_counted_once() -> None:
    report = with_comments(comment("TST002"), jobs=2)
    assert len(report.coverage.idle_suppressions) == 1


def test_a_comment_takes_out_no_fault_that_has_no_place() -> None:
    rule = a_rule(lambda subject: [failed("a", "no GPU", at=seen("a"), nodes=["a"], remedy="-")])
    assert len(judged(a_recording(job(suppressions=(comment("TST001"),))), [rule]).findings) == 1


def test_a_comment_about_several_lines_is_idle_only_when_it_is_of_use_on_none() -> None:
    here = span(line=2)
    lines = [Suppression("run.sh", line, ("TST001",), "", here) for line in (2, 3, 4)]
    assert with_comments(*lines).coverage.idle_suppressions == ()
    assert with_comments(lines[0], lines[2]).coverage.idle_suppressions == (lines[0],)
