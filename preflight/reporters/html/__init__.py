"""The report as one HTML page: a single file that needs no network and is readable without scripts."""

from __future__ import annotations

from preflight.engine.report import Report
from preflight.reporters.base import Style


class HtmlReporter:
    """Renders a page to open, keep, send to a colleague or print."""

    name = "html"

    def render(self, report: Report, style: Style) -> bytes:
        # Imported here so that other formats do not load the template engine.
        from preflight.reporters.html.page import page_bytes, page_of

        return page_bytes(page_of(report))


REPORTER = HtmlReporter()
