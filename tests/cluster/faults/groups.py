"""Control groups that limit the sessions of one node: CPU, cores, memory or processes.

Only new ssh sessions are limited, as by the limits of a service or container. Version 1 only, which usually is
available
on a machine without a container engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..node import Node
from .base import FaultUnavailable

__all__ = ["cpu_quota", "cpu_set", "memory_limit", "process_limit"]

_numbers = itertools.count(1)
_PERIOD_US = 100_000


@contextmanager
def cpu_quota(node: Node, cores: float) -> Iterator[None]:
    """All processes of sessions share this CPU time: 0.2 is a fifth of one core."""
    quota = str(int(cores * _PERIOD_US))
    with _held(node, "cpu", {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota}):
        yield


@contextmanager
def cpu_set(node: Node, cores: str) -> Iterator[None]:
    """Sessions run on these cores alone: `0`, `0-3`."""
    with _held(node, "cpuset", {"cpuset.mems": "0", "cpuset.cpus": cores}):
        yield


@contextmanager
def memory_limit(node: Node, size_bytes: int) -> Iterator[None]:
    """All processes of sessions together may use this memory."""
    with _held(node, "memory", {"memory.limit_in_bytes": str(size_bytes)}):
        yield


@contextmanager
def process_limit(node: Node, processes: int) -> Iterator[None]:
    """All sessions together may have this number of processes and threads."""
    with _held(node, "pids", {"pids.max": str(processes)}):
        yield


@contextmanager
def _held(node: Node, controller: str, settings: Mapping[str, str]) -> Iterator[None]:
    """Put the listening sshd, and thus its children, into a new group."""
    top = f"/sys/fs/cgroup/{controller}"
    if not node.path(f"{top}/cgroup.procs").exists():
        raise FaultUnavailable(f"no control groups of version 1 for {controller} at {top}")
    before = _group(node, controller)
    # Directly below the root: a group in between could limit even more.
    group = f"{top}/fault-{node.name}-{node.pid}-{next(_numbers)}"
    made = node.run(["mkdir", group])
    if made.returncode != 0:
        raise FaultUnavailable(f"no group can be made below {top}: {made.stderr.strip()}")
    try:
        for name, value in settings.items():
            node.must(["sh", "-c", f"echo {value} >{group}/{name}"])
        node.must(["sh", "-c", f"cat /run/sshd.pid >{group}/cgroup.procs"])
        yield
    finally:
        # Processes of the group move to sshd's former group, except those that end meanwhile.
        empty = f"for pid in $(cat {group}/cgroup.procs); do echo $pid >{top}{before}/cgroup.procs; done 2>/dev/null"
        node.run(["sh", "-c", empty])
        node.must(["sh", "-c", f"for try in 1 2 3 4 5 6 7 8 9; do rmdir {group} && exit; {empty}; sleep 0.1; done"])


def _group(node: Node, controller: str) -> str:
    """The group of the node's sshd, for this controller."""
    text = node.must(["sh", "-c", "cat /proc/$(cat /run/sshd.pid)/cgroup"])
    for line in text.splitlines():
        _number, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.rstrip("/")
    raise FaultUnavailable(f"sshd of {node.name} is in no group of {controller}")
