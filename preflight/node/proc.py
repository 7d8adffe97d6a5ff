"""What the kernel shows of processes below /proc, read with as few calls as it takes: a node may have thousands."""

from __future__ import annotations

import os
import time

from preflight.node.record import ANNOTATED, dataclass

if ANNOTATED:
    from typing import Dict, List, Optional, Tuple

PROC = "/proc"
#: A node may have tens of thousands of processes; so many are looked at.
MOST_PROCESSES = 20000
_CHUNK_BYTES = 65536
#: For probes that follow each other in one process and need no look of their own.
RECENT_S = 1.0
#: A thread of the kernel, among the flags of a process (PF_KTHREAD in include/linux/sched.h).
_OF_THE_KERNEL = 0x00200000


@dataclass(frozen=True)
class Stat:
    """One line of /proc/PID/stat, as far as it matters here. `started` tells a pid from its later reuse.

    `ticks` are those of the clock that it spent computing, `started` is counted in them too, from the start of the
    machine. `kernel`: one of the kernel's own threads.
    """

    pid: int
    parent: int
    state: str
    command: str
    ticks: int
    started: int
    kernel: bool = False


def command_in(line: bytes) -> bytes:
    """The command alone, for whoever looks for few among many."""
    return line[line.find(b"(") + 1 : line.rfind(b")")]


def parse_stat(line: bytes) -> Optional[Stat]:
    """One line of /proc/PID/stat, whose second field may hold blanks and brackets; None for another shape."""
    # The command stands in parentheses and may itself hold any character, so the last one ends it.
    head, _, tail = line.rpartition(b")")
    pid, _, command = head.partition(b" (")
    fields = tail.split(None, 20)
    if len(fields) < 20:
        return None
    try:
        ticks, flags = int(fields[11]) + int(fields[12]), int(fields[6])
        said = command.decode("utf-8", "replace")
        state = fields[0].decode("ascii", "replace")
        return Stat(int(pid), int(fields[1]), state, said, ticks, int(fields[19]), bool(flags & _OF_THE_KERNEL))
    except ValueError:
        return None


#: What was seen last, by which process, and when by the monotonic clock.
_seen_by, _seen_s = 0, 0.0
_seen = {}  # type: Dict[int, bytes]


def stat_lines(recent_s: float = 0.0) -> Dict[int, bytes]:
    """The line of every process that can be seen, by its number; as it was at most `recent_s` seconds ago.

    A child looks anew: it is not among what its parent saw.
    """
    global _seen_by, _seen_s, _seen
    if not _seen or _seen_by != os.getpid() or time.monotonic() - _seen_s > recent_s:
        _seen_by, _seen_s, _seen = os.getpid(), time.monotonic(), _read_lines()
    return _seen


def last_look(recent_s: float) -> Tuple[Dict[int, bytes], float]:
    """What `stat_lines` saw last, here or in the parent of a fork, and when by the monotonic clock.

    It looks now where nobody did within the last `recent_s` seconds.
    """
    if not _seen or time.monotonic() - _seen_s > recent_s:
        stat_lines()
    return _seen, _seen_s


def _read_lines() -> Dict[int, bytes]:
    found = {}  # type: Dict[int, bytes]
    opened, read, closed = os.open, os.read, os.close
    for name in numbers():
        try:
            # A third of what a file object costs.
            at = opened(PROC + "/" + name + "/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            found[int(name)] = read(at, _CHUNK_BYTES)
        except OSError:
            pass
        finally:
            closed(at)
    return found


def numbers() -> List[str]:
    """The processes that can be seen, as they are named below /proc."""
    try:
        return [name for name in os.listdir(PROC) if name.isdigit()][:MOST_PROCESSES]
    except OSError:
        return []


def content(name: str, most_bytes: int = _CHUNK_BYTES) -> bytes:
    """The beginning of a file below /proc; empty where it cannot be read."""
    try:
        at = os.open(PROC + "/" + name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    parts = []
    try:
        while most_bytes > 0:
            # One read gives at most a page or so of what the kernel writes anew.
            more = os.read(at, min(most_bytes, _CHUNK_BYTES))
            if not more:
                break
            parts.append(more)
            most_bytes -= len(more)
    except OSError:
        pass
    finally:
        os.close(at)
    return b"".join(parts)


def text(name: str, most_bytes: int = _CHUNK_BYTES) -> str:
    """The same, decoded."""
    return content(name, most_bytes).decode("utf-8", "replace")
