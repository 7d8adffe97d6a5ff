"""Targets: data from nodes, from the head, and between parameter servers and workers."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

from preflight.agent import wire
from preflight.agent.wire import (
    AgentRequest,
    Beat,
    Cancel,
    Context,
    Done,
    Event,
    Failed,
    FrameReader,
    Ready,
    Ship,
    Signal,
)
from preflight.executors.base import ExecutorError
from preflight.model.recording import EventRecord, Node, Recording
from preflight.model.recording_io import load, save
from preflight.runner.session import AgentSession
from reference_trainer.ps import frames
from reference_trainer.ps import frames as handshake
from reference_trainer.ps.frames import Channel, Header, PeerError
from tests.fuzz import mutation
from tests.fuzz.limits import MIB, Limits
from tests.fuzz.target import Fault, Target

_SECRET = b"s" * 32
_NONCE = b"n" * 32


def targets() -> Iterator[Target]:
    """Bytes and frames in all directions."""
    yield Target("frames", _frames, _streams, mutate=mutation.text, max_file_bytes=64 * 1024)
    yield Target("agent-session", _session, _conversations, _fields, mutation.lines, 64 * 1024, Limits(2.0, 128 * MIB))
    yield Target("ps-frames", _server_handshake_input, _unauthenticated_inputs, max_file_bytes=16 * 1024)
    yield Target("ps-greeting", _greeting, _hellos, mutate=mutation.document, max_file_bytes=64 * 1024)


_MESSAGES = (
    Ready(wire.PROTOCOL, "node1", 4711, "3.11.7", "/usr/bin/python3", "a-b-c", "alice", ["slow disk"]),
    Beat(1000.0, 999.5, 999.9),
    Event(1, 1000.5, "child", {"phase": "ddp", "step": 3, "listening": {"port": 29500}}),
    Event(2, 1000.5, "agent", {"stacks": "File x, line 3"}),
    Done(1, {"gpus": [{"name": "H100", "memory_bytes": 85899345920, "ecc": True}]}),
    Failed(2, "timeout", "it took longer than 5 s", "Traceback", -9),
)
_ASKED = (
    AgentRequest(
        1, "preflight_checks.probes.gpus:gpus", {"port": 1}, 5.0, Context("python3", ["env"], "/work", {"A": "b"})
    ),
    *(Ship({"m": "x = 1"}, ["p"]), Cancel(1), Signal(2, "stacks"), Beat(1000.0)),
)


def _streams() -> Iterator[bytes]:
    yield b"".join(map(wire.encode, _MESSAGES))
    yield b"".join(map(wire.encode, _ASKED))
    yield from map(wire.encode, (*_MESSAGES, *_ASKED))


def _frames(data: bytes) -> None:
    """A stream gives the same messages, or the same error, whole and in pieces."""
    whole = _read([data])
    size = max(1, len(data) // 7)
    cut = _read([data[at : at + size] for at in range(0, len(data), size)])
    if repr(whole) != repr(cut):
        raise Fault("a stream cut otherwise holds other messages")
    for message in whole:
        if not isinstance(message, str):
            again = wire.decode(wire.encode(message)[4:])
            if repr(again) != repr(message):
                raise Fault("a message is another one after it was sent", repr(message))


def _read(pieces: list[bytes]) -> list[Any]:
    reader, found = FrameReader(), []
    try:
        for piece in pieces:
            found.extend(reader.feed(piece))
    except wire.WireError:
        found.append("refused")
    return found


def _conversations() -> Iterator[bytes]:
    lines = [json.dumps(json.loads(wire.encode(message)[4:])).encode() for message in _MESSAGES]
    yield b"\n".join(lines)
    yield b"\n".join([lines[0], *lines[1:3] * 8, *lines[4:]])


def _fields() -> tuple[str, ...]:
    return (
        "type",
        "id",
        "at_s",
        "origin",
        "data",
        "value",
        "kind",
        "reason",
        "detail",
        "exit_code",
        "sent_s",
        "echo_s",
    )


class _Scripted:
    """A channel whose other end sends the input and then disconnects."""

    description = "a script"

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def send(self, data: bytes) -> None:
        return

    async def receive(self) -> bytes:
        await asyncio.sleep(0)
        return self._pieces.pop(0) if self._pieces else b""

    def abandon(self) -> None:
        return

    async def aclose(self) -> None:
        return

    def error_tail(self) -> str:
        return ""


def _session(data: bytes) -> None:
    """A node with arbitrary messages affects only itself: its requests end, and its messages can be recorded."""
    pieces = [struct.pack(">I", len(line)) + line for line in data.split(b"\n") if line]
    asyncio.run(_scripted_session(pieces))


async def _scripted_session(pieces: list[bytes]) -> None:
    heard: list[EventRecord] = []

    def keep(event: Event) -> None:
        heard.append(EventRecord("k", "node1", event.at_s, event.origin, event.data))

    session = AgentSession(_Scripted(pieces), Node("node1", 0))
    try:
        await session.hello()
    except ExecutorError:
        return
    running = [session.start(AgentRequest(0, "m:f", {}, 1.0), keep) for _ in range(3)]
    await session.serve()
    answers = [await one.result() for one in running]
    record = session.record()
    recording = Recording((), "2026-01-02T03:04:05+00:00", "0.1.0", nodes=(record,), events=tuple(heard))
    saved = save(recording)
    if save(load(saved)) != saved:
        raise Fault("what a node said is another after it was saved", repr(answers)[:300])


def _unauthenticated_inputs() -> Iterator[bytes]:
    head = frames.encode(Header(frames.PUSH, frames.LAST, 1, 3, 0, 4, 16, 1))
    yield head + b"\0" * 16
    yield frames.encode(Header(frames.HELLO, bytes=70)) + b"x" * 70
    yield frames.encode(Header(frames.ERROR, frames.MISMATCH, bytes=5)) + b"words"
    yield frames.encode(Header(frames.BYE)) + frames.encode(Header(frames.WAITING, bytes=3)) + b"1,2"
    yield frames.encode(Header(frames.CHALLENGE, bytes=32)) + _NONCE


def _pair(data: bytes) -> tuple[Channel, socket.socket]:
    """A channel at whose other end only these bytes were written."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(1.0)
    theirs.sendall(data)
    theirs.shutdown(socket.SHUT_WR)
    with mock.patch("reference_trainer.ps.frames.tune"):
        return Channel(ours, peer="10.0.0.9:1234", limit_s=1.0), theirs


def _server_handshake_input(data: bytes) -> None:
    """The frames of the input, and those with a wrong checksum again with the right one."""
    for stream in (data, _with_valid_checksum(data)):
        _frames_of(stream)
        for meet in (
            lambda channel: handshake.challenge(channel, _SECRET, time.monotonic() + 1.0),
            lambda channel: handshake.introduce(channel, _SECRET, {"role": "worker"}, 1.0),
        ):
            channel, theirs = _pair(stream)
            try:
                meet(channel)
            except PeerError:
                pass
            finally:
                channel.close()
                theirs.close()


def _frames_of(stream: bytes) -> None:
    channel, theirs = _pair(stream)
    try:
        while True:
            header = channel.receive(time.monotonic() + 1.0)
            if header.op in (frames.WAITING, frames.HELLO):
                channel.text(header)
            else:
                left = header.bytes
                while left:
                    size = min(left, 4096)
                    channel.read_payload(memoryview(bytearray(size)))
                    left -= size
    except PeerError:
        return
    finally:
        channel.close()
        theirs.close()


def _with_valid_checksum(data: bytes) -> bytes:
    """The stream with a corrected checksum, magic and version in its first header."""
    import zlib

    size = frames.HEADER_BYTES
    if len(data) < size:
        return data
    body = frames.MAGIC + bytes((frames.VERSION,)) + data[5 : size - 4]
    return body + struct.pack("<I", zlib.crc32(body)) + data[size:]


def _hellos() -> Iterator[bytes]:
    yield json.dumps({"role": "worker", "index": 1, "servers": 2, "workers": 4, "mode": "sync", "steps": 10}).encode()
    yield json.dumps(
        {"server_endpoints": ["10.0.0.1:7164"], "parameters": "ab12", "tensors": ["w [2, 3] float32"]}
    ).encode()


def _greeting(data: bytes) -> None:
    """A client that knows the secret and sends an arbitrary hello."""
    said = data[: frames.TEXT_BYTES - 64]
    proof = handshake._proof(_SECRET, b"worker", _NONCE, _NONCE, said)
    hello = _NONCE + proof + said
    channel, theirs = _pair(frames.encode(Header(frames.HELLO, bytes=len(hello))) + hello)
    try:
        with mock.patch.object(handshake.os, "urandom", lambda size: _NONCE[:size]):
            found, _ = handshake.challenge(channel, _SECRET, time.monotonic() + 1.0)
        if not isinstance(found, dict):
            raise Fault("a greeting gives what is not an object")
    except PeerError:
        pass
    finally:
        channel.close()
        theirs.close()
