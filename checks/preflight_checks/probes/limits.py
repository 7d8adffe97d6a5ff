"""The limits that a rank would inherit: resource limits, control groups, usable CPUs, shared memory, RDMA devices."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.cheap import cheap
from preflight.agent.process import list_folder, read_text
from preflight_checks.probes.cgroups import Cgroups, cgroups

SHM = "/dev/shm"
PROC = "/proc"
#: Variables that limit the number of threads of libraries.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
#: A node may have tens of thousands of processes; counting those of one user stops at this number.
_MAX_PROCESSES = 20000
#: Bits of `CapEff` with which the kernel does not count processes (kernel/fork.c, copy_process).
_SYS_ADMIN, _SYS_RESOURCE = 21, 24


@dataclass(frozen=True)
class Limits:
    """Limits of a process in the job context. None means unlimited; sizes are bytes.

    `shm_total_bytes` and `shm_free_bytes` are None if /dev/shm cannot be examined (`shm_problem` is the reason).
    `processes_soft` limits the threads of one user on the whole node; `threads_of_user` is their number (None: not
    visible) and `processes_exempt` whether the kernel ignores the limit for this user. `usable_cpus` is the affinity
    mask, `online_cpus` the number of CPUs; empty and None if the system does not report them. `niceness` is 0 unless
    changed; `idle` means the scheduling policy that gets only the time that others leave (SCHED_IDLE).
    """

    open_files_soft: int | None
    open_files_hard: int | None
    locked_memory_soft_bytes: int | None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    shm_problem: str = ""
    rdma_devices: list[str] = field(default_factory=list)
    processes_soft: int | None = None
    processes_exempt: bool = False
    threads_of_user: int | None = None
    address_space_soft_bytes: int | None = None
    file_size_soft_bytes: int | None = None
    usable_cpus: list[int] = field(default_factory=list)
    online_cpus: int | None = None
    threads: dict[str, str] = field(default_factory=dict)
    cgroup: Cgroups = field(default_factory=Cgroups)
    cpu_time_soft_s: int | None = None
    niceness: int = 0
    idle: bool = False


@cheap("node")
def limits(params: dict[str, Any]) -> Limits:
    """The limits of this process. Run it in the job context, where they are those of the ranks."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = _limit(resource.getrlimit(resource.RLIMIT_NPROC)[0])
    total: int | None = None
    free: int | None = None
    problem = ""
    try:
        shared = os.statvfs(SHM)
        total, free = shared.f_blocks * shared.f_frsize, shared.f_bavail * shared.f_frsize
    except OSError as error:
        problem = error.strerror or str(error)
    return Limits(
        _limit(files[0]),
        _limit(files[1]),
        _limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        total,
        free,
        problem,
        list_folder("/sys/class/infiniband"),
        processes,
        _exempt(),
        threads_of(os.getuid()) if processes is not None else None,
        _limit(resource.getrlimit(resource.RLIMIT_AS)[0]),
        _limit(resource.getrlimit(resource.RLIMIT_FSIZE)[0]),
        _affinity(),
        os.cpu_count(),
        {name: os.environ[name] for name in THREAD_VARIABLES if os.environ.get(name)},
        cgroups(PROC),
        _limit(resource.getrlimit(resource.RLIMIT_CPU)[0]),
        os.getpriority(os.PRIO_PROCESS, 0),
        _is_idle(),
    )


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY or value < 0 else value


def _is_idle() -> bool:
    try:
        return os.sched_getscheduler(0) == os.SCHED_IDLE
    except (AttributeError, OSError):
        return False


def _affinity() -> list[int]:
    try:
        return sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return []


def _exempt() -> bool:
    """Whether the kernel lets this user start processes beyond the limit: root, or with the capability."""
    if os.getuid() == 0:
        return True
    for line in read_text(PROC + "/self/status").splitlines():
        if line.startswith("CapEff:"):
            capabilities = int(line.split()[1], 16)
            return bool(capabilities & (1 << _SYS_ADMIN | 1 << _SYS_RESOURCE))
    return False


def threads_of(user: int) -> int | None:
    """The number of threads of a (real) user; None if processes of others are hidden."""
    count = 0
    try:
        names = [name for name in os.listdir(PROC) if name.isdecimal()][:_MAX_PROCESSES]
    except OSError:
        return None
    for name in names:
        uid, threads = -1, 0
        for line in read_text(f"{PROC}/{name}/status").splitlines():
            if line.startswith("Uid:"):
                uid = int(line.split()[1])
            elif line.startswith("Threads:"):
                threads = int(line.split()[1])
        count += threads if uid == user else 0
    return count or None
