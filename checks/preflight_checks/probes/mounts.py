"""The mount table: the file system of a path, its server, and its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional

from preflight_checks.probes.cgroups import unescaped

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


def mounts(text: str) -> List[Mount]:
    """Parse /proc/self/mounts: the mounts in the order in which they were made."""
    found = []  # type: List[Mount]
    for line in text.splitlines():
        parts = line.split(" ")
        if len(parts) >= 4:
            found.append(Mount(unescaped(parts[1]), parts[2], unescaped(parts[0]), parts[3]))
    return found


def mount_of(path: str, table: List[Mount]) -> Optional[Mount]:
    """The mount of an absolute path without links; if several are mounted there, the last one hides the others."""
    best = None  # type: Optional[Mount]
    for mount in table:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def mounted() -> List[Mount]:
    """The mounts of this process; empty if the system's mount table cannot be read."""
    try:
        with open(TABLE, encoding="utf-8", errors="replace") as file:
            return mounts(file.read())
    except OSError:
        return []
