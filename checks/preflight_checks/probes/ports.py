"""Whether a port can be bound on this node, the process that uses it if not, and free ports."""

from __future__ import annotations

import errno
import os
import random
import re
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Iterator

from preflight.agent.cheap import cheap
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes.interfaces import KernelNetwork, parse_port_list, visible_network

_LISTEN = 0x0A
#: The command of a holder that is an agent of preflight, and how its last argument begins.
OTHER_RUN, _AGENT_MARK = "another run of preflight", "preflight-"
#: A node may have tens of thousands of processes; the search for the holder stops at this number.
_MAX_PROCESSES = 20000


@dataclass(frozen=True)
class Holder:
    """A process with a socket on the port. `pid` is 0 and `command` empty if /proc does not show them."""

    local: str
    listening: bool
    pid: int = 0
    command: str = ""
    uid: int = -1


@dataclass(frozen=True)
class PortState:
    """The state of a port. `problem` is empty if it could be bound, otherwise `in-use`, `not-local`, `denied` or
    `other`.
    """

    port: int
    host: str = ""
    problem: str = ""
    detail: str = ""
    holders: list[Holder] = field(default_factory=list)


def bindable(params: dict[str, Any]) -> PortState:
    """Bind and listen on `params["port"]` like the launcher, and release it immediately.

    Without `host`, this works like torch's store: with SO_REUSEADDR, it binds the IPv6 wildcard for both families, or
    else the IPv4 wildcard. With `host` (an address, like those that parameter servers bind), it binds only that
    address.
    """
    port, host = int(params["port"]), str(params.get("host") or "")
    if not 0 < port < 65536:
        return PortState(port, host, "other", "expected a port from 1 to 65535")
    try:
        bind(host, port)
    except OSError as error:
        problem = _PROBLEMS.get(error.errno or 0, "other")
        holders = list(holders_of(port)) if problem == "in-use" else []
        return PortState(port, host, problem, error.strerror or str(error), holders)
    return PortState(port, host)


_PROBLEMS = {errno.EADDRINUSE: "in-use", errno.EADDRNOTAVAIL: "not-local", errno.EACCES: "denied"}


def bind(host: str, port: int) -> None:
    """Listen briefly on the port, as `bindable` does. Raises OSError."""
    if host:
        found = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)[0]
        bind_socket(found[0], found[4]).close()
        return
    try:
        bind_socket(socket.AF_INET6, ("::", port), both=True).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        bind_socket(socket.AF_INET, ("0.0.0.0", port)).close()


def is_vacant(port: int) -> bool:
    """Return whether nothing listens on the port; it is bound without listening, so as not to disturb other
    processes.
    """
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as taker:
                taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    taker.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                taker.bind((address, port))
                return True
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
    return False


def bind_socket(family: int, address: tuple[Any, ...], both: bool = False) -> socket.socket:
    """Return a listening socket on `address`; with `both`, an IPv6 socket that also accepts IPv4. Raises OSError."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


@dataclass(frozen=True)
class Row:
    """One line of /proc/net/tcp: local address and port, state, owner and the inode of the socket."""

    address: str
    port: int
    state: int
    uid: int
    inode: int


def parse_tcp_table(text: str) -> list[Row]:
    """Parse /proc/net/tcp or tcp6: the sockets; lines of another format are skipped."""
    rows: list[Row] = []
    for line in text.splitlines()[1:]:
        parts = line.split()
        if len(parts) < 10 or ":" not in parts[1]:
            continue
        address, _, port = parts[1].rpartition(":")
        try:
            rows.append(Row(_address(address), int(port, 16), int(parts[3], 16), int(parts[7]), int(parts[9])))
        except (ValueError, OSError):
            continue
    return rows


def _address(text: str) -> str:
    """Parse an address that the kernel prints as hexadecimal words in host byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = b"".join(struct.pack("=I", word) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def is_listening(port: int) -> bool:
    """Return whether a socket in this network namespace listens on the port, without connecting."""
    return any(row.state == _LISTEN for row in _rows_of(port))


def _rows_of(port: int) -> list[Row]:
    rows: list[Row] = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as file:
                rows += [row for row in parse_tcp_table(file.read()) if row.port == port]
        except OSError:
            continue
    return rows


def holders_of(port: int) -> Iterator[Holder]:
    """Yield the sockets with this local port, listening ones first, with their processes if visible."""
    rows = _rows_of(port)
    listening = [row for row in rows if row.state == _LISTEN]
    rows = (listening or rows)[:4]
    owners = _owners({row.inode for row in rows if row.inode})
    for row in rows:
        pid, command = owners.get(row.inode, (0, ""))
        local = ("[%s]:%d" if ":" in row.address else "%s:%d") % (row.address, port)
        yield Holder(local, row.state == _LISTEN, pid, command, row.uid)


def _owners(inodes: set[int]) -> dict[int, tuple[int, str]]:
    """Return the process id and command by socket inode, for processes with readable descriptors."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    owners: dict[int, tuple[int, str]] = {}
    if not wanted:
        return owners
    for entry in [name for name in os.listdir("/proc") if name.isdecimal()][:_MAX_PROCESSES]:
        folder = f"/proc/{entry}/fd"
        try:
            for descriptor in os.listdir(folder):
                inode = wanted.get(os.readlink(folder + "/" + descriptor))
                if inode is not None:
                    owners.setdefault(inode, (int(entry), _command(entry)))
        except OSError:
            continue
        if len(owners) == len(wanted):
            break
    return owners


def _command(pid: str) -> str:
    """Return the program and its first argument; the rest may contain secrets and is left out."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            parts = [part.decode("utf-8", "replace") for part in file.read(4096).split(b"\0") if part]
    except OSError:
        return ""
    if "-c" in parts[:6] and parts[-1].startswith(_AGENT_MARK):
        return OTHER_RUN
    shown = [os.path.basename(parts[0])] if parts else []
    for part in parts[1:3]:
        if part.startswith("-") and part not in ("-m", "-u", "-l", "-lk"):
            break
        shown.append(part)
    return " ".join(shown)[:120]


#: Below are the ports of well-known services; above, only the ephemeral range is likely to be in use.
FIRST, LAST = 10000, 65535
#: The number of ports that are tried for each requested one.
_TRIES = 8


@dataclass(frozen=True)
class FreePorts:
    """Ports that could be bound a moment ago, in random order so that concurrent requests get different ports."""

    ports: list[int] = field(default_factory=list)


@cheap("node")
def free_ports(params: dict[str, Any]) -> FreePorts:
    """Return up to `params["count"]` free ports, each bound briefly. Raises ProbeUnavailable if none is found."""
    count = int(params["count"])
    known = candidates(visible_network())
    ports: list[int] = []
    for port in random.sample(known, min(len(known), _TRIES * count)):
        try:
            bind("", port)
        except OSError:
            continue
        ports.append(port)
        if len(ports) == count:
            break
    if not ports:
        raise ProbeUnavailable("missing", f"no free port was found between {FIRST} and {LAST}")
    return FreePorts(ports)


def candidates(network: KernelNetwork) -> list[int]:
    """Return unreserved ports below the ephemeral range; if these are few, all ports outside it, or else all ports."""
    kept = set(parse_port_list(network.reserved_ports))
    every = [port for port in range(FIRST, LAST + 1) if port not in kept]
    first, last = network.first_port or LAST + 1, network.last_port or LAST + 1
    below = [port for port in every if port < first]
    outside = [port for port in every if not first <= port <= last]
    return next((some for some in (below, outside) if len(some) >= 1000), every)


# The proxy variables that a process of the job would see.


PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
EXCEPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")


@dataclass(frozen=True)
class Proxies:
    """`proxies` maps a variable to `scheme://host:port`, without user and password; `exceptions` maps one to its
    entries.
    """

    proxies: dict[str, str] = field(default_factory=dict)
    exceptions: dict[str, list[str]] = field(default_factory=dict)


def proxies(params: dict[str, Any]) -> Proxies:
    """Return the proxy variables of this process. Run it in the job context, where they are those of the ranks."""
    return Proxies(
        {name: without_user(os.environ[name]) for name in PROXIES if os.environ.get(name)},
        {name: entries(os.environ[name]) for name in EXCEPTIONS if os.environ.get(name)},
    )


def without_user(text: str) -> str:
    """Return `http://proxy:3128` for `http://me:secret@proxy:3128/`: credentials of a proxy never leave the node."""
    scheme, separator, rest = text.rpartition("://")
    # The text before the last @ may be a password with any characters.
    host = rest.rpartition("@")[2].split("/")[0].split("?")[0]
    plain = re.sub(r"[^\w.:\[\]-]", "?", host)
    return "{}://{}".format(re.sub(r"\W", "?", scheme), plain) if separator else plain


def entries(text: str) -> list[str]:
    """Return the entries of a list of exceptions, separated by commas or spaces."""
    return [part for part in re.split(r"[,\s]+", text) if part]
