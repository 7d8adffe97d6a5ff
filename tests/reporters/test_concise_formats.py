"""One line per finding, for grep and editors."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import junitparser
import pytest

from preflight.engine.report import Hosts, Report, commands_without_failing, crashed, hosts_of
from preflight.model.configuration import Configuration
from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.recording import Recording, StageRecord
from preflight.plugins.authoring import Verdict, failed, unknown
from preflight.reporters.base import Style
from preflight.reporters.data_formats import COLUMNS, CSV, FAILING, PASSING, UNKNOWN
from preflight.reporters.github import REPORTER as GITHUB_REPORTER
from preflight.reporters.github import SUMMARY
from preflight.reporters.gitlab import REPORTER as GITLAB_REPORTER
from preflight.reporters.junit import REPORTER as JUNIT_REPORTER
from preflight.reporters.text import REPORTER
from tests.builders import claim, job, judged, make_check, make_recording, make_rule, reached, seen, span
from tests.reporters.consumers import commands, read_gitlab, read_junit, tables
from tests.reporters.full_report import everything


def lines(*verdicts: Verdict, nodes: tuple[str, ...] = (), width: int = 40) -> list[str]:
    """The lines of these verdicts."""
    if nodes:
        record = make_recording(job(), verb="check", nodes=reached(*nodes), stages=("node",))
        report = judged(record, [], [make_check(lambda *_: verdicts)])
    else:
        report = judged(make_recording(job()), [make_rule(lambda _: verdicts)])
    return REPORTER.render(report, Style(width, concise=True)).decode().splitlines()


def test_a_finding_in_a_file_is_always_one_line() -> None:
    message = "`--nnodes=4` is one thing, and\nthis is another. " * 8
    found = lines(failed("run.sh:3", message, at=span(), also=[span(line=9)], remedy="-"))
    assert found[0] == f"run.sh:3:5: error[TST001] {' '.join(message.split())}"
    assert found[1:] == ["preflight: NO-GO 1 error"]


def test_a_finding_of_nodes_begins_with_them() -> None:
    found = lines(
        failed("node", "slow", at=seen("n1"), nodes=["n1", "n2", "n3"], remedy="-"), nodes=("n1", "n2", "n3", "n4")
    )
    assert found[0] == "n[1-3]: error[TST501] slow"


def test_an_undecided_required_check_has_a_line() -> None:
    found = lines(unknown("run.sh:3", "it cannot be read", required=True, at=span()))
    assert found == [
        "run.sh:3:5: unknown[TST001] it cannot be read",
        "preflight: INCOMPLETE nothing found, 1 required check could not be decided",
    ]


def test_lines_match_the_patterns_of_editors() -> None:
    found = lines(failed("x", "wrong \x1b[2J", at=span("a b.sh", 12, 3), remedy="-"))
    match = re.fullmatch(
        r"(?P<path>.+?):(?P<line>\d+):(?P<col>\d+): (?P<level>\w+)\[(?P<id>\w+)\] (?P<text>.*)", found[0]
    )
    assert match
    assert match["path"] == "a b.sh"
    assert match["text"] == "wrong \\x1b[2J"


# CSV as a spreadsheet or a data frame reads it.


def rows(report: Report) -> list[dict[str, str]]:
    """The rows as a reader of CSV returns them."""
    return list(csv.DictReader(io.StringIO(CSV.render(report, Style()).decode(), newline="")))


def read(data: bytes, report: Report) -> None:
    """Every finding is a row, in order; what each holds is tested below."""
    table = list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))
    assert table[0] == list(COLUMNS) and {len(row) for row in table} == {len(COLUMNS)}
    ids = [row[COLUMNS.index("id")].lstrip("'") for row in table[1:]]
    assert ids == [finding.id for finding in (*report.findings, *report.suppressed)]


def test_every_finding_is_a_row() -> None:
    report = everything()
    found = rows(report)
    assert [row["id"] for row in found] == [f.id for f in (*report.findings, *report.suppressed)]
    assert (found[0]["severity"], found[0]["path"], found[0]["line"]) == ("error", "jobs/train, v2.sbatch", "3")
    assert any(row["nodes"] == "node[1-2]" for row in found)
    assert [row["suppressed_by"] for row in found if row["suppressed_by"]] == [
        f.suppressed_by for f in report.suppressed
    ]


def test_a_report_without_findings_has_only_the_header() -> None:
    assert CSV.render(judged(make_recording(job())), Style()).decode().strip().split(",") == list(COLUMNS)


@pytest.mark.parametrize("message", ['=HYPERLINK("http://example.org")', "+1", "-1+2", "@SUM(A1)"])
def test_no_cell_is_a_formula(message: str) -> None:
    rule = make_rule(lambda _: [failed("x", message, at=span(), remedy=message)])
    (row,) = rows(judged(make_recording(job()), [rule]))
    assert row["message"] == f"'{message}" and row["remedy"] == f"'{message}"


def test_quotes_and_newlines_survive() -> None:
    rule = make_rule(lambda _: [failed("x", 'says "4", not 2', at=span(), remedy="first\nsecond")])
    (row,) = rows(judged(make_recording(job()), [rule]))
    assert row["message"] == 'says "4", not 2' and row["remedy"] == "first\nsecond"


# Annotations and summary of GitHub Actions.


def test_findings_are_annotations_at_their_locations() -> None:
    verdict, error, warning, opened = commands(GITHUB_REPORTER.render(everything(), Style()))
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
    (_, error) = commands(GITHUB_REPORTER.render(judged(make_recording(job()), [rule]), Style()))
    assert {key: error.properties[key] for key in ("line", "endLine")} == {"line": "3", "endLine": "7"}
    assert not {"col", "endColumn"} & set(error.properties)


def test_the_first_line_counts_more_than_github_shows() -> None:
    rule = make_rule(lambda _: [failed(f"run.sh:{n}", f"wrong {n}", at=span(line=n), remedy="-") for n in range(1, 13)])
    found = commands(GITHUB_REPORTER.render(judged(make_recording(job()), [rule]), Style()))
    assert len(found) == 13
    assert found[0].message == "12 errors; GitHub shows 10 of each kind; the log contains all"


def test_quoted_text_cannot_start_a_command() -> None:
    hostile = "x\n::error::injected\r\n::set-output name=a::b"
    rule = make_rule(lambda _: [failed(hostile, hostile, at=span(hostile, snippet=hostile), remedy=hostile)])
    data = GITHUB_REPORTER.render(judged(make_recording(job()), [rule]), Style())
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


# The report for GitLab's Code Quality widget.


def test_findings_and_undecided_checks_are_issues() -> None:
    report = everything()
    error, warning, opened = read_gitlab(GITLAB_REPORTER.render(report, Style()), report)
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
        (issue,) = read_gitlab(GITLAB_REPORTER.render(report, Style()), report)
        found.append((issue["fingerprint"], issue["location"]["lines"]["begin"]))
    assert found[0][0] == found[1][0] and [line for _, line in found] == [3, 90]


# The JUnit XML of a report.


def parsed(report: Report) -> dict[str, junitparser.TestCase]:
    """Every case by `class name`."""
    suites = read_junit(JUNIT_REPORTER.render(report, Style()), report)
    return {f"{case.classname} {case.name}": case for suite in suites for case in suite}


def test_every_status_has_its_place() -> None:
    cases = parsed(everything())
    kinds = {name: [(type(r).__name__, r.type, r.message) for r in case.result] for name, case in cases.items()}
    assert kinds == {
        "preflight verdict": [("Failure", "no-go", "no-go: findings make the verdict no-go")],
        "preflight.lint.TST001 fault-tst001 (run.sh:3)": [("Failure", "error", "4 but 2")],
        "preflight.lint.TST002 fault-tst002 (run.sh:9)": [
            ("Skipped", "suppressed", "suppressed by comment: tried, works here (quiet)")
        ],
        "preflight.lint.TST003 fault-tst003 (run.sh)": [],
        "preflight.node.TST501 fault-tst501 (node[1-2])": [("Skipped", "warning", "warning: slow link")],
        "preflight.node.TST502 fault-tst502 (GPUs of node3)": [
            ("Error", "unknown", "could not be decided: no answer in time")
        ],
        "preflight.node.TST502 fault-tst502 (RDMA)": [("Skipped", "unknown", "could not be decided: no root")],
    }


def test_the_text_of_a_failure_has_locations_evidence_and_the_fix() -> None:
    cases = parsed(everything())
    (failure,) = cases["preflight.lint.TST001 fault-tst001 (run.sh:3)"].result
    assert failure.text.splitlines() == [
        "4 but 2",
        "100% wrong",
        "  --> jobs/train, v2.sbatch:3:5",
        "      srun --nodes=2",
        "  --> run.sh:3:5 2: here",
        "      srun --nodes=2",
        "fix: Say 2",
    ]
    (skipped,) = cases["preflight.node.TST501 fault-tst501 (node[1-2])"].result
    assert "  node2: probes.ports:reachable observed refused, expected connected" in skipped.text


def test_suites_are_stages_with_their_time() -> None:
    report = everything()
    suites = junitparser.JUnitXml.fromstring(JUNIT_REPORTER.render(report, Style()))
    assert [(suite.name, suite.time) for suite in suites] == [
        ("preflight", 0),
        ("preflight lint", 0),
        ("preflight node", 1.75),
    ]
    properties = {one.name: one.value for suite in suites for one in suite.properties()}
    assert properties["verdict"] == "no-go" and properties["not_applicable"] == "1"
    assert {suite.timestamp for suite in suites} == {"2026-01-02T03:04:05"}


@pytest.mark.parametrize("fail_on", ["error", "warning"])
def test_fail_on_decides_which_findings_count(fail_on: str) -> None:
    (result,) = parsed(everything(fail_on=fail_on))["preflight.node.TST501 fault-tst501 (node[1-2])"].result
    assert type(result).__name__ == ("Failure" if fail_on == "warning" else "Skipped")


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (judged(make_recording()), "not-judged: no launch script or configuration found in the given paths"),
        (
            crashed(RuntimeError("x"), verb="lint", created="", version=""),
            "incomplete: a bug in preflight ended the run",
        ),
    ],
    ids=["nothing", "bug"],
)
def test_there_is_always_a_failing_case_without_results(report: Report, message: str) -> None:
    (result,) = parsed(report)["preflight verdict"].result
    assert (type(result).__name__, result.message) == ("Error", message)


# Lists of nodes that are fit, not fit, or unknown, and options that leave out the unfit ones.


NAMES = tuple(f"node{number}" for number in range(1, 12))


def report(*verdicts: Verdict, silent: tuple[str, ...] = (), fail_on: str = "error", of: Job | None = None) -> Report:
    """The report on a check of eleven nodes with these verdicts."""
    recording: Recording = replace(
        make_recording(of or job()),
        verb="check",
        nodes=reached(*(name for name in NAMES if name not in silent), silent=silent),
        stages=(StageRecord("node", 0.0, 1.0),),
        configuration=Configuration(fail_on=fail_on),
    )
    return judged(recording, (), [make_check(lambda *_: verdicts)])


def broken(*nodes: str, severity: Severity | None = None) -> Verdict:
    """A finding on these nodes."""
    return failed("x", "broken", at=seen(nodes[0]), nodes=nodes, remedy="-", severity=severity)


def rendered(found: Report) -> list[list[str]]:
    """The three lists as their files hold them."""
    return [reporter.render(found, Style()).decode().split() for reporter in (PASSING, FAILING, UNKNOWN)]


def test_a_node_named_by_a_counting_finding_is_failing() -> None:
    found = report(broken("node3", "node10"), broken("node4", severity=Severity.WARNING))
    assert hosts_of(found).failing == ("node3", "node10")
    assert hosts_of(found).passing == tuple(name for name in NAMES if name not in ("node3", "node10"))
    assert hosts_of(report(broken("node4", severity=Severity.WARNING), fail_on="warning")).failing == ("node4",)


def test_a_silent_node_is_failing_and_an_undecided_one_is_not_passing() -> None:
    found = report(unknown("GPUs", "no answer in time", nodes=("node1",), required=True), silent=("node9",))
    passing, failing, untold = rendered(found)
    assert (failing, untold) == (["node9"], ["node1"])
    assert passing == [name for name in NAMES if name not in ("node1", "node9")], "node1 is not meant by node10"
    assert rendered(report(unknown("x", "no root", nodes=("node1",))))[2] == [], (
        "what is not required is no open question"
    )


@pytest.mark.parametrize(
    ("verdict", "undecided"),
    [
        (unknown("GPUs", "no answer", nodes=("node2", "node10"), required=True), {"node2", "node10"}),
        (unknown("node3", "no answer", required=True), {"node3"}),
        (unknown("GPUs", "node1 did not answer", required=True), set(NAMES)),
        (unknown("GPUs", "no answer", nodes=("node77",), required=True), set(NAMES)),
    ],
    ids=["nodes", "subject", "no nodes", "strangers"],
)
def test_an_unknown_result_concerns_its_nodes_or_else_all(verdict: Verdict, undecided: set[str]) -> None:
    assert set(hosts_of(report(verdict)).unknown) == undecided


def test_unchecked_nodes_are_not_passing() -> None:
    found = report()
    assert hosts_of(found).passing == NAMES
    skipped = replace(found, run=replace(found.run, stages=(StageRecord("node", 0.0, 0.0, skipped="no node"),)))
    assert hosts_of(skipped) == Hosts(unknown=NAMES)
    assert hosts_of(replace(found, exit_code=130)) == Hosts(unknown=NAMES)


def slurm() -> Claim:
    """A batch header."""
    return claim("nodes", 11, source="slurm", at=span("train.sbatch", snippet="#SBATCH --nodes=11"))


@pytest.mark.parametrize(
    ("of", "ways"),
    [
        (job(slurm()), ("sbatch --exclude=node[3,10] train.sbatch",)),
        (
            job(launches=(Launch("run.sh:3", "deepspeed", span()),)),
            ('deepspeed --exclude="node3@node10"',),
        ),
    ],
)
def test_it_prints_how_to_exclude_nodes(of: Job, ways: tuple[str, ...]) -> None:
    found = report(broken("node3", "node10"), of=of)
    assert commands_without_failing(found, hosts_of(found)) == ways


def test_all_nodes_cannot_be_excluded() -> None:
    found = report(broken(*NAMES))
    assert hosts_of(found) == Hosts((), NAMES, ())
    assert commands_without_failing(found, hosts_of(found)) == ()


def test_the_text_names_both_lists() -> None:
    from preflight.reporters.text import REPORTER

    text = REPORTER.render(report(broken("node3"), of=job(slurm())), Style()).decode()
    assert "not fit: node3; fit: node[1-2,4-11]" in text
    assert "sbatch --exclude=node3" in text
    assert "not fit" not in REPORTER.render(report(), Style()).decode()
