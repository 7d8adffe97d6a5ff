"""What two link probes say to each other over TCP, and what the kernel tells of such a connection.

Both ends first exchange a token, so that another program on the port is recognised; the listener adds from which
address it saw the connection come. After that, whoever connected sends frames: a payload, which is acknowledged by
its size, or a command, which is answered in JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct

from preflight.node.record import ANNOTATED, dataclass

if ANNOTATED:
    from typing import Any, Dict, Optional

MAGIC = b"preflight-link 2 "
TOKEN_BYTES = 16
HELLO_BYTES = len(MAGIC) + 2 * TOKEN_BYTES
#: The answer to a hello ends with the address the connection was seen to come from, filled up with blanks.
SEEN_BYTES = 48
FRAME = struct.Struct(">cI")
PAYLOAD, COMMAND = b"D", b"C"
LARGEST_PAYLOAD = 16 << 20
_LARGEST_COMMAND = 4096
_TIOCOUTQ = 0x5411
#: A datagram: the train it belongs to, and its number; this number says only that the way is open.
DATAGRAM = struct.Struct(">8sI")
KNOCK = 0xFFFFFFFF
#: struct tcp_info of linux/tcp.h: eight bytes, then these 32-bit fields at these offsets; older kernels end before.
_TCP_INFO = {"snd_mss": 16, "pmtu": 60, "rtt": 68, "rttvar": 72, "total_retrans": 100, "min_rtt": 148, "data_out": 156}


def receive(stream: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes. Raises EOFError when the other side closes before, OSError as the socket does."""
    data = bytearray()
    while len(data) < size:
        more = stream.recv(min(size - len(data), 1 << 18))
        if not more:
            raise EOFError(bytes(data))
        data += more
    return bytes(data)


def hello(token: str) -> bytes:
    """What whoever connects says first."""
    return MAGIC + token.encode("ascii", "replace")


def welcome(token: bytes, seen: str) -> bytes:
    """What the listener answers to that."""
    return MAGIC + token + plain_address(seen).encode().ljust(SEEN_BYTES)


def plain_address(text: str) -> str:
    """An address as people write it: an IPv4 one that came in through an IPv6 socket without its prefix."""
    return text[7:] if text.startswith("::ffff:") and "." in text else text.partition("%")[0]


def greeted(stream: socket.socket, token: str) -> str:
    """Say hello and take the answer: the address the listener saw. Raises EOFError, OSError, or ValueError."""
    said = hello(token)
    stream.sendall(said)
    answer = receive(stream, HELLO_BYTES)
    if answer != said:
        raise ValueError("it answered %r" % answer[:40])
    return receive(stream, SEEN_BYTES).decode("ascii", "replace").strip()


def command(stream: socket.socket, **words: Any) -> Dict[str, Any]:
    """Send a command and wait for its answer. Raises EOFError, OSError, or ValueError."""
    tell(stream, **words)
    return heard(stream)


def heard(stream: socket.socket) -> Dict[str, Any]:
    """The next frame, which must be a command or an answer to one."""
    kind, size = FRAME.unpack(receive(stream, FRAME.size))
    if kind != COMMAND or size > _LARGEST_COMMAND:
        raise ValueError("a frame of kind %r with %d bytes came where an answer was expected" % (kind, size))
    return words_of(receive(stream, size))


def words_of(body: bytes) -> Dict[str, Any]:
    """A command's or an answer's JSON. Raises ValueError when it is none."""
    words = json.loads(body.decode("utf-8"))
    if not isinstance(words, dict):
        raise ValueError("an object was expected")
    return words


def tell(stream: socket.socket, **words: Any) -> None:
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


def tcp_info(stream: socket.socket) -> Dict[str, int]:
    """What the kernel knows of a connection; fields that this kernel does not have are left out. Times in us."""
    try:
        data = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    except OSError:
        return {}
    return {name: struct.unpack_from("=I", data, at)[0] for name, at in _TCP_INFO.items() if at + 4 <= len(data)}


def congestion_control(stream: socket.socket) -> str:
    """The algorithm that paces this connection (`cubic`, `bbr`); empty where the kernel does not say."""
    try:
        name = stream.getsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_CONGESTION", 13), 16)
    except OSError:
        return ""
    return name.split(b"\0")[0].decode("ascii", "replace")


@dataclass(frozen=True)
class Load:
    """How busy a node was: its load average of the last minute, and the processors this process may use."""

    average: Optional[float]
    processors: int


def load() -> Load:
    """How busy this node is now."""
    try:
        average = os.getloadavg()[0]  # type: Optional[float]
    except OSError:
        average = None
    try:
        processors = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):
        processors = os.cpu_count() or 1
    return Load(average, processors)


def waited_s() -> Optional[float]:
    """How long this thread was ready to run and had no processor; None where the kernel does not count it.

    The second number of schedstat (Documentation/scheduler/sched-stats), in nanoseconds.
    """
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
