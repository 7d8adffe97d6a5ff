"""Every distributed shell script passes the linter, and documents its use."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

FOLDER = Path(__file__).resolve().parents[2] / "integrations"
SCRIPTS = sorted(path for path in FOLDER.rglob("*") if path.is_file() and path.read_bytes().startswith(b"#!/"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_plain_shell(path: Path) -> None:
    assert path.read_text().startswith("#!/bin/sh\n# ")
    assert os.access(path, os.X_OK)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout


def test_every_script_is_tested() -> None:
    assert {path.name for path in SCRIPTS} == {"psbatch", "prolog", "health-check", "spool", "apply"}
