"""The reporter protocol: a reporter renders a report as bytes in one format and does nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from preflight.engine.report import Report
from preflight.model.findings import Severity, VerdictKind


@dataclass(frozen=True, slots=True)
class Style:
    """How to render for a reader: width in columns, colours, and amount of detail.

    `verbosity` is -1 for findings and verdict only, 1 to add what passed and what could not be decided, 2 for
    everything. `statistics` counts findings per rule instead of listing them; `concise` prints one line per finding.
    `height` is the number of terminal rows if the report should be shortened to fit; `rest` is the command that then
    shows all of it. `encoding` is that of the terminal.
    """

    width: int = 100
    color: bool = False
    verbosity: int = 0
    statistics: bool = False
    concise: bool = False
    height: int | None = None
    rest: str = ""
    encoding: str = "utf-8"


class Reporter(Protocol):
    """Renders one format. `name` is the value of `--output`."""

    name: str

    def render(self, report: Report, style: Style) -> bytes:
        """Render the whole report. The same report always gives the same bytes."""
        ...


SEVERITIES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
VERDICTS = {
    VerdictKind.GO: "bold green",
    VerdictKind.NO_GO: "bold red",
    VerdictKind.INCOMPLETE: "bold yellow",
    VerdictKind.NOT_JUDGED: "bold yellow",
}


def word(verdict: VerdictKind) -> str:
    """Return the word for a verdict in the heading of a report: `GO`, `NO-GO`, `INCOMPLETE`, `NOT JUDGED`."""
    return "NOT JUDGED" if verdict is VerdictKind.NOT_JUDGED else verdict.value.upper()
