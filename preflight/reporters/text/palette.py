"""The meaning of colours, the same in all text output."""

from __future__ import annotations

from preflight.model.findings import Severity, VerdictKind

SEVERITIES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
VERDICTS = {
    VerdictKind.GO: "bold green",
    VerdictKind.NO_GO: "bold red",
    VerdictKind.INCOMPLETE: "bold yellow",
    VerdictKind.NOT_JUDGED: "bold yellow",
}


def word(verdict: VerdictKind) -> str:
    """Return a verdict as it heads a report: `GO`, `NO-GO`, `INCOMPLETE`, `NOT JUDGED`."""
    return "NOT JUDGED" if verdict is VerdictKind.NOT_JUDGED else verdict.value.upper()
