"""The report as one JSON document, as the committed schema describes it."""

from __future__ import annotations

from preflight.report import Report, to_json
from preflight.reporters.base import Style


class JsonReporter:
    """Everything, for programs."""

    name = "json"

    def render(self, report: Report, style: Style) -> bytes:
        """The document; `style` has no influence."""
        return to_json(report)


REPORTER = JsonReporter()
