"""Mutated agents: their frames are changed between a real agent and the head.

Run as a program, it is the command line of preflight with such agents on some local nodes, and writes the memory use of
the head at the end:

    python -m tests.hostile.mutants NODE=MUTANT[,NODE=MUTANT...] MEMORY-FILE check job.sh --hosts local[0-3] --on local
"""

from __future__ import annotations

import asyncio
import copy
import json
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio

LENGTH = struct.Struct(">I")
HUGE = int("9" * 400)
#: Takes one frame of its agent; returns the bytes sent to the head instead.
Mutant = Callable[["Agent", dict[str, Any]], "bytes | Iterator[bytes]"]


class Raw(str):
    """JSON text to be written unchanged."""


class Agent:
    """The state of a mutant between frames."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.last: dict[str, Any] = {}
        self.stopped = False


def dump(value: Any) -> bytes:
    """The value as JSON; `Raw` is inserted unchanged."""
    raws: list[str] = []

    def hide(item: Any) -> Any:
        if isinstance(item, Raw):
            raws.append(str(item))
            return f"@raw{len(raws) - 1}@"
        if isinstance(item, dict):
            return {key: hide(inner) for key, inner in item.items()}
        if isinstance(item, list):
            return [hide(inner) for inner in item]
        return item

    most_digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        text = json.dumps(hide(value))
    finally:
        sys.set_int_max_str_digits(most_digits)
    for number, raw in enumerate(raws):
        text = text.replace(f'"@raw{number}@"', raw)
    return text.encode()


def framed(body: bytes) -> bytes:
    """A frame with this body."""
    return LENGTH.pack(len(body)) + body


def frame(message: dict[str, Any]) -> bytes:
    """The frame of a message."""
    return framed(dump(message))


class MutatedChannel:
    """A channel whose frames from the agent are changed by a mutant."""

    def __init__(self, channel: Any, mutant: Mutant) -> None:
        self._channel = channel
        self._mutant = mutant
        self._agent = Agent()
        self._pending = bytearray()
        self._out: list[Iterator[bytes]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def receive(self) -> bytes:
        """The next bytes of the altered stream."""
        while True:
            while self._out:
                piece = next(self._out[0], None)
                if piece is None:
                    self._out.pop(0)
                elif piece == b"":
                    await anyio.sleep(0.05)
                else:
                    await asyncio.sleep(0)
                    return piece
            data = await self._channel.receive()
            if not data:
                return b""
            self._pending += data
            while len(self._pending) >= 4:
                (length,) = LENGTH.unpack_from(self._pending)
                if len(self._pending) < 4 + length:
                    break
                message = json.loads(bytes(self._pending[4 : 4 + length]))
                del self._pending[: 4 + length]
                kind = message["type"]
                self._agent.seen[kind] = self._agent.seen.get(kind, 0) + 1
                found = self._mutant(self._agent, message)
                self._agent.last[kind] = message
                self._out.append(_pieces(found) if isinstance(found, bytes) else found)


def _pieces(data: bytes) -> Iterator[bytes]:
    for begin in range(0, len(data), 65536):
        yield data[begin : begin + 65536]


# --- classes of mutants ---


def with_field(kind: str, name: str, value: Any, *, drop: bool = False) -> Mutant:
    """Change or remove one field of every message of a kind."""

    def mutate(agent: Agent, message: dict[str, Any]) -> bytes:
        if message["type"] == kind:
            message = {**message, name: value}
            if drop:
                del message[name]
        return frame(message)

    return mutate


def with_body(kind: str, change: Callable[[bytes], bytes], *, after: int = 0) -> Mutant:
    """Change the body of messages of a kind as bytes, after this number of unchanged ones."""

    def mutate(agent: Agent, message: dict[str, Any]) -> bytes:
        body = dump(message)
        if message["type"] == kind and agent.seen[kind] > after:
            body = change(body)
        return framed(body)

    return mutate


def with_stream(kind: str, made: Callable[[dict[str, Any]], Iterator[bytes]], *, after: int = 0) -> Mutant:
    """Send something else instead of a message of a kind."""

    def mutate(agent: Agent, message: dict[str, Any]) -> bytes | Iterator[bytes]:
        if message["type"] == kind and agent.seen[kind] > after:
            return made(message)
        return frame(message)

    return mutate


def deeply(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with every leaf changed."""
    if isinstance(value, dict):
        return {key: deeply(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [deeply(item, change) for item in value]
    return change(value)


def with_facts(change: Callable[[Any], Any]) -> Mutant:
    """Every leaf of every answer is changed."""

    def mutate(agent: Agent, message: dict[str, Any]) -> bytes:
        if message["type"] == "done":
            message = {**message, "value": deeply(message["value"], change)}
        return frame(message)

    return mutate


def with_events(change: Callable[[Any], Any]) -> Mutant:
    """Every leaf of the data of every event is changed."""

    def mutate(agent: Agent, message: dict[str, Any]) -> bytes:
        if message["type"] == "event":
            message = {**message, "data": deeply(message["data"], change)}
        return frame(message)

    return mutate


def number(value: Any) -> Callable[[Any], Any]:
    """Every number becomes this one."""
    return lambda leaf: value if isinstance(leaf, (int, float)) and not isinstance(leaf, bool) else leaf


def text(value: Any) -> Callable[[Any], Any]:
    """Every text becomes this one."""
    return lambda leaf: value if isinstance(leaf, str) else leaf


def endless(piece: bytes) -> Callable[[dict[str, Any]], Iterator[bytes]]:
    """The same bytes, endlessly."""

    def made(message: dict[str, Any]) -> Iterator[bytes]:
        while True:
            yield piece

    return made


def dribbled(message: dict[str, Any]) -> Iterator[bytes]:
    """One byte every 50 ms."""
    for byte in frame(message):
        yield bytes([byte])
        yield b""


def stalled(message: dict[str, Any]) -> Iterator[bytes]:
    """Half a frame, then nothing."""
    whole = frame(message)
    yield whole[: len(whole) // 2]
    while True:
        yield b""


def answers_for_others(agent: Agent, message: dict[str, Any]) -> bytes:
    """Each answer goes to the request before it."""
    if message["type"] == "done":
        return frame({**message, "id": max(1, message["id"] - 1)})
    return frame(message)


def answers_twice(agent: Agent, message: dict[str, Any]) -> bytes:
    """Each answer comes twice, the second time with another value."""
    twice = frame(message)
    return twice + frame({**message, "value": {"a": 1}}) if message["type"] == "done" else twice


def unrequested_answers(agent: Agent, message: dict[str, Any]) -> bytes:
    """Answers to requests that were never sent."""
    if message["type"] == "done":
        return frame({**message, "id": 1 << 30}) + frame(message)
    return frame(message)


def drops(kind: str) -> Mutant:
    """Messages of a kind are dropped."""
    return lambda agent, message: b"" if message["type"] == kind else frame(message)


def without_keys(agent: Agent, message: dict[str, Any]) -> bytes:
    """The first field of every fact is missing."""
    if message["type"] == "done" and isinstance(message["value"], dict):
        message = {**message, "value": dict(list(message["value"].items())[1:])}
    return frame(message)


def with_more_keys(agent: Agent, message: dict[str, Any]) -> bytes:
    """Every fact has an extra field."""
    if message["type"] == "done" and isinstance(message["value"], dict):
        message = {**message, "value": {**message["value"], "__class__": "x", "more": [1]}}
    return frame(message)


def emptied(agent: Agent, message: dict[str, Any]) -> bytes:
    """Every list and object in facts is empty."""
    if message["type"] == "done" and isinstance(message["value"], dict):
        empty = {list: [], dict: {}}
        value = {key: copy.copy(empty.get(type(item), item)) for key, item in message["value"].items()}
        message = {**message, "value": value}
    return frame(message)


def with_extra(more: dict[str, Any], *, with_: str = "beat") -> Mutant:
    """Send an extra message with each heartbeat; its `id` is that of the last answered request."""

    def mutate(agent: Agent, message: dict[str, Any]) -> bytes:
        if message["type"] != with_:
            return frame(message)
        said = dict(more)
        if said.get("id") == "last":
            said["id"] = agent.last.get("done", {"id": 1})["id"]
        return frame(message) + frame(said)

    return mutate


CONTROL = "\x1b]0;owned\x07\x1b[2J\u202e::error::x\r\n::set-output name=a::b\x00"
EVENT = {"type": "event", "id": "last", "at_s": 1.0, "origin": "child", "data": {}}

MUTANTS: dict[str, Mutant] = {
    # Numbers that break arithmetic.
    "beat-sent-huge": with_field("beat", "sent_s", HUGE),
    "beat-echo-huge": with_field("beat", "echo_s", HUGE),
    "beat-received-huge": with_field("beat", "received_s", -HUGE),
    "beat-nan": with_field("beat", "sent_s", Raw("NaN")),
    "beat-infinite": with_field("beat", "received_s", Raw("1e999")),
    "beat-large": with_field("beat", "received_s", 1e308),
    "beat-negative": with_field("beat", "received_s", -5.0),
    "ready-pid-huge": with_field("ready", "pid", HUGE),
    "ready-protocol-text": with_field("ready", "protocol", "1"),
    "ready-host-long": with_field("ready", "host", "h" * 2_000_000),
    "ready-notes-many": with_field("ready", "notes", ["n"] * 1_000_000),
    "done-id-huge": with_field("done", "id", HUGE),
    "done-id-negative": with_field("done", "id", -1),
    "done-id-bool": with_field("done", "id", True),
    "done-value-huge": with_field("done", "value", HUGE),
    "event-at-huge": with_extra({**EVENT, "at_s": HUGE}),
    "event-at-year-9999": with_extra({**EVENT, "at_s": 253402300799.0}),
    "event-of-the-head": with_extra({**EVENT, "origin": "head", "data": {"event": "decided", "because": "x"}}),
    "failed-exit-huge": with_extra(
        {"type": "failed", "id": "last", "kind": "crashed", "reason": "", "exit_code": HUGE}
    ),
    "failed-kind-unknown": with_extra({"type": "failed", "id": "last", "kind": "x" * 1000, "reason": ""}),
    # Facts with right and wrong types.
    "facts-huge": with_facts(number(HUGE)),
    "facts-largest": with_facts(number((1 << 64) - 1)),
    "facts-least": with_facts(number(-(1 << 63))),
    "facts-negative": with_facts(number(-1)),
    "facts-zero": with_facts(number(0)),
    "facts-large-float": with_facts(number(1e308)),
    "facts-nan": with_facts(number(Raw("NaN"))),
    "facts-nan-text": with_facts(number("nan")),
    "facts-control": with_facts(text(CONTROL)),
    "facts-empty-text": with_facts(text("")),
    "facts-surrogates": with_facts(text(Raw('"\\ud800"'))),
    "facts-null": with_facts(lambda leaf: None),
    "facts-other-types": with_facts(lambda leaf: [leaf]),
    "facts-missing-keys": without_keys,
    "facts-more-keys": with_more_keys,
    "facts-empty-lists": emptied,
    "facts-long-text": with_facts(text("x" * 200_000)),
    # Documents and frames.
    "body-twice-the-key": with_body("done", lambda body: body[:-1] + b',"id":1,"id":2}'),
    "body-deep": with_field("done", "value", Raw("[" * 100_000 + "]" * 100_000)),
    "body-deep-objects": with_field("done", "value", Raw('{"a":' * 500 + "1" + "}" * 500)),
    "body-many-items": with_field("done", "value", Raw("[" + "[]," * 1_300_000 + "1]")),
    "body-30-mb": with_field("done", "value", "x" * 30_000_000),
    "body-not-utf-8": with_body("done", lambda body: body[:-1] + b"\xff\xfe}"),
    "length-lies-long": with_stream("done", lambda message: iter([LENGTH.pack(1 << 31) + dump(message)])),
    "length-lies-short": with_stream("done", lambda message: iter([LENGTH.pack(3) + dump(message)])),
    "truncated": with_stream("done", stalled),
    "dribbled": with_stream("done", dribbled),
    "endless-zeros": with_stream("done", endless(b"\0" * 65536)),
    "endless-beats": with_stream("done", endless(frame({"type": "beat", "sent_s": 1.0}) * 1000)),
    "endless-events": with_stream("done", endless(frame({**EVENT, "id": 1, "data": {"phase": "x"}}) * 500)),
    "answers-for-others": answers_for_others,
    "answers-twice": answers_twice,
    "unrequested-answers": unrequested_answers,
}
assert len(MUTANTS) >= 50


def main(arguments: list[str]) -> int:
    """The command line with some mutated agents."""
    from preflight.executors.pipe import LocalExecutor

    wanted, memory, *rest = arguments
    chosen = dict(pair.split("=") for pair in wanted.split(",") if pair)
    from tests.hostile import rank_mutants
    from tests.hostile.mutants_fresh import MUTANTS as fresh
    from tests.hostile.mutants_sealed import MUTANTS as sealed

    known = {**MUTANTS, **sealed, **fresh, **rank_mutants.MUTANTS, **rank_mutants.SEALED}
    opened = LocalExecutor.open

    async def open_(self: Any, node: Any, **options: Any) -> Any:
        channel = await opened(self, node, **options)
        mutant = chosen.get(node.name)
        return channel if mutant is None else MutatedChannel(channel, known[mutant])

    LocalExecutor.open = open_  # type: ignore[method-assign,assignment]
    from preflight.cli.main import run

    code = run(rest)
    # The peak memory of this process; that of `getrusage` includes its parent.
    Path(memory).write_text(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
