"""The processes below one of ours: who they are, what state they are in, and how to end them all.

A training rank starts loaders, compilers and daemons, some of them in sessions of their own. So nothing here
trusts process groups: with a subreaper above them, every descendant stays reachable through its parent.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time

from preflight.node.proc import Stat, content, parse_stat, stat_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, NoReturn, Optional, Set

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> bool:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return int(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


def die_with_parent(number: int = signal.SIGKILL) -> bool:
    """Have the kernel send this signal when the thread that started this process ends; False where it cannot."""
    return _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> bool:
    """Become the subreaper: orphans below this process become its children, instead of being lost to init."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def leave(code: int) -> NoReturn:
    """End this process at once, without the exit handlers of what it was forked from, but with what was printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(code)


def sees_itself() -> bool:
    """Whether /proc speaks of the processes that this one can signal.

    In a container that was given the /proc of its host it numbers others, of which some have the numbers of ours.
    """
    try:
        return int(os.readlink("/proc/self")) == os.getpid()
    except (OSError, ValueError):
        return False


def stat_of(pid: int) -> Optional[Stat]:
    """What the kernel says of a process; None when it is gone, or /proc tells nothing of it."""
    if not sees_itself():
        return None
    return parse_stat(content("%d/stat" % pid))


def children_of(pid: int) -> List[int]:
    """Direct children, from the kernel's own list where it has one and from all of /proc where not."""
    if not sees_itself():
        return []
    return _listed_children(pid) if _kernel_lists_children() else _children_by_parent().get(pid, [])


def descendants(root: int) -> List[int]:
    """Everything below `root`, parents before children. A snapshot: what forks meanwhile may be missing."""
    if not sees_itself():
        return []
    everyone = None if _kernel_lists_children() else _children_by_parent()
    found: List[int] = []
    seen: Set[int] = {root}
    pending = [root]
    while pending:
        pid = pending.pop(0)
        for child in _listed_children(pid) if everyone is None else everyone.get(pid, []):
            if child not in seen:
                seen.add(child)
                found.append(child)
                pending.append(child)
    return found


def _kernel_lists_children() -> bool:
    # A kernel built without CONFIG_PROC_CHILDREN lacks the file.
    return os.path.exists("/proc/self/task/%d/children" % os.getpid())


def _listed_children(pid: int) -> List[int]:
    found: List[int] = []
    try:
        for thread in os.listdir("/proc/%d/task" % pid):
            found.extend(int(word) for word in content("%d/task/%s/children" % (pid, thread)).split())
    except OSError:
        pass
    return found


def _children_by_parent() -> Dict[int, List[int]]:
    children: Dict[int, List[int]] = {}
    for line in stat_lines().values():
        stat = parse_stat(line)
        if stat is not None:
            children.setdefault(stat.parent, []).append(stat.pid)
    return children


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL to each; those already gone, or not ours to kill, are passed over."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.EPERM):
                raise


def kill_tree(root: int) -> None:
    """SIGKILL to `root` and everything below it; what forks away meanwhile becomes the subreaper's orphan."""
    kill_all([root] + descendants(root))
    if not sees_itself():
        # Each child of ours leads a group of its own; that is all that can be known here.
        kill_all([-root])


def end_descendants(deadline_s: float) -> List[int]:
    """Kill everything below this process until nothing is left; the pids that are, when the deadline came first.

    Several rounds, because what forks between the look and the kill is found by the next look. A process stuck in
    the kernel (state D) dies only when its call returns, hence the deadline.
    """
    until = time.monotonic() + deadline_s
    me = os.getpid()
    while True:
        left = descendants(me)
        kill_all(left)
        reap()
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.01)


def reap() -> Dict[int, int]:
    """Exit statuses, as `subprocess` counts them, of the children that have ended."""
    ended: Dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except OSError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = exit_code(status)


def exit_code(status: int) -> int:
    """What waitpid said, as `subprocess` says it: negative for a signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return "ended with exit code %d" % code
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return "was killed by signal %d (%s)" % (-code, name)


def say(why: str) -> None:
    """A last word for the head, on the standard error of the transport."""
    try:
        os.write(2, ("preflight: %s\n" % why).encode("utf-8", "replace") if why else b"")
    except OSError:
        pass
