"""Output in CI: no text of a hostile tree is a command to the runner, in any command and format."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

JOB = """\
#!/bin/bash
#SBATCH --nodes=2
export NCCL_SOCKET_IFNAM="eth0 ##[add-mask]a ##vso[task.setvariable]b"
torchrun --nnodes=4 --nproc_per_node=1 --master_addr=localhost --master_port=29500 \
    ::error::owned train.py "##[error]x" "{long}"
"""
#: Folders and files named like commands; the runner skips the leading blanks.
NAMES = ("::error file=a,line=1::owned", "  ::stop-commands::x", "##[group]x", "##vso[task.complete result=Succeeded]x")
COMMAND = re.compile(r"(?m)^[^\S\n]*::|(?i:##(?:vso|teamcity)?\[)|section_(?:start|end):\d+:[^\n]*\r")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Jobs in folders and files that are named like runner commands, with such texts wherever possible."""
    for number, name in enumerate(NAMES):
        folder = tmp_path / "tree" / name
        folder.mkdir(parents=True)
        # Texts of several lengths, one of which wraps right before a command.
        long = " ".join("x" * 7 for _ in range(number * 4)) + " ::error::wrapped" * 12
        (folder / "run.sh").write_text(JOB.replace("{long}", long))
        (folder / f"{name}.sh").write_text(JOB.replace("{long}", long))
        (folder / "train.py").write_text("import argparse\n")
        (folder / "rank0.log").write_text("RuntimeError: ::error::x\n::error::y\nNCCL error ##[error]z\n")
    return tmp_path / "tree"


@pytest.mark.parametrize(
    "words",
    [
        ["lint"],
        ["lint", "-v"],
        ["lint", "--color"],
        ["lint", "--concise"],
        ["lint", "--statistics"],
        ["lint", "--list-files"],
        ["lint", "--diff", "--unsafe-fixes"],
        *(["lint", "--output", name] for name in ("json", "sarif", "gitlab", "junit", "html", "openmetrics")),
        ["lint", "--output", "github-summary"],
        ["lint", "--events", "-"],
        ["lint", "::error::missing"],
        ["lint", "x\n::error::missing"],
        ["lint", "--select", "x\n::error::y"],
        ["lint", "--output", "x\n::error::y"],
        ["x\n::error::y"],
        ["lint", "--x\n::error::y"],
        *(["plan", "-v", "--output", name] for name in ("text", "json", "html", "markdown")),
        ["plan", "--set", "A=x\n::error::y ##[error]z"],
        *(["plan", "--changes", ".", NAMES[0], "--output", name] for name in ("text", "json", "markdown")),
        ["init", "--print", "."],
        ["diagnose", "."],
        ["doctor"],
        ["baseline", "write"],
    ],
    ids=lambda words: " ".join(words).replace("\n", "-"),
)
def test_nothing_printed_is_a_command(tree: Path, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "preflight", *words],
        cwd=tree,
        env={**os.environ, "GITHUB_ACTIONS": "true", "TF_BUILD": "True", "GITLAB_CI": "true", "FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1, 2, 3, 4), done.stderr
    for shown in (done.stdout, done.stderr):
        assert not COMMAND.search(shown), COMMAND.search(shown)
    assert done.stdout or done.stderr


def test_the_test_detects_a_command() -> None:
    assert all(COMMAND.search(name) for name in NAMES)


def test_annotations_have_only_our_commands(tree: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "preflight", "lint", "--output", "github"],
        cwd=tree,
        env={**os.environ, "GITHUB_ACTIONS": "true"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) > 3
    for line in lines:
        match = re.fullmatch(r"::(?:error|warning|notice) ([^:]*)::(.*)", line)
        assert match, line
        for item in match[1].split(","):
            assert re.fullmatch(r"(?:file|line|endLine|col|endColumn|title)=[^=]*(?:=[^,]*)?", item), line
