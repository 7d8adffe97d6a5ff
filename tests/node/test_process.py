"""Finding and ending what is below a process, with and without the kernel's own list of children."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from preflight.node import process

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
    """A process with a child with a child, of which each has printed its depth."""
    with subprocess.Popen(
        [sys.executable, "-c", NEST, NEST, "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nest:
        assert nest.stdout is not None
        assert sorted(nest.stdout.readline() for _ in range(3)) == ["0\n", "1\n", "2\n"]
        yield nest
        process.kill_tree(nest.pid)


@pytest.mark.parametrize("listed", [True, False])
def test_descendants_are_found_to_the_last(
    nest: subprocess.Popen[str], listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_kernel_lists_children", lambda: listed)
    below = process.descendants(nest.pid)
    assert len(below) == 2
    assert process.children_of(nest.pid) == below[:1] and process.children_of(below[0]) == below[1:]
    assert nest.pid in process.descendants(os.getpid())
    stat = process.stat_of(below[1])
    assert stat is not None and stat.parent == below[0] and stat.state in "SR"


def test_a_strange_command_does_not_confuse(tmp_path: Path) -> None:
    name = "a) R (b"
    (tmp_path / name).symlink_to("/bin/cat")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, executable=tmp_path / name) as odd:
        stat = process.stat_of(odd.pid)
        assert stat is not None
        assert (stat.command, stat.parent) == (name, os.getpid())
        assert odd.stdin is not None
        odd.stdin.close()


def test_endings_in_words() -> None:
    assert process.ending(-9) == "was killed by signal 9 (SIGKILL)"
    assert process.ending(3) == "ended with exit code 3"
    assert process.stat_of(2**22 + 5) is None
