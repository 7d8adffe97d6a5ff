"""The report as one JSON document, as described by the committed schema."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.engine.report import Report, to_json
from preflight.reporters.base import Style


@dataclass(frozen=True, slots=True)
class JsonReporter:
    """Renders everything, for programs; with `compact`, without the outcomes that passed or do not apply."""

    name: str = "json"
    compact: bool = False

    def render(self, report: Report, style: Style) -> bytes:
        """Render the document; `style` is ignored."""
        return to_json(report, compact=self.compact)


REPORTER = JsonReporter()
COMPACT = JsonReporter("json:compact", compact=True)
