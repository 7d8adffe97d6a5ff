"""The hook, run by pre-commit from a local clone: it installs this repository with pip, and rejects a commit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
BROKEN = ROOT / "examples" / "torchrun-two-nodes" / "broken"
GOOD = ROOT / "examples" / "torchrun-two-nodes" / "good"


def git(folder: Path, *words: str) -> str:
    """Run a git command in a folder, with a dummy author."""
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "protocol.file.allow=always"]
    command = ["git", *who, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_hook_rejects_a_broken_job_and_accepts_a_good_one(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not in a git checkout")
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{ROOT}", "clone")
    revision = git(tmp_path / "clone", "rev-parse", "HEAD")
    mine = tmp_path / "mine"
    shutil.copytree(BROKEN, mine / "jobs")
    (mine / ".pre-commit-config.yaml").write_text(
        f"repos:\n  - repo: {tmp_path / 'clone'}\n    rev: {revision}\n    hooks: [{{id: preflight-lint}}]\n"
    )
    git(mine, "init", "--quiet")
    git(mine, "add", ".")
    # The machine decides where packages come from: PIP_* and proxies are passed on with everything else.
    environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "home"), "PRE_COMMIT_COLOR": "never"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-m", "pre_commit", "run", "--all-files"]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=mine, env=environment, capture_output=True, text=True, timeout=170, check=False
        )

    stopped = run()
    assert stopped.returncode == 1 and "RDV001" in stopped.stdout, stopped.stdout + stopped.stderr
    for path in GOOD.iterdir():
        shutil.copy(path, mine / "jobs")
    git(mine, "add", ".")
    passed = run()
    assert passed.returncode == 0 and "Passed" in passed.stdout, passed.stdout
