"""Many files read by several processes: the report is identical, even if a process fails."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight import api
from preflight._util.cache import Cache
from preflight.engine.report import to_json
from preflight.model.job import WHOLE_JOB, Scope
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.discovery import readings
from preflight.sources.formats.tree import DirectoryTree

pytestmark = pytest.mark.thorough

LAUNCH = "#!/bin/bash\n#SBATCH --nodes=2\ntorchrun --nnodes=%d --nproc_per_node=8 --master_port=99999 train%d.py\n"
SCRIPT = "import shared%d\nimport torch.distributed as dist\n\ndist.init_process_group('nccl')\nsave(%d)\n"
SHARED = "import torch.distributed as dist\n\ndef start():\n    dist.barrier()\n%s"


@pytest.fixture(autouse=True)
def _threads_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore threads that other tests left in this process, but not those that a test here starts."""
    there = set(threading.enumerate())
    monkeypatch.setattr(threading, "active_count", lambda: 1 + len(set(threading.enumerate()) - there))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many")
    for number in range(95):
        (root / f"run{number}.sh").write_text(LAUNCH % (number % 3 + 1, number))
        (root / f"train{number}.py").write_text(SCRIPT % (number % 20, number))
    for number in range(20):
        (root / f"shared{number}.py").write_text(SHARED % ("def broken(:\n" if number == 7 else ""))
    return root


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The started processes; none of them may be left at the end."""
    pids: list[int] = []
    fork = os.fork

    def noted() -> int:
        pid = fork()
        if pid:
            pids.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", noted)
    yield pids
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def report(root: Path, **more: Any) -> bytes:
    found = api.lint([root], root=root, **more)
    return to_json(replace(found, run=replace(found.run, created="now")))


def test_the_report_is_identical_with_worker_processes(tree: Path, started: list[int]) -> None:
    alone = report(tree)
    assert not started
    assert report(tree, jobs=2) == alone
    assert len(started) == 2
    assert b"99999" in alone


def test_kept_readings_serve_later_reads(tree: Path, tmp_path: Path, started: list[int]) -> None:
    cache = Cache(tmp_path / "cache")
    first = report(tree, cache=cache, jobs=2)
    count = len(started)
    assert report(tree, cache=cache, jobs=1) == first == report(tree, cache=cache, jobs=2)
    assert len(started) == count == 2


def in_workers(monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
    """Have every worker process call `action` before its second reading."""
    read, parent, calls = readings._read, os.getpid(), [0]

    def reading(*arguments: Any) -> Any:
        calls[0] += 1
        if os.getpid() != parent and calls[0] == 2:
            action()
        return read(*arguments)

    monkeypatch.setattr(readings, "_read", reading)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "preflight")
    return caplog


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=lambda number: number.name)
def test_a_worker_that_dies_changes_nothing(
    tree: Path, started: list[int], log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    alone = report(tree)
    in_workers(monkeypatch, lambda: os.kill(os.getpid(), number))
    assert report(tree, jobs=2) == alone
    assert len(started) == 2
    assert "a worker process died" in log.text


def test_a_worker_that_hangs_is_killed(
    tree: Path, started: list[int], log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = report(tree)
    monkeypatch.setattr(readings, "BATCH_TIMEOUT_S", 0.2)
    in_workers(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGSTOP))
    assert report(tree, jobs=2) == alone
    assert len(started) == 2
    assert "returned nothing within 0.2 s" in log.text


def test_files_are_read_in_this_process_if_none_can_be_started(
    tree: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = report(tree)

    def fail() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fail)
    assert report(tree, jobs=2) == alone
    assert "no worker processes could be started" in log.text


def test_unpicklable_readings_are_made_in_this_process(tmp_path: Path, started: list[int]) -> None:
    files = [SourceFile(f"f{number}", "", f"{number}", 0) for number in range(readings.MIN_FILES)]
    assert readings.read_ahead([(Unsendable(), file) for file in files], DirectoryTree(tmp_path), 2) == []


def test_small_folders_start_no_process(tree: Path, tmp_path: Path, started: list[int]) -> None:
    for path in sorted(tree.iterdir())[: readings.MIN_FILES - 1]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    report(tmp_path, jobs=8)
    assert not started


def test_with_other_threads_no_process_is_started(tree: Path, started: list[int]) -> None:
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        report(tree, jobs=2)
    finally:
        end.set()
        other.join()
    assert not started


class Unsendable:
    """A source whose readings cannot be pickled."""

    name = "unsendable"

    def recognises(self, file: SourceFile) -> bool:
        return True

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        return Reading(notes=(lambda: None,))  # type: ignore[arg-type]


class Looking:
    """A source whose readings depend on another file."""

    name = "looking"

    def recognises(self, file: SourceFile) -> bool:
        return True

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        tree.read("other")
        tree.resolve("there", relative_to=file.path)
        return Reading()


@pytest.mark.parametrize("changed", [False, True])
def test_a_reading_of_a_changed_tree_is_discarded(tmp_path: Path, changed: bool, started: list[int]) -> None:
    tree = DirectoryTree(tmp_path)
    files = [SourceFile(f"f{number}", "", f"{number}", 0) for number in range(readings.MIN_FILES)]
    brought = readings.read_ahead([(Looking(), file) for file in files], _Changing(tree) if changed else tree, 2)
    assert len(brought) == (0 if changed else len(files))


class _Changing:
    """A tree that answers differently in every process."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def read(self, path: str) -> Any:
        return SourceFile(path, "", str(os.getpid()), 0)

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        return self._tree.resolve(path, relative_to=relative_to)


SLOW = """
import os, sys, time
from preflight.sources.discovery import readings as asking
asking._Reader.read = lambda *_: (os.write(1, b"working\\n"), time.sleep(60))
from preflight.cli.main import main
sys.argv = ["preflight", "lint", "--no-cache", "--jobs", "2", "."]
main()
"""


@pytest.mark.parametrize("group", [False, True], ids=["the-process", "the-terminal"])
def test_an_interrupt_leaves_no_process(tree: Path, group: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLOW],
        cwd=tree,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert [process.stdout.readline() for _ in range(2)] == ["working\n"] * 2
            (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
            # After its end the pipe is closed, also by all started processes.
            assert process.stdout.read() == ""
            # On a slow machine the current step is printed first.
            assert process.stderr.read().splitlines()[-1] == "preflight: interrupted"
            assert process.wait(10) == 130
            with pytest.raises(ProcessLookupError):
                _none_within(5, process.pid)
        finally:
            process.kill()


def _none_within(seconds: float, group: int) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        os.killpg(group, 0)
        time.sleep(0.01)
