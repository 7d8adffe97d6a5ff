"""The incidents of the TOML files beside this module, and the findings of lint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from preflight import api
from preflight._util import toml
from preflight.model.findings import Finding, Severity

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Incident:
    """One reported failure.

    `finds` are the findings of lint at warning or above, as `RULE path:line severity`, the cause first; `reason` tells
    why there are none, if files alone cannot or should not show the fault. `repaired` is the same job without the
    fault, which has no finding at warning or above. `together`: the files are named on the command line, so that they
    are certainly one job.
    """

    source: str
    fault: str
    files: Mapping[str, str]
    finds: tuple[str, ...] = ()
    reason: str = ""
    repaired: Mapping[str, str] = field(default_factory=dict)
    together: bool = False
    subject: str = ""


def incidents() -> tuple[Incident, ...]:
    """Every incident, by file and in the order written."""
    found: list[Incident] = []
    for path in sorted(FOLDER.glob("*.toml")):
        for item in toml.loads(path.read_text())["incident"]:
            item["finds"] = tuple(item.get("finds", ()))
            found.append(Incident(subject=path.stem, **item))
    return tuple(found)


def lint_files(files: Mapping[str, str], folder: Path, *, together: bool = False) -> list[Finding]:
    """The findings of lint at warning or above for files written into `folder`."""
    for name, text in files.items():
        (folder / name).write_text(text.removeprefix("\n"))
    paths = [folder / name for name in files] if together else [folder]
    findings = api.lint(paths, root=folder).findings
    return [finding for finding in findings if finding.severity is not Severity.INFO]


def format_finding(finding: Finding) -> str:
    """`RULE path:line severity`."""
    first = finding.locations[0]
    return f"{finding.id} {first.path}:{first.line} {finding.severity.value}"


def table() -> str:
    """All incidents with the findings of lint, as Markdown."""
    lines = [
        "# Incidents",
        "",
        "Failures that people reported, and the first finding of `preflight lint` for a minimal job with each fault.",
        "The jobs are in `tests/incidents/`; a test runs them, and the same jobs without the fault.",
        "",
        "| reported in | fault | finding, or why there is none |",
        "|---|---|---|",
    ]
    for incident in incidents():
        answer = f"`{incident.finds[0]}`" if incident.finds else incident.reason
        lines.append(f"| {incident.source} | {incident.fault} | {answer} |")
    return "\n".join(lines) + "\n"
