"""The units for a nightly check: systemd reads them, and their command runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

FOLDER = Path(__file__).resolve().parents[2] / "integrations" / "systemd"
SERVICE = FOLDER / "preflight-nightly.service"


def command_line() -> list[str]:
    """The words of ExecStart=, with the variables of systemd still in them."""
    (line,) = re.findall(r"^ExecStart=(.*)$", SERVICE.read_text(), re.MULTILINE)
    return shlex.split(line)


def test_the_command_writes_everything_that_the_page_names(tmp_path: Path) -> None:
    program, *words = command_line()
    assert program == "/opt/preflight/bin/preflight" and words[-1] == "$PREFLIGHT_OPTIONS"
    words = [word.replace("${STATE_DIRECTORY}", str(tmp_path)) for word in words[:-1]]
    options = ["--on", "local", "--select", "NOD", "--expect", "cpus>=1"]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("preflight")), *words, *options],
        env={"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache")},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("GO  nothing found; 1 node\n")
    assert {path.name for path in tmp_path.iterdir()} >= {
        "last.json.gz",
        "last.html",
        "last-report.json",
        "failing-hosts",
    }


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in FOLDER.iterdir():
        text = unit.read_text().replace("/opt/preflight/bin/preflight", "/bin/true").replace("User=preflight\n", "")
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and "preflight-nightly" not in done.stderr, done.stderr
