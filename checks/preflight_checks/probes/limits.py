"""The limits that a rank inherits: resource limits, control groups, usable CPUs, shared memory, RDMA devices."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass, field
from typing import Any, Iterator

from preflight._util.redaction import scrub
from preflight.agent.cheap import cheap
from preflight.agent.process import list_folder, pids, read_text
from preflight.agent.wire import ProbeUnavailable

# The limits of this process's control groups (CPU time, memory, processes), and the mount table. A limit may be set
# on any group between the process and the root of the hierarchy, and the tightest one counts. In a container only
# the mounted part of the hierarchy is visible.


#: A memory limit of version 1 from this value on means none: the kernel shows the largest possible number of pages.
_UNLIMITED_BYTES = 1 << 60
#: Groups are nested only a few levels; a longer path is invalid.
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Cgroups:
    """The tightest limits of this process's groups and their ancestors. None means no limit.

    `versions` names the hierarchies that could be read (`v1`, `v2`), empty if none could; each `..._at` is the folder
    of the group with the limit. `memory_used_bytes` and `processes_used` are of that group. `throttled` is the share of
    periods, since its creation, in which the group with the CPU quota had to wait. `hidden`: whether the process is in
    a group, but no mounted hierarchy shows its limits.
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
    """Return the limits of this process. Tests override `proc` and `base` (the prefix of mount points)."""
    membership = parse_membership(read_text(proc + "/self/cgroup"))
    mounts = parse_mounts(read_text(proc + "/self/mountinfo", 1 << 20))
    folders = {name: list(_ancestor_folders(name, membership, mounts, base)) for name in ("cpu", "memory", "pids", "")}
    versions = ["v1"] if any(folders[name] for name in ("cpu", "memory", "pids")) else []
    versions += ["v2"] if folders[""] else []
    cores, cores_at = _tightest_cpu(folders["cpu"], folders[""])
    memory, memory_at = _tightest_limit(
        [(folder, "memory.limit_in_bytes") for folder in folders["memory"]]
        + [(folder, name) for folder in folders[""] for name in ("memory.max", "memory.high")]
    )
    processes, processes_at = _tightest_limit([(folder, "pids.max") for folder in folders["pids"] + folders[""]])
    return Cgroups(
        "+".join(versions),
        cores,
        cores_at,
        _throttled_share(cores_at) if cores_at else None,
        memory,
        _first_number(memory_at, ("memory.current", "memory.usage_in_bytes")),
        memory_at,
        processes,
        _first_number(processes_at, ("pids.current",)),
        processes_at,
        bool(membership) and not versions,
    )


def parse_membership(text: str) -> dict[str, str]:
    """Parse /proc/self/cgroup: the group of each controller, with version 2's under an empty name."""
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
        found.append(MountedHierarchy(unescape_path(fields[3]), unescape_path(fields[4]), controllers))
    return found


def unescape_path(text: str) -> str:
    """Decode a path of the mount tables, in which spaces and the like are octal numbers."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _ancestor_folders(
    controller: str, membership: dict[str, str], mounts: list[MountedHierarchy], base: str
) -> Iterator[str]:
    """Yield the folders of the process's group and its ancestors, as far as they are mounted."""
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


def _tightest_limit(places: list[tuple[str, str]]) -> tuple[int | None, str]:
    best: int | None = None
    where: str = ""
    for folder, name in places:
        value = _number(folder, name)
        if value is not None and 0 <= value < _UNLIMITED_BYTES and (best is None or value < best):
            best, where = value, folder
    return best, where


def _throttled_share(folder: str) -> float | None:
    counts: dict[str, int] = {}
    for line in read_text(folder + "/cpu.stat").splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdecimal():
            counts[name] = int(value)
    periods = counts.get("nr_periods", 0)
    return counts.get("nr_throttled", 0) / periods if periods else None


def _first_number(folder: str, names: tuple[str, ...]) -> int | None:
    found = (_number(folder, name) for name in names if folder)
    return next((value for value in found if value is not None), None)


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
        """Return whether the file system is mounted read-only."""
        return "ro" in self.options.split(",")


def parse_mount_table(text: str) -> list[Mount]:
    """Parse /proc/self/mounts: the mounts in the order in which they were created."""
    found: list[Mount] = []
    for line in text.splitlines():
        parts = line.split(" ")
        if len(parts) >= 4:
            found.append(Mount(unescape_path(parts[1]), parts[2], unescape_path(parts[0]), parts[3]))
    return found


def mount_of(path: str, table: list[Mount]) -> Mount | None:
    """Return the mount of an absolute path without links; the last of several mounts hides the others."""
    best: Mount | None = None
    for mount in table:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def current_mounts() -> list[Mount]:
    """Return the mounts of this process; empty if the system's mount table cannot be read."""
    return parse_mount_table(read_text(TABLE, 1 << 24))


SHM = "/dev/shm"
PROC = "/proc"
#: Variables that limit the number of threads of libraries.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
#: Bits of `CapEff` with which the kernel does not count processes (kernel/fork.c, copy_process).
_SYS_ADMIN, _SYS_RESOURCE = 21, 24


@dataclass(frozen=True)
class Limits:
    """Limits of a process in the job context. None means unlimited; sizes are bytes.

    `shm_total_bytes` and `shm_free_bytes` are None if /dev/shm cannot be examined (`shm_problem` is the reason).
    `processes_soft` limits the threads of one user on the whole node; `threads_of_user` is their number (None: not
    visible) and `processes_exempt` is whether the kernel ignores the limit for this user. `usable_cpus` is the affinity
    mask, `online_cpus` the number of CPUs; empty and None if the system does not report them. `niceness` is 0 unless
    changed; `idle` means the scheduling policy that gets only idle CPU time (SCHED_IDLE).
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
    """Return the limits of this process. Run it in the job context, where they are those of the ranks."""
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
        _is_exempt(),
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


def _is_exempt() -> bool:
    """Return whether this user may exceed the process limit, as root or with a capability."""
    if os.getuid() == 0:
        return True
    for line in read_text(PROC + "/self/status").splitlines():
        if line.startswith("CapEff:"):
            capabilities = int(line.split()[1], 16)
            return bool(capabilities & (1 << _SYS_ADMIN | 1 << _SYS_RESOURCE))
    return False


def threads_of(user: int) -> int | None:
    """Return the number of threads of a (real) user; None if other users' processes are hidden."""
    count = 0
    for name in pids():
        uid, threads = -1, 0
        for line in read_text(f"{PROC}/{name}/status").splitlines():
            if line.startswith("Uid:"):
                uid = int(line.split()[1])
            elif line.startswith("Threads:"):
                threads = int(line.split()[1])
        count += threads if uid == user else 0
    return count or None


# All settings of this node's kernel, named as in sysctl, and of its modules.


ROOT = "/proc/sys"
MODULES = "/sys/module"
#: Not settings: counters, keys, and values that differ on every node or at every read.
VOLATILE = (
    *("kernel.random.", "kernel.ns_last_pid", "kernel.pty.nr", "kernel.hostname", "kernel.domainname"),
    *("kernel.tainted", "net.ipv4.tcp_fastopen_key", "sunrpc.transports", "fs.binfmt_misc."),
    *("fs.file-nr", "fs.inode-nr", "fs.inode-state", "fs.dentry-state", "fs.quota.", "fs.aio-nr"),
    *("net.netfilter.nf_conntrack_count", "net.netfilter.nf_conntrack_generation"),
    # Not even read: reading makes every processor add up its counters, including isolated ones.
    "vm.stat_refresh",
)
#: Interfaces that appear and disappear with containers and virtual machines.
TRANSIENT_INTERFACES = (
    *("veth", "docker", "br-", "cali", "cni", "flannel", "lxc", "tap", "vnet", "virbr", "kube-", "ifb", "dummy"),
)
_MAX_VALUES = 8000
_MAX_LENGTH = 512


@dataclass(frozen=True)
class KernelSettings:
    """Values by name (`vm.swappiness`), words separated by one space. `unread` counts those that this user may not
    read.

    `modules` are the parameters of loaded and built-in modules (`nvme_core.io_timeout`).
    """

    values: dict[str, str] = field(default_factory=dict)
    unread: int = 0
    modules: dict[str, str] = field(default_factory=dict)


@cheap("node")
def kernel_settings(params: dict[str, Any]) -> KernelSettings:
    """Read the kernel's settings from its own files. Raises ProbeUnavailable if there are none."""
    values, unread = read(ROOT)
    if not values:
        raise ProbeUnavailable("missing", f"the kernel shows no settings under {ROOT}")
    modules, hidden = read_modules(MODULES)
    return KernelSettings(values, unread + hidden, modules)


def read(root: str) -> tuple[dict[str, str], int]:
    """Return every setting under a folder, and the number of unreadable settings."""
    values: dict[str, str] = {}
    unread = 0
    folders: list[tuple[str, str]] = [(root, "")]
    while folders and len(values) < _MAX_VALUES:
        folder, prefix = folders.pop()
        with Folder(folder) as opened:
            for entry, is_folder in opened.entries():
                name = prefix + entry
                if (
                    name.startswith(VOLATILE)
                    or entry == "stable_secret"
                    or (is_folder and entry.startswith(TRANSIENT_INTERFACES))
                ):
                    continue
                if is_folder:
                    folders.append((folder + "/" + entry, name + "."))
                    continue
                text = opened.setting(entry)
                if text is None:
                    unread += 1
                else:
                    values[name] = text
    return values, unread


def read_modules(root: str) -> tuple[dict[str, str], int]:
    """Return every module parameter under a folder, as `module.parameter`, and the number of unreadable parameters."""
    values: dict[str, str] = {}
    unread = 0
    with Folder(root) as modules:
        listed = modules.entries()
    for module, _ in listed:
        with Folder(f"{root}/{module}/parameters") as opened:
            for name, _ in opened.entries():
                if len(values) >= _MAX_VALUES:
                    return values, unread
                text = opened.setting(name)
                if text is None:
                    unread += 1
                else:
                    values[f"{module}.{name}"] = text
    return values, unread


class Folder:
    """A directory of kernel settings.

    Its files are opened relative to its descriptor, because resolving a full path costs as much as reading. A directory
    that cannot be opened is treated as empty.
    """

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            self._fd = -1

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def entries(self) -> list[tuple[str, bool]]:
        """Return the names in the folder, in order, and whether each is a folder."""
        if self._fd < 0:
            return []
        try:
            with os.scandir(self._fd) as entries:
                return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError:
            return []

    def setting(self, name: str) -> str | None:
        """Return the content of a file with single spaces; None if it is write-only, because writing is an action."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=self._fd)
        except OSError:
            return None
        try:
            text = " ".join(os.read(fd, _MAX_LENGTH).decode("utf-8", "replace").split())
        except OSError:
            return None
        finally:
            os.close(fd)
        # Few contain more than numbers; a command, as for core dumps, may contain anything.
        return scrub(text) if "=" in text or "@" in text or " -" in text else text
