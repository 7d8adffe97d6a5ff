"""Process data from /proc, read with as few calls as possible: a node may have thousands of processes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

PROC = "/proc"
#: A node may have tens of thousands of processes; at most this many are read.
MAX_PROCESSES = 20000
_CHUNK_BYTES = 65536
#: The age up to which consecutive probes in one process share a snapshot.
RECENT_S = 1.0
#: A thread of the kernel, among the flags of a process (PF_KTHREAD in include/linux/sched.h).
_KERNEL_THREAD = 0x00200000


@dataclass(frozen=True)
class Stat:
    """The relevant part of one line of /proc/PID/stat. `started` distinguishes a pid from its later reuse.

    `ticks` are clock ticks of CPU time, `started` is counted in ticks too, from boot. `kernel`: one of the kernel's own
    threads.
    """

    pid: int
    parent: int
    state: str
    command: str
    ticks: int
    started: int
    kernel: bool = False


def command_in(line: bytes) -> bytes:
    """Only the command, for callers that search many processes for a few."""
    return line[line.find(b"(") + 1 : line.rfind(b")")]


def parse_stat(line: bytes) -> Optional[Stat]:
    """One line of /proc/PID/stat, whose second field may contain blanks and parentheses; None for another format."""
    # The command is in parentheses and may itself contain any character, so the last one ends it.
    head, _, tail = line.rpartition(b")")
    pid, _, command = head.partition(b" (")
    fields = tail.split(None, 20)
    if len(fields) < 20:
        return None
    try:
        ticks, flags = int(fields[11]) + int(fields[12]), int(fields[6])
        text = command.decode("utf-8", "replace")
        state = fields[0].decode("ascii", "replace")
        return Stat(int(pid), int(fields[1]), state, text, ticks, int(fields[19]), bool(flags & _KERNEL_THREAD))
    except ValueError:
        return None


#: The last snapshot, the process that took it, and when by the monotonic clock.
_seen_by, _seen_s = 0, 0.0
_seen = {}  # type: Dict[int, bytes]


def stat_lines(recent_s: float = 0.0) -> Dict[int, bytes]:
    """The stat line of every visible process, by pid; at most `recent_s` seconds old.

    A child takes a new snapshot, because its parent's does not contain the child.
    """
    global _seen_by, _seen_s, _seen
    if not _seen or _seen_by != os.getpid() or time.monotonic() - _seen_s > recent_s:
        _seen_by, _seen_s, _seen = os.getpid(), time.monotonic(), _read_lines()
    return _seen


def last_snapshot(recent_s: float) -> Tuple[Dict[int, bytes], float]:
    """The last snapshot of `stat_lines`, from this process or from the parent of a fork, and the time of it by the
    monotonic clock.

    Takes a new one if there is none from the last `recent_s` seconds.
    """
    if not _seen or time.monotonic() - _seen_s > recent_s:
        stat_lines()
    return _seen, _seen_s


def _read_lines() -> Dict[int, bytes]:
    found = {}  # type: Dict[int, bytes]
    opened, read, closed = os.open, os.read, os.close
    for name in pids():
        try:
            # This takes a third of the time of a file object.
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


def pids() -> List[str]:
    """The visible processes, by their names below /proc."""
    try:
        return [name for name in os.listdir(PROC) if name.isdecimal()][:MAX_PROCESSES]
    except OSError:
        return []


def content(name: str, max_bytes: int = _CHUNK_BYTES) -> bytes:
    """The beginning of a file below /proc; empty if it cannot be read."""
    try:
        at = os.open(PROC + "/" + name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    parts = []
    try:
        while max_bytes > 0:
            # One read returns at most about a page of a generated file.
            more = os.read(at, min(max_bytes, _CHUNK_BYTES))
            if not more:
                break
            parts.append(more)
            max_bytes -= len(more)
    except OSError:
        pass
    finally:
        os.close(at)
    return b"".join(parts)


def text(name: str, max_bytes: int = _CHUNK_BYTES) -> str:
    """The decoded beginning of a file below /proc; empty if it cannot be read."""
    return content(name, max_bytes).decode("utf-8", "replace")
