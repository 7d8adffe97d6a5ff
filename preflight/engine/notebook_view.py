"""A report as a notebook shows it: the verdict, and a table of findings."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from preflight._util.sanitize import clean, fold_nodes

if TYPE_CHECKING:
    from preflight.engine.report import Report
    from preflight.model.findings import Finding

#: A notebook keeps what it shows; more is in the report.
_MAX_FINDINGS = 50
_MAX_LENGTH = 1000
_TOP = "vertical-align:top;text-align:left"


def notebook_view(report: Report, numbers: str) -> str:
    """HTML without scripts, styles of its own, or anything of a stranger but text."""
    head = f"<p><strong>{_text(report.verdict.value)}</strong> {_text(numbers)}</p>"
    rows = "".join(map(_row, report.findings[:_MAX_FINDINGS]))
    left = len(report.findings) - _MAX_FINDINGS
    more = f"<p>and {left} more in <code>report.findings</code></p>" if left > 0 else ""
    names = "".join(f'<th style="{_TOP}">{name}</th>' for name in ("severity", "rule", "where", "what"))
    table = f"<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    return f"<div>{head}{table}{more}</div>"


def _row(finding: Finding) -> str:
    place = next((f"{place.path}:{place.line}" for place in finding.locations), "")
    where = " ".join(filter(None, (place, fold_nodes(finding.nodes)))) or finding.subject
    fix = f"\nFix: {finding.remedy}" if finding.remedy else ""
    cells = (finding.severity.value, f"{finding.id} {finding.name}", where, f"{finding.message}{fix}")
    return "<tr>" + "".join(f'<td style="{_TOP}">{_text(cell)}</td>' for cell in cells) + "</tr>"


def _text(text: str) -> str:
    plain = clean(text[:_MAX_LENGTH], keep_newlines=True)
    return html.escape(plain + (" …" if len(text) > _MAX_LENGTH else "")).replace("\n", "<br>")
