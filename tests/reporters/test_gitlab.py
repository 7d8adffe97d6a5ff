"""The report for GitLab's Code Quality widget."""

from __future__ import annotations

from preflight.plugins.authoring import failed
from preflight.reporters.base import Style
from preflight.reporters.gitlab import REPORTER
from tests.builders import job, judged, make_recording, make_rule, span
from tests.reporters.consumers import read_gitlab
from tests.reporters.full_report import everything


def test_findings_and_undecided_checks_are_issues() -> None:
    report = everything()
    error, warning, opened = read_gitlab(REPORTER.render(report, Style()), report)
    assert error["location"] == {"path": "jobs/train, v2.sbatch", "lines": {"begin": 3}}
    assert (error["check_name"], error["severity"]) == ("TST001 fault-tst001", "critical")
    assert error["description"].startswith("TST001: 4 but 2")
    # A fault of nodes is located at the job's first file and names the nodes.
    assert warning["location"] == {"path": "run.sh", "lines": {"begin": 1}}
    assert "slow link (on node[1-2])" in warning["description"]
    assert (opened["severity"], opened["location"]["lines"]["begin"]) == ("major", 4)
    assert "could not be decided for GPUs of node3: no answer in time" in opened["description"]


def test_a_fingerprint_survives_a_moved_line() -> None:
    found = []
    for line in (3, 90):
        rule = make_rule(lambda _, line=line: [failed("x", "wrong", at=span(line=line), remedy="-")])
        report = judged(make_recording(job()), [rule])
        (issue,) = read_gitlab(REPORTER.render(report, Style()), report)
        found.append((issue["fingerprint"], issue["location"]["lines"]["begin"]))
    assert found[0][0] == found[1][0] and [line for _, line in found] == [3, 90]
