"""How long threads of this process were ready to run but got no processor."""

from __future__ import annotations

import os
import threading
import time
from typing import Dict, List, Optional


def waited_s(path: str = "/proc/thread-self/schedstat") -> Optional[float]:
    """How long this thread was ready to run but did not run; None if the kernel does not count it.

    The second number of `schedstat` (Documentation/scheduler/sched-stats.rst), nanoseconds.
    """
    try:
        with open(path) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def waits_of_threads(root: str = "/proc/self/task") -> Optional[Dict[str, float]]:
    """`waited_s` of each thread of this process, by thread id; None if the kernel does not count it."""
    found: Dict[str, float] = {}
    try:
        for thread in os.listdir(root):
            waited = waited_s("%s/%s/schedstat" % (root, thread))
            if waited is not None:
                found[thread] = waited
            elif os.path.isdir("%s/%s" % (root, thread)):
                return None  # not merely a thread that has just ended
    except OSError:
        return None
    return found


def threads_waited_s(root: str = "/proc/self/task") -> Optional[float]:
    """The sum of `waited_s` over the threads of this process; None if the kernel does not count it."""
    waits = waits_of_threads(root)
    return None if waits is None else sum(waits.values())


def throttled_s(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> Optional[float]:
    """How long the control groups of this process were throttled by their quota; None if unknown.

    `throttled_usec` of cgroup v2, `throttled_time` (nanoseconds) of v1.
    """
    for path in _stat_files(root, own):
        try:
            with open(path) as file:
                for line in file:
                    name, _, value = line.partition(" ")
                    if name == "throttled_usec":
                        return int(value) / 1e6
                    if name == "throttled_time":
                        return int(value) / 1e9
        except (OSError, ValueError):
            continue
    return None


def stolen_s(path: str = "/proc/stat") -> float:
    """How long the hypervisor ran others instead of this machine, as the mean of its processors; 0 if unknown.

    The eighth number of the line `cpu` (proc_stat(5)), in clock ticks.
    """
    try:
        with open(path) as file:
            fields = file.readline().split()
        return int(fields[8]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
    except (OSError, ValueError, IndexError):
        return 0.0


class StarvationClock:
    """Adds up the time in which a thread of this process wanted a processor and got none.

    Several threads may wait at once, and one that waits can hold up all others (they meet at barriers): an interval
    between two readings counts as much as the thread that waited longest in it, or as long as the control group was
    throttled, and never more than the interval itself.
    """

    def __init__(self) -> None:
        self._total_s = 0.0
        self._read_at_s = time.monotonic()
        self._waits = waits_of_threads()
        self._throttled = throttled_s() or 0.0
        self._stolen = stolen_s()

    def read(self) -> Optional[float]:
        """The total so far in seconds; None if the kernel does not count it."""
        waits, now_s = waits_of_threads(), time.monotonic()
        if waits is None or self._waits is None:
            return None
        throttled, stolen = throttled_s() or 0.0, stolen_s()
        waits.pop(str(threading.get_native_id()), None)  # the thread that reads is not one that works
        longest = max((waited - self._waits.get(thread, 0.0) for thread, waited in waits.items()), default=0.0)
        lost = max(longest, throttled - self._throttled) + stolen - self._stolen
        self._total_s += min(max(lost, 0.0), now_s - self._read_at_s)
        self._read_at_s, self._waits, self._throttled, self._stolen = now_s, waits, throttled, stolen
        return self._total_s


def _stat_files(root: str, own: str) -> List[str]:
    """Possible locations of cpu.stat: that of this process's own group as it sees it, otherwise that of the visible
    root.
    """
    found: List[str] = []
    try:
        with open(own) as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "cpu" in controllers.split(","):
            found += [root + "/" + controllers + path + "/cpu.stat", root + "/cpu" + path + "/cpu.stat"]
        elif not controllers:
            found.append(root + path + "/cpu.stat")
    return [*found, root + "/cpu.stat", root + "/cpu/cpu.stat", root + "/cpu,cpuacct/cpu.stat"]
