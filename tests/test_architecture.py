"""Imports run downward through the layers, and the description of the architecture names every package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_imports_keep_the_contracts_of_pyproject() -> None:
    paths = [str(ROOT), str(ROOT / "checks"), str(ROOT / "rules")]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_core_has_few_top_level_modules() -> None:
    entries = {path.name for path in (ROOT / "preflight").iterdir() if not path.name.startswith("__")} - {"py.typed"}
    assert len(entries) <= 16, sorted(entries)


def test_every_package_is_named_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    tops = {path.parent for path in (ROOT / "preflight").glob("*/__init__.py")}
    packs = {ROOT / "checks" / "preflight_checks", ROOT / "rules" / "preflight_rules", ROOT / "reference_trainer"}
    missing = [str(folder.relative_to(ROOT)) for folder in tops | packs if f"{folder.relative_to(ROOT)}/`" not in text]
    assert not missing
