"""The head's side against faulty agents: garbage, silence, another protocol, a sudden end."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from preflight.agent.wire import LEASE_S, PROTOCOL, AgentRequest, Beat, Done, Failed, FrameReader, Ready, encode
from preflight.executors.base import Channel, ExecutorError
from preflight.model.recording import HEAD_PAUSED, Node
from preflight.runner.session import AgentSession

pytestmark = pytest.mark.thorough

READY = Ready(PROTOCOL, "host7", 1, "3.9.2", "/usr/bin/python3", "boot", "me")


class FakeChannel:
    """A channel whose agent is the test: the head reads `out`, and what it writes is in `sent`."""

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

    def error_tail(self) -> str:
        return "warning\nbroken pipe"


def test_the_fake_is_a_channel() -> None:
    async def main() -> None:
        channel = FakeChannel()
        assert isinstance(channel, Channel)
        await channel.aclose()

    anyio.run(main)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"", "ended before its first message"),
        (b"bash: python3: command not found", "sent an invalid message"),
        (encode(Beat(1.0)), "expected protocol 1"),
        (encode(Ready(99, "h", 1, "3.9", "", "", "")), "expected protocol 1"),
    ],
)
def test_wrong_first_message_is_an_error(message: bytes, words: str) -> None:
    async def main() -> None:
        channel = FakeChannel()
        if message:
            await channel.out.send(message)
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
        running = session.start(AgentRequest(0, "a:b", {}, deadline_s))
        behave(channel)
        answer = await running.result()
        assert channel.abandoned
        return answer, session


@pytest.mark.parametrize(
    ("last_words", "sent", "pause_s", "kind"),
    [
        ("agent: the head was silent for 3.0 s", b"", LEASE_S + 0.2, HEAD_PAUSED),
        ("", b"", LEASE_S + 0.2, HEAD_PAUSED),
        ("agent: the head was silent for 3.0 s", b"", 0.0, "unreachable"),
        ("Connection to node7 closed by remote host.", b"", LEASE_S + 0.2, "unreachable"),
        ("", b"\xff\xff\xff\xff", LEASE_S + 0.2, "unreachable"),
    ],
    ids=["it says so", "no last words", "no pause", "another reason", "garbage"],
)
def test_a_pause_of_the_head_excuses_only_an_agent_that_heard_nothing(
    monkeypatch: pytest.MonkeyPatch, last_words: str, sent: bytes, pause_s: float, kind: str
) -> None:
    monkeypatch.setattr(FakeChannel, "error_tail", lambda self: last_words)

    def behave(channel: FakeChannel) -> None:
        time.sleep(pause_s)  # the whole process stands still, as if it were suspended
        channel.out.send_nowait(sent) if sent else channel.out.close()

    async def main() -> None:
        answer, session = await _answer_after(behave)
        assert isinstance(answer, Failed) and session.lost_kind == kind, session.lost
        assert ("did not run" in session.lost) is (kind == HEAD_PAUSED)

    anyio.run(main)


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (lambda channel: channel.out.send_nowait(b"\xff\xff\xff\xff"), "sent an invalid message"),
        (lambda channel: channel.out.close(), "a fake channel ended: broken pipe"),
        (lambda channel: None, "silent for"),
    ],
    ids=["garbage", "end", "silence"],
)
def test_requests_to_a_lost_node_fail(behave: Callable[[FakeChannel], None], words: str) -> None:
    async def main() -> None:
        answer, session = await _answer_after(behave)
        assert isinstance(answer, Failed) and answer.kind == "unreachable"
        assert answer.reason.startswith("node7 was lost ") and words in answer.reason
        assert session.lost == answer.reason
        again = await session.request("a:b")
        assert isinstance(again, Failed) and again.kind == "unreachable"

    anyio.run(main)


def test_error_of_the_caller_is_raised_unchanged() -> None:
    async def main() -> None:
        channel = FakeChannel()
        await channel.out.send(encode(READY))
        async with AgentSession(channel, Node("node7", 0)):
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        anyio.run(main)


def test_clock_offset_uses_the_fastest_round_trip() -> None:
    async def main() -> None:
        channel = FakeChannel()
        await channel.out.send(encode(READY))
        async with AgentSession(channel, Node("node7", 0)) as session:
            for delay_s in (0.4, 0.0, 0.6):
                now = time.time()
                # Sent `delay_s` ago, received at once: the whole delay was on the way back.
                ahead = now + 100
                channel.out.send_nowait(encode(Beat(ahead - delay_s, now - delay_s, ahead - delay_s)))
            estimate = await session.measured()
            assert estimate is not None
            # The other two are off by 0.2 and 0.3 s.
            assert abs(estimate.offset_s - 100) < 0.2
            assert estimate.round_trip_s < 0.4
            record = session.record()
            assert (record.host, record.clock_offset_s) == ("host7", estimate.offset_s)

    anyio.run(main)
