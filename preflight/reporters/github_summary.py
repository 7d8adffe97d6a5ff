"""A Markdown page for the summary of a GitHub Actions job: `--output github-summary:$GITHUB_STEP_SUMMARY`.

GitHub accepts 1 MiB per step and drops a longer summary entirely, so what does not fit is only counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from preflight._util.sanitize import clean, fold_nodes
from preflight.engine.report import Report
from preflight.model.findings import Finding, Outcome, Severity
from preflight.reporters.base import Style
from preflight.reporters.github import summary_of

#: Largest size of a table. There are two, and the rest of the page is short.
_MAX_BYTES = 400_000
_MAX_CELL_LENGTH = 2000
_SIGNS = {Severity.ERROR: "❌ error", Severity.WARNING: "⚠️ warning", Severity.INFO: "ℹ️ info"}
#: ASCII characters that Markdown or HTML may interpret.
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+\-.!|~$^:/@=\"'])")


class GithubSummaryReporter:
    """Renders the verdict, a table of findings, and what could not be decided."""

    name = "github-summary"

    def render(self, report: Report, style: Style) -> bytes:
        """Render the page in UTF-8; `style` is ignored."""
        return "".join(f"{line}\n" for line in _lines(report)).encode("utf-8", "replace")


def _lines(report: Report) -> Iterator[str]:
    yield f"## preflight {_text(report.run.verb)}: {_text(report.verdict.value)}"
    yield ""
    yield _text(summary_of(report))
    for broken in report.coverage.broken:
        yield ""
        yield _text(f"{broken.where} of {broken.plugin} cannot be used: {broken.why}")
    if report.findings:
        yield from _table(("", "rule", "where", "what, and what to do"), map(_of_finding, report.findings))
    required = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    if required:
        yield from _table(("could not be decided", "of", "why"), map(_of_outcome, required))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    taken, left_out = 0, 0
    for row in rows:
        line = f"| {' | '.join(row)} |"
        taken += len(line.encode("utf-8", "replace")) + 1
        if taken > _MAX_BYTES:
            left_out += 1
        else:
            yield line
    if left_out:
        yield ""
        yield f"and {left_out} more that do not fit here"


def _of_finding(finding: Finding) -> tuple[str, ...]:
    place = next((f"{location.path}:{location.line}" for location in finding.locations), "")
    where = "<br>".join(_text(location) for location in (place, fold_nodes(finding.nodes)) if location)
    fix = f"\nFix: {finding.remedy}" if finding.remedy else ""
    return (
        _SIGNS[finding.severity],
        f"{_text(finding.id)} {_text(finding.name)}",
        where or _text(finding.subject),
        _text(f"{finding.message}{fix}"),
    )


def _of_outcome(outcome: Outcome) -> tuple[str, ...]:
    return f"{_text(outcome.id)} {_text(outcome.name)}", _text(outcome.subject), _text(outcome.reason)


def _text(text: str) -> str:
    """Return the text as one line with all markup escaped."""
    shown = clean(text, keep_newlines=True)
    if len(shown) > _MAX_CELL_LENGTH:
        shown = f"{shown[:_MAX_CELL_LENGTH]} …"
    escaped = _MARKUP.sub(r"\\\1", shown).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "<br>".join(line.strip() for line in escaped.split("\n"))


REPORTER = GithubSummaryReporter()
