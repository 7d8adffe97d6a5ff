"""Which colour means what, the same in every text that a person reads."""

from __future__ import annotations

from preflight.outcome import Severity, VerdictKind

SEVERITIES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
VERDICTS = {
    VerdictKind.GO: "bold green",
    VerdictKind.NO_GO: "bold red",
    VerdictKind.INCOMPLETE: "bold yellow",
}
