"""The head's side of one agent: many requests over one channel, heartbeats, and the distance of the clocks."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio

from preflight.executors.base import Channel, ExecutorError
from preflight.lazy.dataclasses import dataclass
from preflight.node.wire import (
    BEAT_S,
    LEASE_S,
    PROTOCOL,
    Ask,
    Beat,
    Cancel,
    Context,
    Done,
    Event,
    Failed,
    FrameReader,
    Ready,
    Signal,
    WireError,
    encode,
)
from preflight.recording import Node, NodeRecord

#: An agent that says nothing for so long is lost. It beats every BEAT_S and ends itself after LEASE_S without a word
#: from here; its guardian says within a lease that it was stopped. So this is for a node that is gone, and a busy one
#: gets half a lease more.
SILENCE_S = 1.5 * LEASE_S
#: The agent answers a missed deadline itself; after so much more, the head does not wait for that either.
GRACE_S = 3.0
#: Beats exchanged before the first request, for a first estimate of the clocks' distance.
FIRST_BEATS = 3

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """How far the node's wall clock is ahead of the head's, and the round trip it was measured over, in seconds.

    offset = ((t1 - t0) + (t2 - t3)) / 2 of RFC 5905, section 8; its error is at most half the round trip.
    """

    offset_s: float
    round_trip_s: float


class Running:
    """One request under way. Made by `AgentSession.start`."""

    def __init__(self, session: AgentSession, ask: Ask, on_event: OnEvent | None) -> None:
        self.ask = ask
        self._session = session
        self._on_event = on_event
        self._answer: Done | Failed | None = None
        self._answered = anyio.Event()

    @property
    def answer(self) -> Done | Failed | None:
        """The answer, once there is one."""
        return self._answer

    async def result(self) -> Done | Failed:
        """Wait for the answer, at most for the request's own deadline and a few seconds."""
        allowed = self.ask.start_s + self.ask.deadline_s + GRACE_S
        with anyio.move_on_after(allowed):
            await self._answered.wait()
        if self._answer is None:
            node = self._session.node.name
            self.cancel()
            self.settle(
                Failed(
                    self.ask.id,
                    "timeout",
                    f"the agent on {node} did not answer {self.ask.target} within {allowed:g} s",
                )
            )
        assert self._answer is not None
        return self._answer

    def cancel(self) -> None:
        """Have the child killed; the answer is then Failed(kind="cancelled")."""
        if self._answer is None:
            self._session.post(Cancel(self.ask.id))

    def dump_stacks(self) -> None:
        """Have the child say where its threads are: an event of origin "agent" with `stacks` follows."""
        if self._answer is None:
            self._session.post(Signal(self.ask.id, "stacks"))

    def settle(self, answer: Done | Failed) -> None:
        """Take the answer; the first one counts."""
        if self._answer is None:
            self._answer = answer
            self._answered.set()
            self._session.forget(self.ask.id)

    def tell(self, event: Event) -> None:
        """Pass an event on."""
        if self._on_event is not None and self._answer is None:
            self._on_event(event)


class AgentSession:
    """`async with AgentSession(channel, node) as session:` — or `hello`, then `serve` in a task group of one's own.

    `clock` gives seconds since the run began; events carry its time, whatever the node's clock says.
    """

    def __init__(self, channel: Channel, node: Node, clock: Callable[[], float] | None = None) -> None:
        began = time.monotonic()
        self.node = node
        self.ready: Ready | None = None
        #: Why the node was lost; empty while it is there.
        self.lost = ""
        self._channel = channel
        self._clock = clock or (lambda: time.monotonic() - began)
        self._reader = FrameReader()
        self._early: list[Any] = []
        self._numbers = itertools.count(1)
        self._running: dict[int, Running] = {}
        self._outgoing, self._to_send = anyio.create_memory_object_stream[bytes](float("inf"))
        self._heard_s = time.monotonic()
        self._estimate: ClockEstimate | None = None
        self._measured = anyio.Event()
        self._beats = 0
        self._scope = anyio.CancelScope()
        self._closing = False

    async def __aenter__(self) -> AgentSession:
        self._context = _in_task_group(self)
        return await self._context.__aenter__()

    async def __aexit__(self, *raised: Any) -> bool | None:
        return await self._context.__aexit__(*raised)

    async def hello(self) -> Ready:
        """Wait for the agent's first frame. Raises ExecutorError when something else comes, or the end."""
        while self.ready is None:
            data = await self._channel.receive()
            if not data:
                words = self._channel.last_words()
                raise ExecutorError("crashed", f"{self.node.name}: the agent ended before its first word", words)
            try:
                self._early.extend(self._reader.feed(data))
            except WireError as error:
                raise ExecutorError("crashed", f"{self.node.name}: the agent is not understood: {error}") from error
            if self._early:
                first = self._early.pop(0)
                if not isinstance(first, Ready) or first.protocol != PROTOCOL:
                    raise ExecutorError(
                        "crashed", f"{self.node.name}: expected protocol {PROTOCOL}, got {first!r:.200}"
                    )
                self.ready = first
        self._heard_s = time.monotonic()
        return self.ready

    async def serve(self) -> None:
        """Carry frames both ways until `aclose`, or the node is lost. Never raises for the node's sake."""
        with self._scope:
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._send_all)
                    group.start_soon(self._beat)
                    await self._receive_all()
                    group.cancel_scope.cancel()
            finally:
                if not self._closing and not self.lost:
                    self._lose("its session ended")
                self._outgoing.close()
                self._to_send.close()

    async def measured(self, deadline_s: float = 1.0) -> ClockEstimate | None:
        """The clocks' distance, after the first few beats or the deadline."""
        with anyio.move_on_after(deadline_s):
            await self._measured.wait()
        return self._estimate

    def start(self, ask: Ask, on_event: OnEvent | None = None) -> Running:
        """Send a request (its `id` is replaced by one of this session's) and return at once."""
        ask = replace(ask, id=next(self._numbers))
        running = Running(self, ask, on_event)
        if self.lost or self._closing:
            running.settle(Failed(ask.id, "unreachable", self.lost or f"the session with {self.node.name} is closed"))
            return running
        self._running[ask.id] = running
        try:
            self.post(ask)
        except WireError as error:
            running.settle(Failed(ask.id, "crashed", f"the request cannot be sent: {error}"))
        return running

    async def run(self, ask: Ask, on_event: OnEvent | None = None) -> Done | Failed:
        """Send a request and wait for its answer. Cancelled, it has the child on the node killed."""
        running = self.start(ask, on_event)
        try:
            return await running.result()
        finally:
            running.cancel()

    async def ask(
        self,
        target: str,
        params: Mapping[str, Any] | None = None,
        *,
        deadline_s: float = 5.0,
        context: Context | None = None,
        on_event: OnEvent | None = None,
    ) -> Done | Failed:
        """Run `module:function` on the node with `params` and return what came of it."""
        return await self.run(Ask(0, target, dict(params or {}), deadline_s, context), on_event)

    async def aclose(self) -> None:
        """End the agent with all it started; what still runs is answered with Failed(kind="cancelled")."""
        if self._closing:
            return
        self._closing = True
        for running in list(self._running.values()):
            running.settle(Failed(running.ask.id, "cancelled", f"the session with {self.node.name} was closed"))
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._channel.aclose()

    @property
    def clock_estimate(self) -> ClockEstimate | None:
        """The best estimate so far: that of the smallest round trip."""
        return self._estimate

    def record(self) -> NodeRecord:
        """What is known of the node."""
        assert self.ready is not None
        estimate = self._estimate
        lost = (self.lost,) if self.lost else ()
        return NodeRecord(
            self.node,
            host=self.ready.host,
            python=self.ready.python,
            user=self.ready.user,
            boot_id=self.ready.boot_id,
            clock_offset_s=estimate.offset_s if estimate else None,
            round_trip_s=estimate.round_trip_s if estimate else None,
            notes=(*self.ready.notes, *lost),
        )

    def speak(self, frame: bytes) -> None:
        """Send a short frame from another thread, where the channel can do that (`PipeChannel.speak`)."""
        speak = getattr(self._channel, "speak", None)
        if speak is not None and not self.lost and not self._closing:
            speak(frame)

    def post(self, message: Any) -> None:
        """Queue one frame. Raises WireError when it is too large; nothing happens when the node is lost."""
        try:
            self._outgoing.send_nowait(encode(message))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass

    def forget(self, ask_id: int) -> None:
        """An answered request takes no more frames."""
        self._running.pop(ask_id, None)

    async def _send_all(self) -> None:
        async for data in self._to_send:
            # What was said at once goes out in one piece: each costs everybody on its way as much as a long one.
            while True:
                try:
                    data += self._to_send.receive_nowait()
                except (anyio.WouldBlock, anyio.EndOfStream):
                    break
            try:
                await self._channel.send(data)
            except ExecutorError as error:
                self._lose(error.message)
                return

    async def _receive_all(self) -> None:
        for message in self._early:
            self._take(message)
        self._early.clear()
        while not self.lost:
            data = await self._channel.receive()
            if not data:
                words = self._channel.last_words()
                said = f": {words.splitlines()[-1]}" if words else ""
                self._lose(f"{self._channel.description} ended{said}")
                return
            self._heard_s = time.monotonic()
            try:
                for message in self._reader.feed(data):
                    self._take(message)
            except WireError as error:
                self._lose(f"its agent is not understood: {error}")
                return

    async def _beat(self) -> None:
        """Speak every BEAT_S, and notice when nothing is heard."""
        looked_s = time.monotonic()
        while not self.lost:
            self.post(Beat(time.time()))
            await anyio.sleep(BEAT_S)
            now = time.monotonic()
            # While this process itself slept or got no processor, what the agent said lay unread.
            self._heard_s = min(now, self._heard_s + max(0.0, now - looked_s - 2 * BEAT_S))
            looked_s = now
            if now - self._heard_s > SILENCE_S:
                self._lose(f"its agent was silent for {now - self._heard_s:.1f} s")

    def _take(self, message: Any) -> None:
        if isinstance(message, Beat):
            self._measure(message)
        elif isinstance(message, Event):
            running = self._running.get(message.id)
            if running is not None:
                running.tell(replace(message, at_s=self._run_time(message.at_s)))
        elif isinstance(message, (Done, Failed)):
            running = self._running.get(message.id)
            if running is not None:
                running.settle(message)

    def _measure(self, beat: Beat) -> None:
        if not beat.echo_s:
            return
        now = time.time()
        offset = ((beat.received_s - beat.echo_s) + (beat.sent_s - now)) / 2
        trip = max(0.0, (now - beat.echo_s) - (beat.sent_s - beat.received_s))
        if self._estimate is None or trip < self._estimate.round_trip_s:
            self._estimate = ClockEstimate(offset, trip)
        self._beats += 1
        if self._beats >= FIRST_BEATS:
            self._measured.set()
        else:
            # At once: whoever opened the node waits for this.
            self.post(Beat(time.time()))

    def _run_time(self, at_s: float) -> float:
        """A moment by the node's wall clock as seconds since the run began, never later than now."""
        offset = self._estimate.offset_s if self._estimate else 0.0
        age = time.time() - (at_s - offset)
        now = self._clock()
        # A clock that was set meanwhile says nothing about when this happened; its arrival does.
        return now - age if 0.0 <= age < 60.0 else now

    def _lose(self, why: str) -> None:
        if self.lost or self._closing:
            return
        self.lost = f"{self.node.name} was lost {self._clock():.1f} s into the run: {why}"
        for running in list(self._running.values()):
            running.settle(Failed(running.ask.id, "unreachable", self.lost, self._channel.last_words()))
        self._channel.abandon()
        self._scope.cancel()


@asynccontextmanager
async def _in_task_group(session: AgentSession) -> AsyncIterator[AgentSession]:
    failure: Exception | None = None
    try:
        await session.hello()
        async with anyio.create_task_group() as group:
            group.start_soon(session.serve)
            await session.measured()
            try:
                yield session
            except Exception as error:
                # Raised below, outside the task group, which would wrap it in an ExceptionGroup.
                failure = error
            finally:
                await session.aclose()
        if failure is not None:
            raise failure
    finally:
        await session.aclose()
