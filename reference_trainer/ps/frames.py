"""Frames between workers and servers: a fixed header and raw numbers. Only encoding and decoding, no sockets.

A header is 44 bytes, little-endian: magic, version, operation, flags, worker, clock, shard, count, payload bytes,
phase, and a CRC of all that. The reader knows from its own plan how long a payload may be, and never allocates memory
based on the header alone.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Union

MAGIC = b"PFps"
VERSION = 1
_HEADER = struct.Struct("<4sBBHIqIIQII")
_BODY = struct.Struct("<4sBBHIqIIQI")
_CRC = struct.Struct("<I")
_BODY_BYTES = _BODY.size
HEADER_BYTES = _HEADER.size

#: Handshake: the server's challenge, the worker's answer with its own, the server's answer.
CHALLENGE = 1
HELLO = 2
WELCOME = 3
#: A worker's requests. Pushes and updates have no reply of their own; the next reply confirms them.
PULL = 4
PUSH = 5
PUSHPULL = 6
LOOKUP = 7
UPDATE = 8
BARRIER = 9
BYE = 10
#: A server's replies. WAITING: the reply is delayed, because of the workers that the text names.
DATA = 11
WAITING = 12
#: A server to a backup worker: replace this worker, from this clock on.
TAKEOVER = 13
#: A worker's request for the order of all pushes and reads of the training.
HISTORY = 15
#: Either way: the text is the reason why this connection ends.
ERROR = 14

NAMES = {
    CHALLENGE: "CHALLENGE",
    HELLO: "HELLO",
    WELCOME: "WELCOME",
    PULL: "PULL",
    PUSH: "PUSH",
    PUSHPULL: "PUSHPULL",
    LOOKUP: "LOOKUP",
    UPDATE: "UPDATE",
    BARRIER: "BARRIER",
    BYE: "BYE",
    DATA: "DATA",
    WAITING: "WAITING",
    TAKEOVER: "TAKEOVER",
    ERROR: "ERROR",
    HISTORY: "HISTORY",
}

#: The last part of a push: the worker's clock is complete.
LAST = 1
#: The numbers are differences to be added unchanged, not gradients.
DELTA = 2
#: An ERROR that names a disagreement between its receiver and its sender.
MISMATCH = 4
#: An ERROR whose cause is a third process.
BECAUSE_OF_ANOTHER = 8
#: An ERROR for a process that does not belong to this run.
REFUSED = 16
#: An UPDATE of the rows of the last lookup, in their order: it carries no row numbers.
SAME_ROWS = 32

#: The maximum size of texts (HELLO, WELCOME, WAITING, ERROR), which are allocated before the peer is authenticated.
TEXT_BYTES = 64 * 1024
#: A payload that claims more than this is invalid whatever the plan.
MAX_BYTES = 1 << 40


class FrameError(Exception):
    """The data is not a frame of this protocol."""


@dataclass
class Header:
    """One frame without its payload. `clock` counts the worker's complete pushes of this phase.

    Headers are never modified, but a frozen dataclass would take three times as long to create, and every frame has a
    header.
    """

    op: int
    flags: int = 0
    worker: int = 0
    clock: int = 0
    shard: int = 0
    count: int = 0
    bytes: int = 0
    phase: int = 0

    @property
    def name(self) -> str:
        """The operation, for messages."""
        return NAMES[self.op]


def encode(header: Header) -> bytes:
    """The 44 bytes of a header."""
    body = _BODY.pack(
        MAGIC,
        VERSION,
        header.op,
        header.flags,
        header.worker,
        header.clock,
        header.shard,
        header.count,
        header.bytes,
        header.phase,
    )
    return body + _CRC.pack(zlib.crc32(body))


def decode(data: Union[bytes, bytearray, memoryview]) -> Header:
    """Decode the header in these 44 bytes. Raises FrameError with the received data."""
    if len(data) != HEADER_BYTES:
        raise FrameError("a header has %d bytes, not %d" % (HEADER_BYTES, len(data)))
    magic, version, op, flags, worker, clock, shard, count, size, phase, crc = _HEADER.unpack(data)
    if magic != MAGIC:
        raise FrameError("this is not the protocol of preflight's parameter servers: %r" % bytes(data[:24]))
    if crc != zlib.crc32(data[:_BODY_BYTES]):
        raise FrameError("the checksum of a header is wrong: bytes were changed in transit")
    if version != VERSION:
        raise FrameError(
            "the other side uses version %d of this protocol, this one uses version %d" % (version, VERSION)
        )
    if op not in NAMES:
        raise FrameError("unknown operation %d" % op)
    if size > MAX_BYTES:
        raise FrameError("the header announces a payload of %d bytes" % size)
    return Header(op, flags, worker, clock, shard, count, size, phase)
