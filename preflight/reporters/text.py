"""The report for a person at a terminal."""

from __future__ import annotations

from preflight.report import Report
from preflight.reporters.base import Style
from preflight.terminal import encoded


class TextReporter:
    """What a person reads."""

    name = "text"
    #: What a screen is too low for is told in short, when `style` says how low it is.
    shortens = True

    def render(self, report: Report, style: Style) -> bytes:
        """The report as text, with ANSI colours when `style` asks for them."""
        # Here, so that a report for a program does without a terminal library.
        from preflight.reporters.brief import brief, fits
        from preflight.reporters.concise import concise
        from preflight.reporters.page import page

        if style.concise:
            return encoded(concise(report, style), style.encoding)
        whole = page(report, style)
        if fits(whole, style):
            return encoded(whole, style.encoding)
        return encoded(brief(report, style), style.encoding)


REPORTER = TextReporter()
