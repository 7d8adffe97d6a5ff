"""The protocol of two link probes over TCP, and the kernel's data about such a connection.

Both ends first exchange a token, so that another program on the port is recognised; the listener adds the address from
which it saw the connection come. After that, the client sends frames: a payload, which is acknowledged by its size, or
a command, which is answered in JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

from preflight.agent import wire

MAGIC = b"preflight-link 2 "
TOKEN_BYTES = 16
HELLO_BYTES = len(MAGIC) + 2 * TOKEN_BYTES
#: The answer to a hello ends with the observed address of the client, padded with blanks.
SEEN_BYTES = 48
FRAME = struct.Struct(">cI")
PAYLOAD, COMMAND = b"D", b"C"
MAX_PAYLOAD_BYTES = 16 << 20
_MAX_COMMAND_BYTES = 4096
_TIOCOUTQ = 0x5411
#: A datagram: its train and its number; this number only means that the path is open.
DATAGRAM = struct.Struct(">8sI")
KNOCK = 0xFFFFFFFF
#: struct tcp_info of linux/tcp.h: eight bytes, then these 32-bit fields at these offsets; older kernels end before.
_TCP_INFO = {"snd_mss": 16, "pmtu": 60, "rtt": 68, "rttvar": 72, "total_retrans": 100, "min_rtt": 148, "data_out": 156}


def receive(stream: socket.socket, size: int, ends: float | None = None) -> bytes:
    """Receive exactly `size` bytes, all of them by `ends` if given.

    Raises EOFError when the other side closes before, OSError (its timeout among them) as the socket does.
    """
    data = bytearray()
    while len(data) < size:
        if ends is not None:
            remaining = ends - time.monotonic()
            if remaining <= 0:
                raise socket.timeout(f"only {len(data)} of {size} bytes arrived in time")
            stream.settimeout(remaining)
        more = stream.recv(min(size - len(data), 1 << 18))
        if not more:
            raise EOFError(bytes(data))
        data += more
    return bytes(data)


def hello(token: str) -> bytes:
    """The client's first message."""
    return MAGIC + token.encode("ascii", "replace")


def welcome(token: bytes, seen: str) -> bytes:
    """The listener's answer to the hello."""
    return MAGIC + token + plain_address(seen).encode().ljust(SEEN_BYTES)


def plain_address(text: str) -> str:
    """An address in its usual form: an IPv4 address from an IPv6 socket without its prefix."""
    return text[7:] if text.startswith("::ffff:") and "." in text else text.partition("%")[0]


def exchange_hello(stream: socket.socket, token: str) -> str:
    """Send the hello and return the address that the listener saw. Raises EOFError, OSError, or ValueError."""
    greeting = hello(token)
    stream.sendall(greeting)
    answer = receive(stream, HELLO_BYTES)
    if answer != greeting:
        raise ValueError(f"it responded with {answer[:40]!r}")
    return receive(stream, SEEN_BYTES).decode("ascii", "replace").strip()


def command(stream: socket.socket, **words: Any) -> dict[str, Any]:
    """Send a command and wait for its answer. Raises EOFError, OSError, or ValueError."""
    send_words(stream, **words)
    return receive_words(stream)


def receive_words(stream: socket.socket) -> dict[str, Any]:
    """Read the next frame, which must be a command or an answer to one."""
    kind, size = FRAME.unpack(receive(stream, FRAME.size))
    if kind != COMMAND or size > _MAX_COMMAND_BYTES:
        raise ValueError("expected an answer, got a frame of kind %r with %d bytes" % (kind, size))
    return words_of(receive(stream, size))


def words_of(body: bytes) -> dict[str, Any]:
    """The JSON of a command or an answer. Raises ValueError for any other frame."""
    words = wire.parse(body, max_bytes=_MAX_COMMAND_BYTES)
    if not isinstance(words, dict):
        raise ValueError("expected an object")
    return words


def send_words(stream: socket.socket, **words: Any) -> None:
    """Send a command without waiting, or the answer to one."""
    body = json.dumps(words).encode()
    stream.sendall(FRAME.pack(COMMAND, len(body)) + body)


def family_of(address: str) -> int:
    """The address family of an address in text."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def unacknowledged(stream: socket.socket) -> int:
    """Bytes in the send queue that the other side's kernel has not acknowledged."""
    try:
        return int(struct.unpack("=i", fcntl.ioctl(stream.fileno(), _TIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return 0


def tcp_info(stream: socket.socket) -> dict[str, int]:
    """The kernel's data about a connection; fields that this kernel lacks are left out. Times in us."""
    try:
        data = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    except OSError:
        return {}
    return {name: struct.unpack_from("=I", data, at)[0] for name, at in _TCP_INFO.items() if at + 4 <= len(data)}


def congestion_control(stream: socket.socket) -> str:
    """The algorithm that paces this connection (`cubic`, `bbr`); empty if the kernel does not report it."""
    try:
        name = stream.getsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_CONGESTION", 13), 16)
    except OSError:
        return ""
    return name.split(b"\0")[0].decode("ascii", "replace")


@dataclass(frozen=True)
class Load:
    """The load of a node: its load average of the last minute, and the processors this process may use."""

    average: float | None
    processors: int


def load() -> Load:
    """The current load of this node."""
    try:
        average: float | None = os.getloadavg()[0]
    except OSError:
        average = None
    try:
        processors = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):
        processors = os.cpu_count() or 1
    return Load(average, processors)


def waited_s() -> float | None:
    """How long this thread was ready to run and had no processor; None if the kernel does not count it.

    The second number of schedstat (Documentation/scheduler/sched-stats), in nanoseconds.
    """
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
