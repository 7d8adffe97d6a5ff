"""What a reporter is: it turns a report into the bytes of one format and does nothing else."""

from __future__ import annotations

from typing import Protocol

from preflight.lazy.dataclasses import dataclass
from preflight.report import Report


class ReporterError(Exception):
    """A report cannot be written in this format."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a person's terminal wants it: width in columns, colours or not, and how much to say.

    `verbosity` is -1 for findings and verdict alone, 1 for what passed and what could not be told, 2 for everything.
    `statistics` wants a count for each rule instead of the findings themselves, `concise` one line for each finding.
    `height` is how many rows there are, where what does not fit shall be told in short; `rest` is the command that
    shows all of it then. `encoding` is what the reader's terminal takes.
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
    """Writes one format. `name` is what `--output` takes."""

    name: str

    def render(self, report: Report, style: Style) -> bytes:
        """The whole report in this format; the same report gives the same bytes."""
        ...
