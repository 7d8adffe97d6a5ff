"""The report for a person at a terminal."""

from __future__ import annotations

from preflight.report import Report
from preflight.reporters.base import Style


class TextReporter:
    """What a person reads."""

    name = "text"

    def render(self, report: Report, style: Style) -> bytes:
        """The report as text in UTF-8, with ANSI colours when `style` asks for them."""
        # Here, so that a report for a program does without a terminal library.
        from preflight.reporters.page import page

        return page(report, style).encode("utf-8", "replace")


REPORTER = TextReporter()
