"""Each row of torch.toml: its rule finds the wrong job at the place and with the severity that the row names; the right
job has no error and not that finding; the open one has no error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from preflight._util import toml
from preflight.model.findings import Finding
from preflight.plugins import registry
from preflight.sources.discovery.assemble import assemble
from tests.constraints.torch_jobs import Files, build
from tests.rules.rule_builders import judged

ROWS: list[dict[str, Any]] = toml.loads(Path(__file__).with_name("torch.toml").read_text())["row"]
RULES = list(registry.rules())
CHUNKS = 6
#: Rows that files can decide and no rule finds yet; the number may only fall.
MISSED = 55


def findings(folder: Path, files: Files) -> list[Finding]:
    """What all rules find in the files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    jobs = assemble(folder, [folder], sources=registry.sources())
    outcomes = (outcome for rule in RULES for outcome in judged(rule, jobs))
    return [outcome.finding for outcome in outcomes if outcome.finding is not None]


def place(finding: Finding, files: Files) -> str:
    """The text from the place of a finding on."""
    first = finding.locations[0]
    lines = files.get(first.path, "").splitlines()
    return lines[first.line - 1][first.column - 1 :] if 0 < first.line <= len(lines) else ""


def faults(row: dict[str, Any], folder: Path) -> list[str]:
    """What is not as the row says."""
    found: list[str] = []
    for which in ("right", "open"):
        for finding in findings(folder / which, build(row, which)) if which in row else ():
            if finding.severity.value == "error" or (which == "right" and finding.id == row.get("finds")):
                found.append(f"{row['id']} {which}: {finding.id} {finding.message}")
    if "finds" in row:
        files = build(row, "wrong")
        wrong = findings(folder / "wrong", files)
        named = [f for f in wrong if f.id == row["finds"] and f.severity.value == row["severity"]]
        if not any(place(finding, files).startswith(row["at"]) for finding in named):
            found.append(f"{row['id']} wrong: {[(f.id, f.severity.value, place(f, files)) for f in wrong]}")
    return found


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_rows(chunk: int, tmp_path: Path) -> None:
    rows = [row for row in ROWS if "not" not in row][chunk::CHUNKS]
    found = [fault for number, row in enumerate(rows) for fault in faults(row, tmp_path / str(number))]
    assert not found, "\n".join(found)


def test_every_row_is_found_or_says_why_not() -> None:
    assert all("wrong" in row and "right" in row for row in ROWS if "not" not in row)
    assert all(row["not"].endswith(".") for row in ROWS if "not" in row)
    assert sum("not" not in row and "finds" not in row for row in ROWS) <= MISSED
