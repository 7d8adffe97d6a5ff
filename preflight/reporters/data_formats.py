"""The report as data: the JSON document, CSV with a row for each finding, lists of nodes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass

from preflight._util.sanitize import clean, fold_nodes
from preflight.engine.report import Hosts, Report, hosts_of, to_json
from preflight.model.findings import Finding
from preflight.reporters.base import Style


@dataclass(frozen=True, slots=True)
class JsonReporter:
    """Renders everything, for programs; with `compact`, without the outcomes that passed or do not apply."""

    name: str = "json"
    compact: bool = False

    def render(self, report: Report, style: Style) -> bytes:
        return to_json(report, compact=self.compact)


JSON = JsonReporter()
COMPACT_JSON = JsonReporter("json:compact", compact=True)


COLUMNS = ("severity", "id", "name", "path", "line", "column", "nodes", "subject", "message", "remedy", "suppressed_by")
#: Spreadsheets treat a cell that begins with one of these characters as a formula (OWASP, "CSV Injection").
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class CsvReporter:
    """Renders the findings as rows, suppressed ones last, below a header row."""

    name: str = "csv"

    def render(self, report: Report, style: Style) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(COLUMNS)
        writer.writerows(_row(finding) for finding in (*report.findings, *report.suppressed))
        return text.getvalue().encode("utf-8", "replace")


def _row(finding: Finding) -> list[str]:
    place = finding.locations[0] if finding.locations else None
    cells = (
        finding.severity.value,
        finding.id,
        finding.name,
        place.path if place else "",
        str(place.line) if place else "",
        str(place.column) if place else "",
        fold_nodes(finding.nodes),
        finding.subject,
        finding.message,
        finding.remedy,
        finding.suppressed_by,
    )
    return [_cell(cell) for cell in cells]


def _cell(text: str) -> str:
    text = clean(text, keep_newlines=True)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


CSV = CsvReporter()


@dataclass(frozen=True, slots=True)
class HostsReporter:
    """Renders one of the report's lists of nodes in rank order. An empty list gives an empty file."""

    name: str
    chosen: Callable[[Hosts], tuple[str, ...]]

    def render(self, report: Report, style: Style) -> bytes:
        return "".join(f"{clean(name)}\n" for name in self.chosen(hosts_of(report))).encode("utf-8", "replace")


PASSING = HostsReporter("passing-hosts", lambda hosts: hosts.passing)
FAILING = HostsReporter("failing-hosts", lambda hosts: hosts.failing)
UNKNOWN = HostsReporter("unknown-hosts", lambda hosts: hosts.unknown)
