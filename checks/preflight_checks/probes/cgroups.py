"""The limits of this process's control groups (CPU time, memory, processes), and the mount table.

A limit may be set on any group between the process and the root of the hierarchy, and the tightest one counts. In a
container only the mounted part of the hierarchy is visible.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Iterator

from preflight.agent.process import read_text

#: A memory limit of version 1 from this value on means none: the kernel shows the largest possible number of pages.
_UNLIMITED_BYTES = 1 << 60
#: Groups are nested only a few levels; a longer path is invalid.
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Cgroups:
    """The tightest limits on the path up from this process's groups. None means no limit.

    `versions` names the hierarchies that could be read (`v1`, `v2`), empty if none could; each `..._at` is the folder
    of the group with the limit. `memory_used_bytes` and `processes_used` are of that group. `throttled` is the share of
    periods in which the group with the CPU quota had to wait, since it was made. `hidden`: the process is in a group,
    but no hierarchy is mounted that would show its limits.
    """

    versions: str = ""
    cpu_quota_cores: float | None = None
    cpu_quota_at: str = ""
    throttled: float | None = None
    memory_limit_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_limit_at: str = ""
    processes_limit: int | None = None
    processes_used: int | None = None
    processes_limit_at: str = ""
    hidden: bool = False


@dataclass(frozen=True)
class MountedHierarchy:
    """A mounted hierarchy: the group at the mount point, and its controllers (empty for version 2)."""

    root: str
    point: str
    controllers: tuple[str, ...]


def cgroups(proc: str = "/proc", base: str = "") -> Cgroups:
    """The limits of this process. Tests override `proc` and `base` (the prefix of mount points)."""
    membership = parse_membership(read_text(proc + "/self/cgroup"))
    mounts = parse_mounts(read_text(proc + "/self/mountinfo", 1 << 20))
    folders = {name: list(_ancestor_folders(name, membership, mounts, base)) for name in ("cpu", "memory", "pids", "")}
    seen = [version for version, is_there in (("v1", _any_v1(folders)), ("v2", bool(folders[""]))) if is_there]
    cores, cores_at = _tightest_cpu(folders["cpu"], folders[""])
    memory, memory_at = _tightest(
        [(folder, "memory.limit_in_bytes") for folder in folders["memory"]]
        + [(folder, name) for folder in folders[""] for name in ("memory.max", "memory.high")]
    )
    processes, processes_at = _tightest([(folder, "pids.max") for folder in folders["pids"] + folders[""]])
    return Cgroups(
        "+".join(seen),
        cores,
        cores_at,
        _throttled(cores_at) if cores_at else None,
        memory,
        _first_number(memory_at, ("memory.current", "memory.usage_in_bytes")),
        memory_at,
        processes,
        _first_number(processes_at, ("pids.current",)),
        processes_at,
        bool(membership) and not seen,
    )


def parse_membership(text: str) -> dict[str, str]:
    """Parse /proc/self/cgroup: the group of each controller; version 2's under the empty name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                found[controller] = parts[2]
    return found


def parse_mounts(text: str) -> list[MountedHierarchy]:
    """Parse /proc/self/mountinfo: the mounted hierarchies."""
    found: list[MountedHierarchy] = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if not separator or len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = tuple(kind[2].split(",")) if kind[0] == "cgroup" else ()
        found.append(MountedHierarchy(unescaped(fields[3]), unescaped(fields[4]), controllers))
    return found


def unescaped(text: str) -> str:
    """Decode a path of the mount tables, where blanks and the like are octal numbers."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _ancestor_folders(
    controller: str, membership: dict[str, str], mounts: list[MountedHierarchy], base: str
) -> Iterator[str]:
    """The folders of the process's group and its ancestors, as far as they are mounted."""
    group = membership.get(controller)
    if group is None:
        return
    for mount in mounts:
        if (controller in mount.controllers) if controller else not mount.controllers:
            root = mount.root.rstrip("/")
            below = group[len(root) :] if group == root or group.startswith(root + "/") else ""
            # Outside the mounted part ("/../.."), the mount point is the nearest visible group.
            parts = [] if ".." in below.split("/") else [part for part in below.split("/") if part][:_MAX_DEPTH]
            for depth in range(len(parts), -1, -1):
                folder = base + "/".join([mount.point.rstrip("/")] + parts[:depth])
                if os.path.isdir(folder):
                    yield folder
            return


def _any_v1(folders: dict[str, list[str]]) -> bool:
    return any(found for name, found in folders.items() if name)


def _tightest_cpu(first: list[str], second: list[str]) -> tuple[float | None, str]:
    best: float | None = None
    where: str = ""
    for folder in first + second:
        if folder in first:
            quota = _number(folder, "cpu.cfs_quota_us")
            period = _number(folder, "cpu.cfs_period_us")
        else:
            quota, period = _pair(read_text(folder + "/cpu.max"))
        if quota is not None and period and quota > 0 and (best is None or quota / period < best):
            best, where = quota / period, folder
    return best, where


def _pair(text: str) -> tuple[int | None, int | None]:
    words = text.split()
    if len(words) != 2 or not (words[0].isdecimal() and words[1].isdecimal()):
        return None, None
    return int(words[0]), int(words[1])


def _tightest(places: list[tuple[str, str]]) -> tuple[int | None, str]:
    best: int | None = None
    where: str = ""
    for folder, name in places:
        value = _number(folder, name)
        if value is not None and 0 <= value < _UNLIMITED_BYTES and (best is None or value < best):
            best, where = value, folder
    return best, where


def _throttled(folder: str) -> float | None:
    counts: dict[str, int] = {}
    for line in read_text(folder + "/cpu.stat").splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdecimal():
            counts[name] = int(value)
    periods = counts.get("nr_periods", 0)
    return counts.get("nr_throttled", 0) / periods if periods else None


def _first_number(folder: str, names: tuple[str, ...]) -> int | None:
    for name in names if folder else ():
        value = _number(folder, name)
        if value is not None:
            return value
    return None


def _number(folder: str, name: str) -> int | None:
    text = read_text(f"{folder}/{name}")
    return int(text) if text.lstrip("-").isdecimal() else None


TABLE = "/proc/self/mounts"
#: File systems that several machines share: a file written on one node appears on the others.
SHARED = frozenset(
    (
        *("nfs", "nfs4", "lustre", "gpfs", "mmfs", "beegfs", "beegfs_nodev", "ceph", "fuse.ceph", "glusterfs"),
        *("fuse.glusterfs", "cifs", "smb3", "smbfs", "afs", "orangefs", "pvfs2", "panfs", "wekafs", "pfs", "virtiofs"),
        *("9p", "gfs2", "ocfs2", "fuse.juicefs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.blobfuse2", "dvs"),
        *("fuse.mount-s3", "fuse.weka", "cvmfs2", "fuse.cvmfs2", "efs", "daos", "fuse.dfuse", "quobyte", "moosefs"),
    )
)


@dataclass(frozen=True)
class Mount:
    """One line of the table. `source` is the device, or `server:/export` of a network file system."""

    point: str
    kind: str
    source: str
    options: str

    @property
    def read_only(self) -> bool:
        """Whether it is mounted read-only."""
        return "ro" in self.options.split(",")

    @property
    def no_programs(self) -> bool:
        """Whether programs and libraries cannot be run from there."""
        return "noexec" in self.options.split(",")


def mounts(text: str) -> list[Mount]:
    """Parse /proc/self/mounts: the mounts in the order in which they were made."""
    found: list[Mount] = []
    for line in text.splitlines():
        parts = line.split(" ")
        if len(parts) >= 4:
            found.append(Mount(unescaped(parts[1]), parts[2], unescaped(parts[0]), parts[3]))
    return found


def mount_of(path: str, table: list[Mount]) -> Mount | None:
    """The mount of an absolute path without links; if several are mounted there, the last one hides the others."""
    best: Mount | None = None
    for mount in table:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def mounted() -> list[Mount]:
    """The mounts of this process; empty if the system's mount table cannot be read."""
    try:
        with open(TABLE, encoding="utf-8", errors="replace") as file:
            return mounts(file.read())
    except OSError:
        return []
