"""`--history` of the commands that use nodes, and `preflight history`, as their users run them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.builders import assert_follows_schema
from tests.services.fleet_page.running import fetched, serving

pytestmark = pytest.mark.thorough

PAGE = Path(__file__).parents[3] / "docs" / "history.md"


def run(*arguments: str, cwd: Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a separate process."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("preflight")), *arguments],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


_NODES = ("nodes", "--on", "local", "--until", "node", "--select", "NOD")


def test_a_run_is_remembered_and_told(tmp_path: Path) -> None:
    done = run(*_NODES, "--history", "sqlite:///h.db", "--save", "run.json", "--expect", "os=plan9", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    told = run("history", "--history", "sqlite:///h.db", "--add", "run.json", "-o", "json", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    account = assert_follows_schema(told.stdout.encode(), "history")
    # The same run is not there twice.
    assert account["runs"] == 1
    (node,) = account["nodes"]
    assert (node["state"], node["failures"], node["healthy_since"]) == ("failing", 1, None)
    assert node["properties"]["kernel"] == os.uname().release
    text = run("history", "-v", cwd=tmp_path, environment={"PREFLIGHT_HISTORY": "sqlite:///h.db"})
    assert text.returncode == 0
    assert "1 run of 1 node (sqlite:///h.db)" in text.stdout and "failing now, failed 1 time in 1 run" in text.stdout
    empty = run("history", "--history", "sqlite:///h.db", "--hosts", "other", "-o", "hosts", cwd=tmp_path)
    assert (empty.returncode, empty.stdout) == (0, "")


def test_a_wrong_address_is_found_before_the_run(tmp_path: Path) -> None:
    done = run(*_NODES, "--history", "postgresql://me:hidden-word@127.0.0.1:1/x", cwd=tmp_path)
    assert done.returncode == 2 and "cannot be opened" in done.stderr
    assert "hidden-word" not in done.stdout + done.stderr and "checking the nodes" not in done.stderr


def test_the_report_is_written_although_the_history_cannot_be(tmp_path: Path) -> None:
    """The database is lost during the run."""
    script = (
        "import sys\n"
        "from preflight.cli import main\n"
        "from preflight._util.usage_error import UsageError\n"
        "from preflight.commands.history import writer\n"
        "def fail(*arguments, **options):\n"
        "    raise UsageError('sqlite:///h.db cannot be written: database is locked')\n"
        "writer.add_run = fail\n"
        "sys.exit(main.run(sys.argv[1:]))\n"
    )
    options = ("--save", "run.json", "-o", "json:report.json", "--history", "sqlite:///h.db")
    done = subprocess.run(
        [sys.executable, "-c", script, *_NODES, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "not in the history: sqlite:///h.db cannot be written" in done.stderr
    assert "preflight history --add run.json" in done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["exit_code"] == 0
    added = run("history", "--history", "sqlite:///h.db", "--add", "report.json", cwd=tmp_path)
    assert added.returncode == 0 and "1 run of 1 node" in added.stdout


def test_a_configuration_names_the_database_only_if_the_user_names_it(tmp_path: Path) -> None:
    (tmp_path / "preflight.toml").write_text('history = "sqlite:///h.db"\nhistory-keep = "30d"\n')
    found = run(*_NODES, cwd=tmp_path)
    assert found.returncode == 2 and "preflight.toml:1:" in found.stderr and "--config" in found.stderr
    named = run(*_NODES, "--config", "preflight.toml", cwd=tmp_path)
    assert named.returncode == 0, named.stderr
    assert (tmp_path / "h.db").exists()
    assert run("history", "--config", "preflight.toml", cwd=tmp_path).returncode == 0


def test_usage_errors(tmp_path: Path) -> None:
    for arguments, words in (
        (("history",), "which history?"),
        (("history", "--history", "sqlite:///h.db", "--since", "5y"), "--since 5y"),
        (("history", "--history", "sqlite:///absent.db"), "no such file"),
        (("history", "--history", "sqlite:///h.db", "--add", "absent.json"), "absent.json cannot be read"),
        ((*_NODES, "--history", "sqlite:///h.db", "--history-keep", "5"), "--history-keep 5"),
    ):
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    assert not (tmp_path / "absent.db").exists()


def test_the_five_commands_of_the_page(tmp_path: Path) -> None:
    """From nothing to a page with the failures of the night: all but the installation, on this machine as one node."""
    section = PAGE.read_text().partition("## Every night")[2]
    commands = re.search(r"```text\n(.*?)```", section, re.DOTALL)
    assert commands is not None
    lines = commands[1].splitlines()
    assert len(lines) == 5 and "venv" in lines[0] and 'install "preflight-train[history,serve]"' in lines[1]
    cron = shlex.split(lines[4])
    assert cron[0] == "echo" and cron[2:] == [">", "/etc/cron.d/preflight"]
    nightly = cron[1].split(" root ", 1)[1]
    (tmp_path / "preflight").mkdir()
    for command in (lines[3], nightly):
        words = shlex.split(command.replace("/var/lib/", f"{tmp_path}/"))
        assert words[0] == "/opt/preflight/bin/preflight"
        at = words.index("--hosts")
        words[at : at + 2] = ["--on", "local", "--until", "node", "--select", "NOD", "--expect", "os=plan9"]
        done = run(*words[1:], cwd=tmp_path)
        assert done.returncode == 1, done.stderr
    assert "NOD005" in (tmp_path / "preflight" / "last.html").read_text()
    assert (tmp_path / "preflight" / "failing-hosts").read_text() == "local0\n"
    told = run("history", "--history", f"sqlite:///{tmp_path}/preflight/history.db", cwd=tmp_path)
    assert "2 runs of 1 node" in told.stdout
    served = re.search(r"^    /opt/preflight/bin/preflight serve (.*)$", section, re.MULTILINE)
    assert served is not None
    words = shlex.split(served[1].replace("/var/lib/", f"{tmp_path}/"))
    with serving(*words, cwd=tmp_path) as (url, _):
        page = fetched(url)
        assert "NOD005" in page and "/node/local0" in page and "2</span></h2>" in page
