"""The report as one page for a browser: a single file, no network, readable without scripts."""

from __future__ import annotations

from preflight.report import Report
from preflight.reporters.base import Style


class HtmlReporter:
    """What a person opens, keeps, sends to a colleague or prints."""

    name = "html"

    def render(self, report: Report, style: Style) -> bytes:
        """The page in UTF-8; `style` has no influence."""
        # Here, so that whoever asks for another format loads no template engine.
        from preflight.reporters.html.page import page_of
        from preflight.reporters.html.write import written

        return written(page_of(report))


REPORTER = HtmlReporter()
