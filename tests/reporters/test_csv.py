"""CSV as a spreadsheet or a data frame reads it."""

from __future__ import annotations

import csv
import io

import pytest

from preflight.engine.report import Report
from preflight.plugins.authoring import failed
from preflight.reporters.base import Style
from preflight.reporters.data_formats import COLUMNS, CSV
from tests.builders import job, judged, make_recording, make_rule, span
from tests.reporters.full_report import everything


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
