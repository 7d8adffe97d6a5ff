"""Daemons, sessions, environments, limits and clocks that are wrong on one node."""

from __future__ import annotations

import glob
import itertools
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.devices import compile_library
from tests.cluster.faults.base import FaultUnavailable, edited
from tests.cluster.faults.files import own_copy_of_folder
from tests.cluster.namespace import HOME, ClusterError
from tests.cluster.node import Node

_LISTEN = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
sys.stdin.read()
"""


@contextmanager
def sshd_stopped(node: Node) -> Iterator[None]:
    """Nothing listens on port 22: ssh is refused at once."""
    node.stop_sshd()
    try:
        yield
    finally:
        node.start_sshd()


@contextmanager
def sshd_frozen(node: Node) -> Iterator[None]:
    """sshd accepts connections (in the kernel) and never answers."""
    node.signal_sshd("STOP")
    try:
        yield
    finally:
        node.signal_sshd("CONT")


@contextmanager
def low_limits(
    node: Node, *, nofile: int | None = None, memlock: int | None = None, cpu: int | None = None
) -> Iterator[None]:
    """New sessions get these soft limits: open files, locked memory in bytes, and seconds of CPU time."""
    wanted = {"nofile": nofile, "memlock": memlock, "cpu": cpu}
    limits = {name: value for name, value in wanted.items() if value is not None}
    before = {name: _soft_limit(node, name) for name in limits}
    try:
        for name, value in limits.items():
            _set_soft_limit(node, name, str(value))
        yield
    finally:
        for name, old in before.items():
            _set_soft_limit(node, name, old)


@contextmanager
def hosts_entry(node: Node, name: str, address: str) -> Iterator[None]:
    """On this node `name` resolves only to `address`, as with Debian's 127.0.1.1 for the own name."""
    with edited(node, "/etc/hosts", f"{address} {name}\n{_hosts_without(node, name)}"):
        yield


@contextmanager
def hosts_missing(node: Node, name: str) -> Iterator[None]:
    """This node cannot resolve `name`."""
    with edited(node, "/etc/hosts", _hosts_without(node, name)):
        yield


@contextmanager
def own_file(node: Node, path: str, text: str) -> Iterator[None]:
    """One of the node's own files (below /etc, /run) has this text, such as /etc/resolv.conf."""
    with edited(node, path, text):
        yield


@contextmanager
def login_noise(node: Node, text: str) -> Iterator[None]:
    """The shell of every ssh session on the node prints `text` first, as a chatty profile does."""
    with edited(node, f"{HOME}/.bashrc", f"cat <<'END_OF_NOISE'\n{text}\nEND_OF_NOISE\n"):
        yield


@contextmanager
def login_start(node: Node, text: str) -> Iterator[None]:
    """The start-up file of the login shell on the node has this text."""
    with edited(node, f"{HOME}/.bashrc", text):
        yield


@contextmanager
def login_shell(node: Node, shell: str) -> Iterator[None]:
    """The user database of the node gives root this login shell."""
    accounts = [line.split(":") for line in node.read_text("/etc/passwd").splitlines()]
    changed = [[*words[:-1], shell] if words[0] == "root" else words for words in accounts]
    with edited(node, "/etc/passwd", "".join(":".join(words) + "\n" for words in changed)):
        yield


@contextmanager
def priority(node: Node, niceness: int) -> Iterator[None]:
    """New sessions run with this niceness."""
    renice = "renice -n {} -p $(cat /run/sshd.pid)"
    node.must(["sh", "-c", renice.format(niceness)])
    try:
        yield
    finally:
        node.must(["sh", "-c", renice.format(0)])


@contextmanager
def port_in_use(node: Node, port: int, *, address: str = "0.0.0.0", last: Sequence[str] = ()) -> Iterator[None]:
    """Another program listens on the port, accepts, and never answers; `last` are its last arguments."""
    command = [sys.executable, "-I", "-S", "-c", _LISTEN, address, str(port), *last]
    with node.popen(command, stdin=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            if process.stdout.readline() != "listening\n":
                raise ClusterError(f"port {port} of {node.name}: {process.stderr.read().strip()}")
            yield
        finally:
            process.kill_session()


@contextmanager
def clock_offset(node: Node, seconds: float) -> Iterator[None]:
    """Programs started on the node read a wall clock that is `seconds` ahead.

    Monotonic clocks, sleeps and file times stay right, and so do programs without the C library
    or already running.
    """
    library = "/run/faulty-clock.so"
    shutil.copy(compile_library("faulty_clock.c"), node.path(library))
    with (
        edited(node, "/run/clock-offset", f"{seconds}\n"),
        edited(node, "/etc/ld.so.preload", f"{library}\n"),
    ):
        yield


def _hosts_without(node: Node, name: str) -> str:
    lines = node.read_text("/etc/hosts").splitlines()
    return "".join(f"{line}\n" for line in lines if name not in line.split()[1:])


def _soft_limit(node: Node, name: str) -> str:
    show = f"prlimit --pid $(cat /run/sshd.pid) --{name} --output SOFT --noheadings --raw"
    return node.must(["sh", "-c", show]).strip()


def _set_soft_limit(node: Node, name: str, value: str) -> None:
    # Soft only: a lowered hard limit could not be restored without CAP_SYS_RESOURCE.
    node.must(["sh", "-c", f"prlimit --pid $(cat /run/sshd.pid) --{name}={value}:"])


# Differences in the environment of a node's processes.


#: Where `python_on` puts an interpreter.
PYTHON = "/srv/environment/bin/python3"


@contextmanager
def session_variables(*nodes: Node, **variables: str) -> Iterator[None]:
    """New ssh sessions on these nodes get the variables, as from /etc/environment."""
    for node in nodes:
        node.stop_sshd()
        node.start_sshd(variables)
    try:
        yield
    finally:
        for node in nodes:
            node.stop_sshd()
            node.start_sshd()


@contextmanager
def login_refused(node: Node, source: Node) -> Iterator[None]:
    """The node rejects logins from `source`, as with a deny list or a missing key."""
    node.stop_sshd()
    node.start_sshd(lines=f"DenyUsers root@{source.data_address} root@{source.management_address}\n")
    try:
        yield
    finally:
        node.stop_sshd()
        node.start_sshd()


@contextmanager
def nccl_conf(node: Node, text: str) -> Iterator[None]:
    """The node's /etc/nccl.conf has this text."""
    with edited(node, "/etc/nccl.conf", text):
        yield


@contextmanager
def home_file(node: Node, name: str, text: str) -> Iterator[None]:
    """A file in the home directory of the job's user on this node."""
    with edited(node, f"{HOME}/{name}", text):
        yield


@contextmanager
def python_on(nodes: Sequence[Node], program: str = sys.executable) -> Iterator[None]:
    """`PYTHON` runs `program` on these nodes; on the others it does not exist."""
    for node in nodes:
        node.write_text(PYTHON, f'#!/bin/sh\nexec {program} "$@"\n')
        node.must(["chmod", "755", PYTHON])
    try:
        yield
    finally:
        for node in nodes:
            node.must(["rm", "-rf", str(Path(PYTHON).parent.parent)])


def old_python() -> str:
    """An interpreter of this machine that is older than 3.8. Raises FaultUnavailable when there is none."""
    patterns = ("/usr/bin/python3.[67]", "/root/.pyenv/versions/3.[67].*/bin/python3", "/opt/*/bin/python3.[67]")
    for pattern in patterns:
        for found in sorted(glob.glob(pattern)):  # noqa: PTH207
            return found
    raise FaultUnavailable("no Python older than 3.8 is installed")


@contextmanager
def extra_folder(nodes: Sequence[Node], path: str, files: Mapping[str, str] | None = None) -> Iterator[None]:
    """Only these nodes have this folder below /srv, with these files."""
    for node in nodes:
        node.must(["mkdir", "-p", path])
        for name, text in (files or {}).items():
            node.write_text(f"{path}/{name}", text)
    try:
        yield
    finally:
        for node in nodes:
            node.must(["rm", "-rf", path])


@contextmanager
def other_version(node: Node, distribution: str, version: str) -> Iterator[None]:
    """The metadata of a package on this node gives another version; the package itself is the same."""
    found = metadata.distribution(distribution)
    folder = next(Path(str(found.locate_file(file))) for file in found.files or () if file.name == "METADATA").parent
    with own_copy_of_folder(node, str(folder)):
        other = folder.with_name(folder.name.replace(f"-{found.version}.", f"-{version}."))
        node.must(["mv", str(folder), str(other)])
        node.must(["sed", "-i", f"s/^Version: .*/Version: {version}/", str(other / "METADATA")])
        yield


@contextmanager
def extra_distribution(node: Node, name: str, version: str, *, commit: str = "") -> Iterator[None]:
    """This node's Python finds the metadata of an extra package, installed in place at `commit` if given."""
    folder = Path(str(metadata.distribution("pytest").locate_file(f"{name}-{version}.dist-info")))
    with own_copy_of_folder(node, str(folder)):
        node.must(["mkdir", str(folder)])
        node.must(["tee", str(folder / "METADATA")], input=f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if commit:
            node.write_text(f"/srv/trees/{name}/.git/HEAD", f"{commit}\n")
            place = json.dumps({"url": f"file:///srv/trees/{name}", "dir_info": {"editable": True}})
            node.must(["tee", str(folder / "direct_url.json")], input=place)
        try:
            yield
        finally:
            node.must(["rm", "-rf", "/srv/trees"])


_EARLIER = """
import socket, sys, time
if len(sys.argv) > 1:
    listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("runs", flush=True)
time.sleep(3600)
"""


@contextmanager
def left_over(
    node: Node, script: str = "train.py", *, port: int = 0, stopped: bool = False, role: str = ""
) -> Iterator[None]:
    """A process of an earlier run, of the same user and script, still runs, and may listen on a port or be stopped."""
    path = f"/srv/earlier/{script}"
    node.write_text(path, _EARLIER)
    command = [sys.executable, path, *([str(port)] if port else [])]
    with node.popen(command, env={"TRAINING_ROLE": role} if role else None) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            if process.stdout.readline() != "runs\n":
                raise ClusterError(f"{path} on {node.name}: {process.stderr.read().strip()}")
            if stopped:
                process.send_signal(signal.SIGSTOP)
            yield
        finally:
            # SIGKILL also ends stopped processes.
            process.send_signal(signal.SIGKILL)
            process.kill_session()
            node.must(["rm", "-rf", "/srv/earlier"])


@contextmanager
def left_over_lock(node: Node, extension: str = "fused_adam") -> Iterator[None]:
    """A build of a torch extension was killed two hours ago, and its lock stayed."""
    folder = f"{HOME}/.cache/torch_extensions"
    try:
        node.must(["mkdir", "-p", f"{folder}/py311_cpu/{extension}"])
        node.must(["touch", "-d", "2 hours ago", f"{folder}/py311_cpu/{extension}/lock"])
        yield
    finally:
        node.must(["rm", "-rf", folder])


@contextmanager
def left_over_segment(node: Node, size_bytes: int) -> Iterator[None]:
    """A killed run of torch left a segment in shared memory two hours ago."""
    path = "/dev/shm/torch_4000000_1234_0"
    try:
        node.must(["fallocate", "-l", str(size_bytes), path])
        node.must(["touch", "-d", "2 hours ago", path])
        yield
    finally:
        node.must(["rm", "-f", path])


# Control groups that limit the sessions of one node: CPU, cores, memory or processes.


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


# Open MPI and MPICH on the virtual nodes: those of the machine, which can be hidden on one node.


@contextmanager
def helper_gone(cluster: Cluster, name: str) -> Iterator[None]:
    """On this node MPI's helper programs cannot be run."""
    node = cluster.node(name)
    node.write_text("/run/nothing", "")
    covered = {str(Path(path).resolve()) for tool in ("orted", "hydra_pmi_proxy") if (path := shutil.which(tool))}
    for path in sorted(covered):
        node.must(["mount", "--bind", "/run/nothing", path])
    try:
        yield
    finally:
        for path in sorted(covered):
            node.must(["umount", "--lazy", path])
