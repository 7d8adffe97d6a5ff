"""Process data from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.agent import process
from preflight.agent.process import Stat, content, last_snapshot, parse_stat, pids, stat_lines, text

LINE = b"77 (my (odd) name) R 5 77 77 0 -1 4194304 1 0 0 0 150 50 0 0 20 0 1 0 12345 0 0\n"


def test_one_line_of_a_process() -> None:
    assert parse_stat(LINE) == Stat(77, 5, "R", "my (odd) name", 200, 12345)


def test_name_with_blanks_brackets_and_odd_bytes() -> None:
    stat = parse_stat(LINE.replace(b"my (odd) name", b"a) R (\xff\n b"))
    assert stat is not None and (stat.pid, stat.command, stat.parent) == (77, "a) R (\ufffd\n b", 5)


def test_kernel_threads_are_recognised() -> None:
    stat = parse_stat(b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 2 0 0\n")
    assert stat is not None and stat.kernel


@pytest.mark.parametrize("line", [b"", b"1 (x) R a b", LINE.replace(b"12345", b"soon"), LINE.replace(b"77 (", b"x (")])
def test_malformed_line_gives_none(line: bytes) -> None:
    assert parse_stat(line) is None


def test_own_process_and_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    lines = stat_lines()
    mine, ended = parse_stat(lines[os.getpid()]), parse_stat(lines[child.pid])
    child.wait()
    assert mine is not None and (mine.pid, mine.parent, mine.kernel) == (os.getpid(), os.getppid(), False)
    assert ended is not None and (ended.parent, ended.state) == (os.getpid(), "Z")


def test_recent_snapshot_is_reused_on_request() -> None:
    before = stat_lines()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert stat_lines(60.0) is before and child.pid not in before
        assert child.pid in stat_lines()
        assert child.pid in stat_lines(60.0)
    pid = os.fork()
    if not pid:
        os._exit(os.getpid() not in stat_lines(60.0))
    assert os.waitpid(pid, 0)[1] == 0


def test_fork_inherits_the_snapshot_of_its_parent() -> None:
    before, began = stat_lines(), time.monotonic()
    pid = os.fork()
    if not pid:
        seen, at = last_snapshot(60.0)
        os._exit(seen is not before or at > began)
    assert os.waitpid(pid, 0)[1] == 0


def test_old_snapshot_is_not_used() -> None:
    before = stat_lines()
    seen, _ = last_snapshot(0.0)
    assert seen is not before


def test_files_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert text("self/cmdline").split("\0")[0] == Path("/proc/self/cmdline").read_text().split("\0")[0]
    assert len(content("self/maps")) > 4096 and len(content("self/maps", 10)) == 10
    assert content("0/stat") == b"" and text("nobody/comm") == ""
    monkeypatch.setattr(process, "PROC", str(tmp_path / "none"))
    assert pids() == [] and stat_lines() == {}
