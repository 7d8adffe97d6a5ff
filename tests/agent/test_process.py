"""Descendants of a process are found and killed, with and without the kernel's list of children."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from preflight.agent import process

NEST = """
import subprocess, sys
depth = int(sys.argv[2])
if depth:
    subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[1], str(depth - 1)])
print(depth, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def nest() -> Iterator[subprocess.Popen[str]]:
    """A process with a child and a grandchild, each of which has printed its depth."""
    with subprocess.Popen(
        [sys.executable, "-c", NEST, NEST, "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nest:
        assert nest.stdout is not None
        assert sorted(nest.stdout.readline() for _ in range(3)) == ["0\n", "1\n", "2\n"]
        yield nest
        process.kill_tree(nest.pid)


@pytest.mark.parametrize("listed", [True, False])
def test_all_descendants_are_found(nest: subprocess.Popen[str], listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_kernel_lists_children", lambda: listed)
    below = process.descendants(nest.pid)
    assert len(below) == 2
    assert process.children_of(nest.pid) == below[:1] and process.children_of(below[0]) == below[1:]
    assert nest.pid in process.descendants(os.getpid())
    stat = process.stat_of(below[1])
    assert stat is not None and stat.parent == below[0] and stat.state in "SR"


def test_unusual_command_name_is_parsed(tmp_path: Path) -> None:
    name = "a) R (b"
    (tmp_path / name).symlink_to("/bin/cat")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, executable=tmp_path / name) as odd:
        stat = process.stat_of(odd.pid)
        assert stat is not None
        assert (stat.command, stat.parent) == (name, os.getpid())
        assert odd.stdin is not None
        odd.stdin.close()


def test_exit_descriptions() -> None:
    assert process.describe_exit(-9) == "was killed by signal 9 (SIGKILL)"
    assert process.describe_exit(3) == "ended with exit code 3"
    assert process.stat_of(2**22 + 5) is None
