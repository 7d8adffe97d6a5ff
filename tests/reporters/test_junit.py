"""The JUnit XML of a report."""

from __future__ import annotations

import junitparser
import pytest

from preflight.engine.report import Report, crashed
from preflight.reporters.base import Style
from preflight.reporters.junit import REPORTER
from tests.builders import judged, make_recording
from tests.reporters.consumers import read_junit
from tests.reporters.full_report import everything


def parsed(report: Report) -> dict[str, junitparser.TestCase]:
    """Every case by `class name`."""
    suites = read_junit(REPORTER.render(report, Style()), report)
    return {f"{case.classname} {case.name}": case for suite in suites for case in suite}


def test_every_status_has_its_place() -> None:
    cases = parsed(everything())
    kinds = {name: [(type(r).__name__, r.type, r.message) for r in case.result] for name, case in cases.items()}
    assert kinds == {
        "preflight verdict": [("Failure", "no-go", "no-go: findings make it no-go")],
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
    suites = junitparser.JUnitXml.fromstring(REPORTER.render(report, Style()))
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
