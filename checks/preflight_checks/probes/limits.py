"""The limits a rank would inherit: open files, locked memory, shared memory; and RDMA devices."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

SHM = "/dev/shm"


@dataclass(frozen=True)
class Limits:
    """Limits of a process in the job context. None stands for unlimited; sizes are bytes.

    `shm_total_bytes` and `shm_free_bytes` are None where /dev/shm cannot be looked at (`shm_problem` says why).
    """

    open_files_soft: Optional[int]
    open_files_hard: Optional[int]
    locked_memory_soft_bytes: Optional[int]
    locked_memory_hard_bytes: Optional[int]
    shm_total_bytes: Optional[int] = None
    shm_free_bytes: Optional[int] = None
    shm_problem: str = ""
    rdma_devices: List[str] = field(default_factory=list)


def limits(params: Dict[str, Any]) -> Limits:
    """The limits of this process. Run it in the job context, where they are those of the ranks."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    total = free = None  # type: Optional[int]
    problem = ""
    try:
        shared = os.statvfs(SHM)
        total, free = shared.f_blocks * shared.f_frsize, shared.f_bavail * shared.f_frsize
    except OSError as error:
        problem = error.strerror or str(error)
    return Limits(
        _limit(files[0]),
        _limit(files[1]),
        _limit(locked[0]),
        _limit(locked[1]),
        total,
        free,
        problem,
        _rdma_devices(),
    )


def _limit(value: int) -> Optional[int]:
    return None if value == resource.RLIM_INFINITY or value < 0 else value


def _rdma_devices() -> List[str]:
    try:
        return sorted(os.listdir("/sys/class/infiniband"))
    except OSError:
        return []
