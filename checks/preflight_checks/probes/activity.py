"""What a node is busy with before the job starts: load, pressure, processes that run hard or are stuck."""

from __future__ import annotations

import os
import time

from preflight.node.cheap import cheap
from preflight.node.record import ANNOTATED, dataclass, field

if ANNOTATED:
    from typing import Any, Dict, List, Optional

PROC = "/proc"
#: Two looks so far apart tell what runs now from what ran once.
APART_S = 0.4
#: Below this share of one core over that time, a process is not worth a word.
_HEAVY = 0.3
_MOST_PROCESSES = 20000
_MOST_TOLD = 16
_DEEPEST = 64


@dataclass(frozen=True)
class Busy:
    """A process of somebody else's: how many cores it uses, or (`state` D) that it is stuck in the kernel."""

    pid: int
    command: str
    uid: int
    cores: float = 0.0
    state: str = ""


@dataclass(frozen=True)
class Activity:
    """How busy a node is. Pressures are the share of the last ten seconds in which something waited, in percent.

    `heavy` are processes that are none of this agent's; `stuck` those found in uninterruptible sleep on both looks,
    with no progress in between. `zombies` have ended and were not fetched. None: this system does not tell.
    """

    load: Optional[float] = None
    cores: Optional[int] = None
    cpu_pressure: Optional[float] = None
    memory_pressure: Optional[float] = None
    io_pressure: Optional[float] = None
    heavy: List[Busy] = field(default_factory=list)
    heavy_cores: float = 0.0
    stuck: List[Busy] = field(default_factory=list)
    zombies: int = 0


@cheap("waiting")
def activity(params: Dict[str, Any]) -> Activity:
    """Look at all processes twice, APART_S apart."""
    first, began = looked(PROC), time.monotonic()
    time.sleep(APART_S)
    second, elapsed = looked(PROC), time.monotonic() - began
    heavy, stuck = [], []  # type: List[Busy], List[Busy]
    ticks = os.sysconf("SC_CLK_TCK")
    for pid, now in second.items():
        before = first.get(pid)
        if before is None or before.started != now.started or ours(pid, second, os.getpid(), os.getppid()):
            continue
        cores = (now.ticks - before.ticks) / ticks / elapsed
        if cores >= _HEAVY:
            heavy.append(Busy(pid, now.command, _owner(pid), round(cores, 2)))
        if now.state == before.state == "D" and now.ticks == before.ticks:
            stuck.append(Busy(pid, now.command, _owner(pid), state="D"))
    heavy.sort(key=lambda busy: -busy.cores)
    return Activity(
        _number(_read(PROC + "/loadavg").split(" ")[0]),
        os.cpu_count(),
        pressure(_read(PROC + "/pressure/cpu")),
        pressure(_read(PROC + "/pressure/memory")),
        pressure(_read(PROC + "/pressure/io")),
        heavy[:_MOST_TOLD],
        round(sum(busy.cores for busy in heavy), 2),
        stuck[:_MOST_TOLD],
        sum(1 for stat in second.values() if stat.state == "Z"),
    )


@dataclass(frozen=True)
class Stat:
    """What one line of /proc/PID/stat tells."""

    command: str
    state: str
    parent: int
    ticks: int
    started: int


def parse_stat(text: str) -> Optional[Stat]:
    """One line of /proc/PID/stat; the command may hold blanks and brackets. None for anything else."""
    left, _, right = text.rpartition(")")
    fields = right.split()
    if len(fields) < 20:
        return None
    try:
        return Stat(
            left.partition("(")[2], fields[0], int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[19])
        )
    except ValueError:
        return None


def looked(proc: str) -> Dict[int, Stat]:
    """All processes that can be seen, by number."""
    found = {}  # type: Dict[int, Stat]
    try:
        names = [name for name in os.listdir(proc) if name.isdigit()][:_MOST_PROCESSES]
    except OSError:
        return found
    for name in names:
        stat = parse_stat(_read("%s/%s/stat" % (proc, name)))
        if stat is not None:
            found[int(name)] = stat
    return found


def ours(pid: int, processes: Dict[int, Stat], me: int, agent: int) -> bool:
    """Whether a process is this one, its agent, something either started, or one of those that started the agent."""
    for start, wanted in ((pid, (me, agent)), (agent, (pid,))):
        at, steps = start, 0
        while at > 1 and steps < _DEEPEST:
            if at in wanted:
                return True
            at, steps = processes[at].parent if at in processes else 0, steps + 1
    return False


def pressure(text: str) -> Optional[float]:
    """The share of the last ten seconds in which some task waited, by the text of a file below /proc/pressure."""
    for line in text.splitlines():
        if line.startswith("some "):
            for word in line.split():
                if word.startswith("avg10="):
                    return _number(word[6:])
    return None


def _owner(pid: int) -> int:
    try:
        return os.stat("%s/%d" % (PROC, pid)).st_uid
    except OSError:
        return -1


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
