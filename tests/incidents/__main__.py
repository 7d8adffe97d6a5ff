"""Write the table of incidents anew: `python -m tests.incidents`."""

from pathlib import Path

from tests.incidents.cases import table

if __name__ == "__main__":
    (Path(__file__).parent.parent.parent / "docs" / "incidents.md").write_text(table())
