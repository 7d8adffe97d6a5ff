"""sarif-tools, a third-party viewer, opens SARIF logs and lists the findings of the report."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from preflight.engine.report import Report
from preflight.model.findings import Severity
from preflight.reporters.base import Style
from preflight.reporters.sarif import REPORTER
from tests.reporters.full_report import everything
from tests.reporters.generated import reports

pytestmark = pytest.mark.thorough

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The viewer's module that reads logs. It is imported alone, because its drawing libraries are not installed."""
    folder = Path(sys.prefix) / "sarif-tools"
    if not (folder / "sarif").is_dir():
        pytest.skip("no sarif-tools in .venv/sarif-tools (make test installs it)")
    monkeypatch.syspath_prepend(str(folder))
    import sarif.loader  # type: ignore[import-not-found]

    return sarif.loader


def opened(loader: Any, folder: Path, report: Report) -> Any:
    """The log of a report, loaded by the viewer."""
    path = folder / "report.sarif"
    path.write_bytes(REPORTER.render(report, Style()))
    return loader.load_sarif_files(str(path))


def test_a_hundred_logs_have_a_record_per_finding_and_undecided_check(loader: Any, tmp_path: Path) -> None:
    for report in reports():
        found = opened(loader, tmp_path, report)
        findings = (*report.findings, *report.suppressed)
        required = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
        expected = Counter((finding.id, _LEVELS[finding.severity]) for finding in findings)
        expected += Counter((outcome.id, "none") for outcome in required)
        records = found.get_records()
        assert Counter((record["Code"], record["Severity"]) for record in records) == expected
        places = {quote(f.locations[0].path, errors="replace") for f in findings if f.locations}
        assert places <= {record["Location"] for record in records}


def test_the_list_names_locations_and_nodes(loader: Any, tmp_path: Path) -> None:
    from sarif.operations import csv_op  # type: ignore[import-not-found]

    csv_op.generate_csv(opened(loader, tmp_path, everything()), str(tmp_path / "list.csv"), output_multiple_files=False)
    with (tmp_path / "list.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["Severity"], row["Location"], row["Line"]) for row in rows] == [
        ("error", "jobs/train%2C%20v2.sbatch", "3"),
        ("error", "run.sh", "9"),
        ("warning", "run.sh", "1"),
        ("none", "run.sh", "4"),
    ]
    assert "on node[1-2]" in rows[2]["Description"]
