"""The findings as comma-separated values, one line each."""

from __future__ import annotations

import csv
import io

from preflight._util.sanitize import clean
from preflight.engine.report import Report
from preflight.reporters.base import Style


class CsvReporter:
    """`--output csv`, or `--output csv:findings.csv`."""

    name = "csv"

    def render(self, report: Report, style: Style) -> bytes:
        """A heading, then severity, id, location and message of each finding; `style` is ignored."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("severity", "id", "path", "line", "message"))
        for finding in report.findings:
            place = finding.locations[0] if finding.locations else None
            where = (place.path, place.line) if place else ("", "")
            writer.writerow((finding.severity.value, finding.id, *map(clean, map(str, where)), clean(finding.message)))
        return text.getvalue().encode("utf-8", "replace")
