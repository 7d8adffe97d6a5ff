"""Processes of a node: their data from /proc, descendants, states, and killing them all.

A training rank starts loaders, compilers and daemons, some of them in sessions of their own. So process groups are not
trusted here: with a subreaper above them, every descendant stays reachable through its parent.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, NoReturn


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> bool:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return int(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


def die_with_parent(number: int = signal.SIGKILL) -> bool:
    """Make the kernel send this signal when the thread that started this process ends. Returns False if it cannot."""
    return _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> bool:
    """Become the subreaper: orphans below this process become its children, instead of being lost to init."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def exit_now(code: int) -> NoReturn:
    """Exit immediately, without the parent's exit handlers, after flushing printed output."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(code)


def proc_shows_own_processes() -> bool:
    """Return whether /proc shows our processes, and not the host's with the same pids, as in a container."""
    try:
        return int(os.readlink("/proc/self")) == os.getpid()
    except (OSError, ValueError):
        return False


def stat_of(pid: int) -> Stat | None:
    """Return the kernel's data about a process; None if the process no longer exists, or /proc does not show it."""
    if not proc_shows_own_processes():
        return None
    return parse_stat(content(f"{pid}/stat"))


def children_of(pid: int) -> list[int]:
    """Return direct children, from the kernel's own list if it has one, otherwise from all of /proc."""
    if not proc_shows_own_processes():
        return []
    return _listed_children(pid) if _kernel_lists_children() else _children_by_parent().get(pid, [])


def descendants(root: int) -> list[int]:
    """Return everything below `root`, parents before children. A snapshot: new forks may be missing."""
    if not proc_shows_own_processes():
        return []
    everyone = None if _kernel_lists_children() else _children_by_parent()
    pids: list[int] = []
    seen: set[int] = {root}
    pending = [root]
    while pending:
        pid = pending.pop(0)
        for child in _listed_children(pid) if everyone is None else everyone.get(pid, []):
            if child not in seen:
                seen.add(child)
                pids.append(child)
                pending.append(child)
    return pids


def _kernel_lists_children() -> bool:
    # A kernel built without CONFIG_PROC_CHILDREN lacks the file.
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _listed_children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found.extend(int(word) for word in content(f"{pid}/task/{thread}/children").split())
    except OSError:
        pass
    return found


def _children_by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for line in stat_lines().values():
        stat = parse_stat(line)
        if stat is not None:
            children.setdefault(stat.parent, []).append(stat.pid)
    return children


def kill_all(pids: Iterable[int]) -> None:
    """Send SIGKILL to each process; those that are already gone or may not be killed are skipped."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.EPERM):
                raise


def kill_tree(root: int) -> None:
    """Send SIGKILL to `root` and everything below it; new forks become the subreaper's orphans."""
    kill_all([root] + descendants(root))
    if not proc_shows_own_processes():
        # Each child of ours leads a group of its own; nothing more is known here.
        kill_all([-root])


def end_descendants(deadline_s: float) -> list[int]:
    """Kill everything below this process, in rounds because it may fork; return pids left at the deadline."""
    until = time.monotonic() + deadline_s
    me = os.getpid()
    while True:
        remaining = descendants(me)
        kill_all(remaining)
        reap()
        if not remaining or time.monotonic() > until:
            return remaining
        time.sleep(0.01)


def reap() -> dict[int, int]:
    """Return exit statuses, in the form of `subprocess`, of the children that have ended."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except OSError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = exit_code(status)


def exit_code(status: int) -> int:
    """Convert the status of waitpid to that of `subprocess`: negative for a signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def describe_exit(code: int) -> str:
    """Describe how a process ended."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-code} ({name})"


def write_last_message(reason: str) -> None:
    """Write a last message for the head to the standard error of the transport."""
    try:
        os.write(2, f"preflight: {reason}\n".encode("utf-8", "replace") if reason else b"")
    except OSError:
        pass


PROC = "/proc"
#: Largest number of processes that are read; a node may have tens of thousands.
MAX_PROCESSES = 20000
_CHUNK_BYTES = 65536
#: The age up to which consecutive probes in one process share a snapshot.
RECENT_S = 1.0
#: A thread of the kernel, among the flags of a process (PF_KTHREAD in include/linux/sched.h).
_KERNEL_THREAD = 0x00200000


@dataclass(frozen=True)
class Stat:
    """The relevant part of /proc/PID/stat: clock ticks of CPU time, start in ticks since boot, kernel thread or not."""

    pid: int
    parent: int
    state: str
    command: str
    ticks: int
    started: int
    kernel: bool = False


def command_in(line: bytes) -> bytes:
    """Return the command in a line of /proc/PID/stat, for callers that search many processes for a few commands."""
    return line[line.find(b"(") + 1 : line.rfind(b")")]


def parse_stat(line: bytes) -> Stat | None:
    """Parse a line of /proc/PID/stat, whose second field may contain blanks and parentheses; None if malformed."""
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
_seen: dict[int, bytes] = {}


def stat_lines(recent_s: float = 0.0) -> dict[int, bytes]:
    """Return each visible process's stat line by pid, at most `recent_s` seconds old; a child takes its own."""
    global _seen_by, _seen_s, _seen
    if not _seen or _seen_by != os.getpid() or time.monotonic() - _seen_s > recent_s:
        _seen_by, _seen_s, _seen = os.getpid(), time.monotonic(), _read_lines()
    return _seen


def last_snapshot(recent_s: float) -> tuple[dict[int, bytes], float]:
    """Return the last snapshot (perhaps the parent's) with its monotonic time; a new one after `recent_s` seconds."""
    if not _seen or time.monotonic() - _seen_s > recent_s:
        stat_lines()
    return _seen, _seen_s


def _read_lines() -> dict[int, bytes]:
    lines_by_fd: dict[int, bytes] = {}
    opened, read, closed = os.open, os.read, os.close
    for name in pids():
        try:
            # This takes a third of the time of a file object.
            at = opened(PROC + "/" + name + "/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            lines_by_fd[int(name)] = read(at, _CHUNK_BYTES)
        except OSError:
            pass
        finally:
            closed(at)
    return lines_by_fd


def pids() -> list[str]:
    """Return the visible processes, by their names below /proc."""
    return [name for name in list_folder(PROC) if name.isdecimal()][:MAX_PROCESSES]


def list_folder(path: str) -> list[str]:
    """Return the names in a folder, sorted; empty if it cannot be listed."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def read_text(path: str, max_bytes: int = 65536) -> str:
    """Return the beginning of a text file, without white space around it; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(max_bytes).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def read_number(path: str) -> int | None:
    """Return the whole number in a file; None if the file cannot be read, or has other content."""
    try:
        return int(read_text(path))
    except ValueError:
        return None


def read_numbers(folder: str, names: Iterable[str]) -> dict[str, int]:
    """Return the whole numbers in these files of a folder, by name; files without a number are left out."""
    found = ((name, read_number(os.path.join(folder, name))) for name in names)
    return {name: number for name, number in found if number is not None}


def content(name: str, max_bytes: int = _CHUNK_BYTES) -> bytes:
    """Return the beginning of a file below /proc; empty if it cannot be read."""
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
    """Return the decoded beginning of a file below /proc; empty if it cannot be read."""
    return content(name, max_bytes).decode("utf-8", "replace")
