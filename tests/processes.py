"""Processes as psutil sees them: which have ended, and which a run left behind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.waiting import until


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def all_gone(pids: list[int], deadline_s: float) -> list[int]:
    """Wait for processes to end; return those that have not ended by the deadline."""
    with suppress(TimeoutError):
        until(lambda: all(is_gone(pid) for pid in pids), within_s=deadline_s)
    return [pid for pid in pids if not is_gone(pid)]


def pids_where(ours: Callable[[psutil.Process], bool]) -> list[int]:
    """Every process for which `ours` is true; a process that ends meanwhile or cannot be read does not count."""
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            if ours(process):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
    return found


def pids_of_run(run: str) -> list[int]:
    """Every process with the variable RUN of this run, in any namespace: ranks and their descendants."""
    return pids_where(lambda process: process.environ().get("RUN") == run)


def network_of(pid: int) -> str:
    """The network namespace of a process; empty if it has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""
