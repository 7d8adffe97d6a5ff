"""The incidents of the TOML files beside this module, and what lint says of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from preflight import api
from preflight.outcome import Finding, Severity

FOLDER = Path(__file__).parent
toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


@dataclass(frozen=True)
class Incident:
    """One reported failure.

    `finds` is everything that lint says at warning or above, as `RULE path:line severity`, the one that names the
    cause first; `reason` why there is nothing, where files alone cannot or should not tell. `mended` is the same
    job without the fault, of which nothing is said at warning or above. `together`: the files are named on the
    command line, so that they are certainly one job.
    """

    source: str
    fault: str
    files: Mapping[str, str]
    finds: tuple[str, ...] = ()
    reason: str = ""
    mended: Mapping[str, str] = field(default_factory=dict)
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


def linted(files: Mapping[str, str], folder: Path, *, together: bool = False) -> list[Finding]:
    """What lint says at warning or above of files written into `folder`."""
    for name, text in files.items():
        (folder / name).write_text(text.removeprefix("\n"))
    paths = [folder / name for name in files] if together else [folder]
    findings = api.lint(paths, root=folder).findings
    return [finding for finding in findings if finding.severity is not Severity.INFO]


def said(finding: Finding) -> str:
    """`RULE path:line severity`."""
    first = finding.locations[0]
    return f"{finding.id} {first.path}:{first.line} {finding.severity.value}"


def table() -> str:
    """All incidents with what lint says of each, as Markdown."""
    lines = [
        "# Incidents",
        "",
        "Failures that people reported, and what `preflight lint` says of the smallest job with the same fault.",
        "The jobs stand in `tests/incidents/`; a test runs them, and the same jobs without the fault.",
        "",
        "| reported in | fault | what lint says, or why it says nothing |",
        "|---|---|---|",
    ]
    for incident in incidents():
        answer = f"`{incident.finds[0]}`" if incident.finds else incident.reason
        lines.append(f"| {incident.source} | {incident.fault} | {answer} |")
    return "\n".join(lines) + "\n"
