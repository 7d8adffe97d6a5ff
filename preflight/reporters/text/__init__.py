"""The report for a person at a terminal."""

from __future__ import annotations

from preflight._util.terminal import encoded
from preflight.engine.report import Report
from preflight.reporters.base import Style


class TextReporter:
    """Renders the text that a person reads."""

    name = "text"
    #: A summary is shown if the report does not fit the height in `style`.
    shortens = True

    def render(self, report: Report, style: Style) -> bytes:
        # Imported here so that other formats do not load the terminal library.
        from preflight.reporters.text.full_report import page
        from preflight.reporters.text.summary import brief, concise, fits

        if style.concise:
            return encoded(concise(report, style), style.encoding)
        whole = page(report, style)
        if fits(whole, style):
            return encoded(whole, style.encoding)
        return encoded(brief(report, style), style.encoding)


REPORTER = TextReporter()
