"""The CTRF report."""

from __future__ import annotations

from preflight.reporters.base import Style
from preflight.reporters.ctrf import REPORTER
from tests.reporters.consumers import read_ctrf
from tests.reporters.full_report import everything


def test_every_status_keeps_its_word() -> None:
    report = everything()
    results = read_ctrf(REPORTER.render(report, Style()), report)["results"]
    assert [(test["name"], test["status"], test["rawStatus"]) for test in results["tests"]] == [
        ("verdict", "failed", "no-go"),
        ("TST001 fault-tst001 (run.sh:3)", "failed", "error"),
        ("TST002 fault-tst002 (run.sh:9)", "skipped", "suppressed"),
        ("TST003 fault-tst003 (run.sh)", "passed", "pass"),
        ("TST501 fault-tst501 (node[1-2])", "skipped", "warning"),
        ("TST502 fault-tst502 (GPUs of node3)", "other", "unknown"),
        ("TST502 fault-tst502 (RDMA)", "skipped", "unknown"),
    ]
    assert results["environment"] == {"healthy": False}
    assert results["extra"]["stage_durations_ms"] == {"open": 250, "node": 1750, "link": 0}


def test_a_finding_has_its_location_and_the_times_of_the_run() -> None:
    report = everything()
    results = read_ctrf(REPORTER.render(report, Style()), report)["results"]
    finding = results["tests"][1]
    assert (finding["filePath"], finding["line"], finding["suite"]) == ("jobs/train, v2.sbatch", 3, ["lint"])
    assert finding["trace"].endswith("fix: Say 2")
    summary = results["summary"]
    assert (summary["start"], summary["stop"] - summary["start"]) == (1767323045000, 2000)
