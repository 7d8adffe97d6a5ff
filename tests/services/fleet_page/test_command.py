"""`preflight serve` as its users run it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.fleet_page.running import TOKEN, fetched, serving, small_history

pytestmark = pytest.mark.thorough

PROGRAM = str(Path(sys.executable).with_name("preflight"))


def refused(*arguments: str, cwd: Path) -> str:
    """What a command says that does not start."""
    done = subprocess.run(
        [PROGRAM, "serve", "--listen", "127.0.0.1:0", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_it_serves_until_it_is_stopped_and_logs_no_token(tmp_path: Path) -> None:
    small_history(tmp_path, nights=2)
    environment = {"PREFLIGHT_SERVE_TOKEN": TOKEN, "PREFLIGHT_HISTORY": "sqlite:///history.db"}
    before = (tmp_path / "history.db").read_bytes()
    with serving(cwd=tmp_path, environment=environment) as (url, process):
        assert "node0008" in fetched(url, TOKEN)
        assert "node0008" not in fetched(url, "another-token-0123456789")
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    assert process.returncode in (0, 143, -signal.SIGTERM), said
    assert TOKEN not in said and "Traceback" not in said
    assert (tmp_path / "history.db").read_bytes() == before


def test_what_cannot_be_served_is_said_at_once(tmp_path: Path) -> None:
    assert "which history?" in refused(cwd=tmp_path)
    assert "no such file" in refused("--history", "sqlite:///absent.db", cwd=tmp_path)
    (tmp_path / "text.db").write_text("not a database" * 100)
    assert "cannot be read" in refused("--history", "sqlite:///text.db", cwd=tmp_path)
