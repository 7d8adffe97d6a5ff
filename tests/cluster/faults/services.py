"""Daemons, names, limits and clocks that are wrong on one node."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..compiled import compile_library
from ..namespace import HOME, ClusterError
from ..node import Node
from .base import edited

__all__ = [
    "clock_offset",
    "hosts_entry",
    "hosts_missing",
    "login_noise",
    "login_shell",
    "login_start",
    "low_limits",
    "own_file",
    "port_in_use",
    "priority",
    "sshd_frozen",
    "sshd_stopped",
]

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
