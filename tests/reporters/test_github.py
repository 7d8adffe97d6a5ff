"""Annotations and summary of GitHub Actions."""

from __future__ import annotations

from preflight.plugins.authoring import failed
from preflight.reporters.base import Style
from preflight.reporters.github import REPORTER, SUMMARY
from tests.builders import job, judged, make_recording, make_rule, span
from tests.reporters.consumers import commands, tables
from tests.reporters.full_report import everything


def test_findings_are_annotations_at_their_locations() -> None:
    verdict, error, warning, opened = commands(REPORTER.render(everything(), Style()))
    assert verdict.name == "notice"
    assert verdict.properties == {"title": "preflight check: no-go"}
    assert verdict.message == "1 error, 1 warning; 1 required check could not be decided; 1 suppressed"
    assert error.name == "error"
    assert error.properties == {
        "file": "jobs/train, v2.sbatch",
        "line": "3",
        "endLine": "3",
        "col": "5",
        "endColumn": "14",
        "title": "TST001 fault-tst001",
    }
    assert error.message == "4 but 2\n100% wrong\nalso run.sh:3: 2: here\nFix: Say 2"
    assert (warning.name, warning.properties) == ("warning", {"title": "TST501 fault-tst501"})
    assert "on node[1-2]" in warning.message
    assert (opened.name, opened.properties["title"]) == ("error", "could not be decided: TST502 fault-tst502")
    assert opened.properties["line"] == "4"


def test_an_annotation_over_several_lines_has_no_columns() -> None:
    place = span(line=3)
    long = type(place)(place.path, 3, 5, 7, 2, place.snippet)
    rule = make_rule(lambda _: [failed("x", "wrong", at=long, remedy="-")])
    (_, error) = commands(REPORTER.render(judged(make_recording(job()), [rule]), Style()))
    assert {key: error.properties[key] for key in ("line", "endLine")} == {"line": "3", "endLine": "7"}
    assert not {"col", "endColumn"} & set(error.properties)


def test_the_first_line_counts_more_than_github_shows() -> None:
    rule = make_rule(lambda _: [failed(f"run.sh:{n}", f"wrong {n}", at=span(line=n), remedy="-") for n in range(1, 13)])
    found = commands(REPORTER.render(judged(make_recording(job()), [rule]), Style()))
    assert len(found) == 13
    assert found[0].message == "12 errors; GitHub shows 10 of each kind; the log has all"


def test_quoted_text_cannot_start_a_command() -> None:
    hostile = "x\n::error::injected\r\n::set-output name=a::b"
    rule = make_rule(lambda _: [failed(hostile, hostile, at=span(hostile, snippet=hostile), remedy=hostile)])
    data = REPORTER.render(judged(make_recording(job()), [rule]), Style())
    assert [command.name for command in commands(data)] == ["notice", "error"]


def test_the_summary_has_tables_of_findings_and_undecided_checks() -> None:
    (heading,), (findings, opened) = tables(SUMMARY.render(everything(), Style()))
    assert heading == "preflight check: no-go"
    assert findings[1:] == [
        ["❌ error", "TST001 fault-tst001", "jobs/train, v2.sbatch:3", "4 but 2\n100% wrong\nFix: Say 2"],
        ["⚠️ warning", "TST501 fault-tst501", "node[1-2]", "slow link\nFix: -"],
    ]
    assert opened[1:] == [["TST502 fault-tst502", "GPUs of node3", "no answer in time"]]


def test_a_summary_that_is_too_large_is_cut() -> None:
    long = "wrong " * 400
    rule = make_rule(
        lambda _: [failed(f"run.sh:{n}", f"{n} {long}", at=span(line=n), remedy="-") for n in range(1, 400)]
    )
    data = SUMMARY.render(judged(make_recording(job()), [rule]), Style())
    _, (findings,) = tables(data)
    left = 399 - (len(findings) - 1)
    assert 0 < left < 399 and f"and {left} more that do not fit here" in data.decode()
