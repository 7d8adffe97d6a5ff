"""A page in Markdown for the summary of a GitHub Actions job: `--output github-summary:$GITHUB_STEP_SUMMARY`.

GitHub takes 1 MiB of a step and drops a longer summary whole, so what does not fit is counted instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Finding, Outcome, Severity
from preflight.report import Report
from preflight.reporters.base import Style
from preflight.reporters.clean import clean, fold_nodes
from preflight.reporters.github import summary_of

#: So much may a table take; there are two, and what stands around them is short.
_MOST_BYTES = 400_000
_LONGEST_CELL = 2000
_SIGNS = {Severity.ERROR: "❌ error", Severity.WARNING: "⚠️ warning", Severity.INFO: "ℹ️ info"}
#: Everything in ASCII that Markdown or HTML may take for more than itself.
_MARKUP = lazy_pattern(r"([\\`*_{}\[\]()#+\-.!|~$^:/@=\"'])")


class GithubSummaryReporter:
    """The verdict, a table of findings, and what could not be told."""

    name = "github-summary"

    def render(self, report: Report, style: Style) -> bytes:
        """The page in UTF-8; `style` has no influence."""
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
    required = [outcome for outcome in report.coverage.not_told if outcome.required]
    if required:
        yield from _table(("could not be told", "of", "why"), map(_of_outcome, required))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    taken, left_out = 0, 0
    for row in rows:
        line = f"| {' | '.join(row)} |"
        taken += len(line.encode("utf-8", "replace")) + 1
        if taken > _MOST_BYTES:
            left_out += 1
        else:
            yield line
    if left_out:
        yield ""
        yield f"and {left_out} more, which do not fit here"


def _of_finding(finding: Finding) -> tuple[str, ...]:
    place = next((f"{one.path}:{one.line}" for one in finding.locations), "")
    where = "<br>".join(_text(one) for one in (place, fold_nodes(finding.nodes)) if one)
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
    """The text as nothing but text: markup escaped, on one line of the file."""
    shown = clean(text, keep_newlines=True)
    if len(shown) > _LONGEST_CELL:
        shown = f"{shown[:_LONGEST_CELL]} …"
    escaped = _MARKUP.sub(r"\\\1", shown).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "<br>".join(line.strip() for line in escaped.split("\n"))


REPORTER = GithubSummaryReporter()
