"""Regenerates the page of incidents: `python -m tests.incidents`."""

from pathlib import Path

from tests.incidents.cases import table
from tests.incidents.reports import reports_text

if __name__ == "__main__":
    (Path(__file__).parent.parent.parent / "docs" / "incidents.md").write_text(table() + reports_text())
