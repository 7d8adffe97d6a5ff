"""The head's side against agents that do not do their part: garbage, silence, another protocol, a sudden end."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from preflight.executors.base import Channel, ExecutorError
from preflight.node.wire import PROTOCOL, Ask, Beat, Done, Failed, FrameReader, Ready, encode
from preflight.recording import Node
from preflight.session import AgentSession

READY = Ready(PROTOCOL, "host7", 1, "3.9.2", "/usr/bin/python3", "boot", "me")


class FakeChannel:
    """A channel whose agent is the test: `out` is what the head will read, `sent` what it has written."""

    description = "a fake channel"

    def __init__(self) -> None:
        self.out: MemoryObjectSendStream[bytes]
        self._in: MemoryObjectReceiveStream[bytes]
        self.out, self._in = anyio.create_memory_object_stream[bytes](100)
        self.sent: list[object] = []
        self.closed = False
        self.abandoned = False
        self._reader = FrameReader()

    async def send(self, data: bytes) -> None:
        self.sent.extend(self._reader.feed(data))

    async def receive(self) -> bytes:
        try:
            return await self._in.receive()
        except anyio.EndOfStream:
            return b""

    def abandon(self) -> None:
        self.abandoned = True

    async def aclose(self) -> None:
        self.closed = True
        await self.out.aclose()
        await self._in.aclose()

    def last_words(self) -> str:
        return "warning\nbroken pipe"


def test_the_fake_is_a_channel() -> None:
    async def main() -> None:
        channel = FakeChannel()
        assert isinstance(channel, Channel)
        await channel.aclose()

    anyio.run(main)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"", "ended before its first word"),
        (b"bash: python3: command not found", "not understood"),
        (encode(Beat(1.0)), "expected protocol 1"),
        (encode(Ready(99, "h", 1, "3.9", "", "", "")), "expected protocol 1"),
    ],
)
def test_a_wrong_first_word_is_an_error(said: bytes, words: str) -> None:
    async def main() -> None:
        channel = FakeChannel()
        if said:
            await channel.out.send(said)
        else:
            await channel.out.aclose()
        with pytest.raises(ExecutorError, match=words) as caught:
            async with AgentSession(channel, Node("node7", 0)):
                pass
        assert caught.value.message.startswith("node7: ")
        assert channel.closed

    anyio.run(main)


async def _answer_after(
    behave: Callable[[FakeChannel], None], deadline_s: float = 30.0
) -> tuple[Done | Failed, AgentSession]:
    channel = FakeChannel()
    await channel.out.send(encode(READY))
    async with AgentSession(channel, Node("node7", 0)) as session:
        running = session.start(Ask(0, "a:b", {}, deadline_s))
        behave(channel)
        answer = await running.result()
        assert channel.abandoned
        return answer, session


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (lambda channel: channel.out.send_nowait(b"\xff\xff\xff\xff"), "not understood"),
        (lambda channel: channel.out.close(), "a fake channel ended: broken pipe"),
        (lambda channel: None, "silent for"),
    ],
    ids=["garbage", "end", "silence"],
)
def test_a_lost_node_fails_what_was_asked_of_it(behave: Callable[[FakeChannel], None], words: str) -> None:
    async def main() -> None:
        began = time.monotonic()
        answer, session = await _answer_after(behave)
        assert time.monotonic() - began < 5.5
        assert isinstance(answer, Failed) and answer.kind == "unreachable"
        assert answer.reason.startswith("node7 was lost ") and words in answer.reason
        assert session.lost == answer.reason
        again = await session.ask("a:b")
        assert isinstance(again, Failed) and again.kind == "unreachable"

    anyio.run(main)


def test_an_error_of_the_caller_comes_through_as_it_is() -> None:
    async def main() -> None:
        channel = FakeChannel()
        await channel.out.send(encode(READY))
        async with AgentSession(channel, Node("node7", 0)):
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        anyio.run(main)


def test_clocks_are_compared_over_the_quickest_round_trip() -> None:
    async def main() -> None:
        channel = FakeChannel()
        await channel.out.send(encode(READY))
        async with AgentSession(channel, Node("node7", 0)) as session:
            for delay_s in (0.4, 0.0, 0.6):
                now = time.time()
                # Sent `delay_s` ago, received at once: the whole trip was the way back.
                ahead = now + 100
                channel.out.send_nowait(encode(Beat(ahead - delay_s, now - delay_s, ahead - delay_s)))
            estimate = await session.measured()
            assert estimate is not None
            assert abs(estimate.offset_s - 100) < 0.05
            assert estimate.round_trip_s < 0.1
            record = session.record()
            assert (record.host, record.clock_offset_s) == ("host7", estimate.offset_s)

    anyio.run(main)
