"""What a node is busy with before the job starts: load, pressure, processes that run hard or are stuck."""

from __future__ import annotations

import os
import time

from preflight.node.cheap import cheap, straight
from preflight.node.proc import PROC, last_look, parse_stat, stat_lines, text
from preflight.node.record import ANNOTATED, dataclass, field

if ANNOTATED:
    from typing import Any, Callable, Dict, Generator, List, Optional

#: Two looks at least so far apart tell what runs now from what ran once.
APART_S = 0.3
#: The agent's own look, at its start, is the first of the two where it is no older: one that began since, or has ceased
#: to run hard, would be missed.
EARLIER_S = 2.0
#: Below this share of one core over that time, a process is not worth a word.
_HEAVY = 0.3
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


def _looks(params: Dict[str, Any]) -> Generator[float, None, Activity]:
    first, began = last_look(EARLIER_S)
    yield max(0.0, began + APART_S - time.monotonic())
    second, elapsed = stat_lines(), time.monotonic() - began
    heavy, stuck = [], []  # type: List[Busy], List[Busy]
    ticks = os.sysconf("SC_CLK_TCK")

    def parent_of(pid: int) -> int:
        stat = parse_stat(second.get(pid, b""))
        return stat.parent if stat is not None else 0

    for pid, line in second.items():
        state = _state(line)
        # Most have done nothing, and say so by the same line; that is quicker to see than to take apart.
        if line == first.get(pid, line) and state != b"D":
            continue
        before, now = parse_stat(first.get(pid, b"")), parse_stat(line)
        if before is None or now is None or before.started != now.started:
            continue
        cores = (now.ticks - before.ticks) / ticks / elapsed
        is_stuck = now.state == before.state == "D" and now.ticks == before.ticks
        if (cores < _HEAVY and not is_stuck) or ours(pid, parent_of, os.getpid(), os.getppid()):
            continue
        if cores >= _HEAVY:
            heavy.append(Busy(pid, now.command, _owner(pid), round(cores, 2)))
        if is_stuck:
            stuck.append(Busy(pid, now.command, _owner(pid), state="D"))
    heavy.sort(key=lambda busy: -busy.cores)
    return Activity(
        _number(text("loadavg").split(" ")[0]),
        os.cpu_count(),
        pressure(text("pressure/cpu")),
        pressure(text("pressure/memory")),
        pressure(text("pressure/io")),
        heavy[:_MOST_TOLD],
        round(sum(busy.cores for busy in heavy), 2),
        stuck[:_MOST_TOLD],
        sum(1 for line in second.values() if _state(line) == b"Z"),
    )


@cheap("node", looks=_looks)
def activity(params: Dict[str, Any]) -> Activity:
    """Look at all processes twice, at least APART_S apart."""
    return straight(_looks(params))


def _state(line: bytes) -> bytes:
    return line[line.rfind(b")") + 2 :][:1]


def ours(pid: int, parent_of: Callable[[int], int], me: int, agent: int) -> bool:
    """Whether a process is this one, its agent, something either started, or one of those that started the agent."""
    for start, wanted in ((pid, (me, agent)), (agent, (pid,))):
        at, steps = start, 0
        while at > 1 and steps < _DEEPEST:
            if at in wanted:
                return True
            at, steps = parent_of(at), steps + 1
    return False


def pressure(said: str) -> Optional[float]:
    """The share of the last ten seconds in which some task waited, by what a file below /proc/pressure says."""
    for line in said.splitlines():
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


def _number(word: str) -> Optional[float]:
    try:
        return float(word)
    except ValueError:
        return None
