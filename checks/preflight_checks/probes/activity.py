"""The load of a node before the job starts: load average, processes that compute or are stuck."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Generator

from preflight.agent.cheap import cheap, run_with_pauses
from preflight.agent.process import PROC, last_snapshot, parse_stat, stat_lines, text

#: Two snapshots at least this far apart distinguish current activity from past activity.
INTERVAL_S = 0.3
#: The agent's own snapshot, at its start, is the first of the two unless it is older: a process that began since, or
#: has become idle, would be missed.
MAX_SNAPSHOT_AGE_S = 2.0
#: A process that uses less than this share of one core in that time is ignored.
_HEAVY = 0.3
_MAX_LISTED = 16
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Busy:
    """A foreign process: how many cores it uses, or (`state` D) that it is stuck in the kernel."""

    pid: int
    command: str
    uid: int
    cores: float = 0.0
    state: str = ""


@dataclass(frozen=True)
class Activity:
    """The activity of a node.

    `heavy` are processes that do not belong to this agent; `stuck` those in uninterruptible sleep in both snapshots,
    without progress in between. None: this system does not report it.
    """

    load: float | None = None
    cores: int | None = None
    heavy: list[Busy] = field(default_factory=list)
    heavy_cores: float = 0.0
    stuck: list[Busy] = field(default_factory=list)


def _snapshots(params: dict[str, Any]) -> Generator[float, None, Activity]:
    first, began = last_snapshot(MAX_SNAPSHOT_AGE_S)
    yield max(0.0, began + INTERVAL_S - time.monotonic())
    second, elapsed = stat_lines(), time.monotonic() - began
    heavy: list[Busy] = []
    stuck: list[Busy] = []
    ticks = os.sysconf("SC_CLK_TCK")

    def parent_of(pid: int) -> int:
        stat = parse_stat(second.get(pid, b""))
        return stat.parent if stat is not None else 0

    for pid, line in second.items():
        state = _state(line)
        # Most have done nothing, and have the same line; comparing it is quicker than parsing it.
        if line == first.get(pid, line) and state != b"D":
            continue
        before, now = parse_stat(first.get(pid, b"")), parse_stat(line)
        if before is None or now is None or before.started != now.started:
            continue
        cores = (now.ticks - before.ticks) / ticks / elapsed
        is_stuck = now.state == before.state == "D" and now.ticks == before.ticks
        if (cores < _HEAVY and not is_stuck) or belongs_to_check(pid, parent_of, os.getpid(), os.getppid()):
            continue
        if cores >= _HEAVY:
            heavy.append(Busy(pid, now.command, _owner(pid), round(cores, 2)))
        if is_stuck:
            stuck.append(Busy(pid, now.command, _owner(pid), state="D"))
    heavy.sort(key=lambda busy: -busy.cores)
    return Activity(
        _number(text("loadavg").split(" ")[0]),
        os.cpu_count(),
        heavy[:_MAX_LISTED],
        round(sum(busy.cores for busy in heavy), 2),
        stuck[:_MAX_LISTED],
    )


@cheap("node", looks=_snapshots)
def activity(params: dict[str, Any]) -> Activity:
    """Take two snapshots of all processes, at least APART_S apart."""
    return run_with_pauses(_snapshots(params))


def _state(line: bytes) -> bytes:
    return line[line.rfind(b")") + 2 :][:1]


def belongs_to_check(pid: int, parent_of: Callable[[int], int], own_pid: int, agent: int) -> bool:
    """Whether a process is this one, its agent, a child of either, or an ancestor of the agent."""
    for start, wanted in ((pid, (own_pid, agent)), (agent, (pid,))):
        at, steps = start, 0
        while at > 1 and steps < _MAX_DEPTH:
            if at in wanted:
                return True
            at, steps = parent_of(at), steps + 1
    return False


def _owner(pid: int) -> int:
    try:
        return os.stat(f"{PROC}/{pid}").st_uid
    except OSError:
        return -1


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
