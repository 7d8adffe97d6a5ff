"""The head's side of one agent: many requests over one channel, heartbeats, and the offset of the clocks."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from preflight._util.log import command_text
from preflight._util.redaction import redact_tree
from preflight.agent.wire import (
    ANSWER_BYTES,
    BEAT_S,
    HEAD_SILENT,
    LEASE_S,
    PROTOCOL,
    AgentRequest,
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
from preflight.executors.base import Bundle, Channel, Executor, ExecutorError, await_bundle
from preflight.executors.bundle import BundleError, build_bundle, pack_extra_modules
from preflight.model import recording
from preflight.model.recording import HEAD_PAUSED, Node, NodeRecord

if TYPE_CHECKING:
    from preflight._util.cache import Cache


_log = logging.getLogger(__name__)

#: An agent that is silent for this long is lost. It sends a heartbeat every BEAT_S and ends itself after LEASE_S
#: without a message from here; its guardian reports within a lease that it was stopped. So this limit only detects a
#: node that is gone. Agents of 64 nodes on two processors were silent for up to 5.2 s, which is slow but not broken.
SILENCE_S = 3.5 * LEASE_S
#: The agent reports a missed deadline itself; after this additional time the head stops waiting.
GRACE_S = 3.0
#: Longest delay between a pause of this process and the end of an agent that the pause caused.
_NOTICED_S = 5.0
#: Limits on the data that one node may send in a run: at once, and in every further second. A node's answers are less
#: than a megabyte and its ranks send some kilobytes per second; the head keeps everything in memory.
MAX_BYTES, MAX_BYTES_PER_S = 32 * 1024 * 1024, 256 * 1024
MAX_FRAMES, MAX_FRAMES_PER_S = 50_000, 2_000
#: Limits on the events kept per request; they are searched several times a second.
MAX_EVENTS, MAX_EVENTS_PER_S = 20_000, 100
#: The origins of a node's events: its agent, or a child on it. Only the head itself sends events as the head.
_ORIGINS = ("agent", "child")
#: Heartbeats exchanged before the first request, for a first estimate of the clock offset.
FIRST_BEATS = 3

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """The node's clock ahead of the head's, and the round trip, in seconds (RFC 5905, section 8)."""

    offset_s: float
    round_trip_s: float


class RunningRequest:
    """One request in progress. Created by `AgentSession.start`."""

    def __init__(self, session: AgentSession, request: AgentRequest, on_event: OnEvent | None) -> None:
        self.request = request
        self._session = session
        self._on_event = on_event
        self._answer: Done | Failed | None = None
        self._answered = anyio.Event()
        self._events = Allowance(MAX_EVENTS, MAX_EVENTS_PER_S)
        self._wait: anyio.CancelScope | None = None
        self._cancelled_s: float | None = None
        self._began_s = time.monotonic()

    @property
    def answer(self) -> Done | Failed | None:
        return self._answer

    async def result(self) -> Done | Failed:
        """Wait for the answer, for the request's deadline plus a few seconds; after a cancellation only for these."""
        allowed = self.request.start_s + self.request.deadline_s + GRACE_S
        with anyio.move_on_after(allowed) as self._wait:
            self._shorten_wait()
            await self._answered.wait()
        if self._answer is None:
            node = self._session.node.name
            if self._cancelled_s is not None:
                reason = f"it was cancelled, and the agent on {node} did not confirm that within {GRACE_S:g} s"
                self.settle(Failed(self.request.id, "cancelled", reason))
            else:
                self.cancel()
                reason = f"the agent on {node} did not respond to {self.request.target} within {allowed:g} s"
                self.settle(Failed(self.request.id, "timeout", reason))
        assert self._answer is not None
        return self._answer

    def cancel(self) -> None:
        """Have the child killed; the answer is then Failed(kind="cancelled")."""
        if self._answer is None:
            self._session.post(Cancel(self.request.id))
            if self._cancelled_s is None:
                self._cancelled_s = anyio.current_time()
            self._shorten_wait()

    def _shorten_wait(self) -> None:
        """After a cancellation, wait only for the agent's confirmation."""
        if self._wait is not None and self._cancelled_s is not None:
            self._wait.deadline = min(self._wait.deadline, self._cancelled_s + GRACE_S)

    def dump_stacks(self) -> None:
        """Have the child dump its stacks: an event of origin "agent" with `stacks` follows."""
        if self._answer is None:
            self._session.post(Signal(self.request.id, "stacks"))

    def settle(self, answer: Done | Failed) -> None:
        """Store the answer; only the first one counts."""
        if self._answer is None:
            self._answer = answer
            self._answered.set()
            self._session.drop_request(self.request.id)
            if _log.isEnabledFor(logging.DEBUG):
                result = "done" if isinstance(answer, Done) else f"{answer.kind}: {answer.reason}"
                node, took_s = self._session.node.name, time.monotonic() - self._began_s
                _log.debug(
                    "%s: request %d %s took %.3f s: %s", node, self.request.id, self.request.target, took_s, result
                )

    def on_event(self, event: Event) -> None:
        """Pass on an event."""
        if self._on_event is not None and self._answer is None:
            if not self._events.take(1):
                self.cancel()
                reason = (
                    f"{self.request.target} sent more than {MAX_EVENTS} events and {MAX_EVENTS_PER_S} in each second"
                )
                self.settle(Failed(self.request.id, "crashed", reason))
                return
            self._on_event(event)


class Allowance:
    """A limit on received data: `at_once`, and `per_s` more for every second since the first."""

    def __init__(self, at_once: int, per_s: int) -> None:
        self._at_once = at_once
        self._per_s = per_s
        self._began_s = time.monotonic()
        self._taken = 0

    def take(self, amount: int) -> bool:
        """Count this amount, and return whether the total is still allowed."""
        self._taken += amount
        return self._taken <= self._at_once + self._per_s * (time.monotonic() - self._began_s)


class AgentSession:
    """`async with AgentSession(channel, node) as session:` — or `hello`, then `serve` in the caller's own task group.

    `clock` returns seconds since the run began; events carry its time, whatever the node's clock shows.
    """

    def __init__(self, channel: Channel, node: Node, clock: Callable[[], float] | None = None) -> None:
        started_at = time.monotonic()
        self.node = node
        self.ready: Ready | None = None
        #: Why the node was lost; empty while it is connected.
        self.lost = ""
        #: Kind of the loss, as in `NodeRecord.problem_kind`.
        self.lost_kind = ""
        self._looked_s = time.monotonic()
        self._paused_s, self._paused_until_s = 0.0, -math.inf
        self._channel = channel
        self._clock = clock or (lambda: time.monotonic() - started_at)
        self._reader = FrameReader(ANSWER_BYTES)
        self._bytes = Allowance(MAX_BYTES, MAX_BYTES_PER_S)
        self._frames = Allowance(MAX_FRAMES, MAX_FRAMES_PER_S)
        self._last_id = 0
        self._early_messages: list[Any] = []
        self._numbers = itertools.count(1)
        self._running: dict[int, RunningRequest] = {}
        self._outgoing, self._to_send = anyio.create_memory_object_stream[bytes](float("inf"))
        self._last_frame_s = time.monotonic()
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
        """Wait for the agent's first frame. Raises ExecutorError for any other frame, or at the end of the channel."""
        while self.ready is None:
            data = await self._channel.receive()
            if not data:
                words = self._channel.error_tail()
                raise ExecutorError("crashed", f"{self.node.name}: the agent ended before its first message", words)
            try:
                self._early_messages.extend(self._read(data))
            except WireError as error:
                raise ExecutorError(
                    "crashed", f"{self.node.name}: the agent sent an invalid message: {error}"
                ) from error
            if self._early_messages:
                first = self._early_messages.pop(0)
                if not isinstance(first, Ready) or first.protocol != PROTOCOL:
                    raise ExecutorError(
                        "crashed", f"{self.node.name}: expected protocol {PROTOCOL}, got {first!r:.200}"
                    )
                self.ready = first
        self._last_frame_s = time.monotonic()
        return self.ready

    async def serve(self) -> None:
        """Transfer frames both ways until `aclose`, or until the node is lost. Never raises because of the node."""
        with self._scope:
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._send_all)
                    group.start_soon(self._beat)
                    await self._receive_all()
                    group.cancel_scope.cancel()
            finally:
                if not self._closing and not self.lost:
                    self._mark_lost("its session ended")
                self._outgoing.close()
                self._to_send.close()

    async def measure_clock(self, deadline_s: float = 1.0) -> ClockEstimate | None:
        """Return the clock offset, after the first few heartbeats or the deadline."""
        with anyio.move_on_after(deadline_s):
            await self._measured.wait()
        return self._estimate

    def start(self, request: AgentRequest, on_event: OnEvent | None = None) -> RunningRequest:
        """Send a request (its `id` is replaced by one of this session's) and return at once."""
        request = replace(request, id=next(self._numbers))
        self._last_id = request.id
        running = RunningRequest(self, request, on_event)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s: request %d %s", self.node.name, request.id, _describe(request))
        if self.lost or self._closing:
            running.settle(
                Failed(request.id, "unreachable", self.lost or f"the session with {self.node.name} is closed")
            )
            return running
        self._running[request.id] = running
        try:
            self.post(request)
        except (WireError, ValueError) as error:
            running.settle(Failed(request.id, "crashed", f"the request cannot be sent: {error}"))
        return running

    async def run(self, request: AgentRequest, on_event: OnEvent | None = None) -> Done | Failed:
        """Send a request and wait for its answer. If cancelled, the child on the node is killed."""
        running = self.start(request, on_event)
        try:
            return await running.result()
        finally:
            running.cancel()

    async def request(
        self,
        target: str,
        params: Mapping[str, Any] | None = None,
        *,
        deadline_s: float = 5.0,
        context: Context | None = None,
        on_event: OnEvent | None = None,
    ) -> Done | Failed:
        """Run `module:function` on the node with `params` and return its result."""
        return await self.run(AgentRequest(0, target, dict(params or {}), deadline_s, context), on_event)

    async def aclose(self) -> None:
        """End the agent and everything it started; running requests are answered with Failed(kind="cancelled")."""
        if self._closing:
            return
        self._closing = True
        for running in list(self._running.values()):
            running.settle(Failed(running.request.id, "cancelled", f"the session with {self.node.name} was closed"))
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._channel.aclose()

    def record(self) -> NodeRecord:
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

    def send_nowait(self, frame: bytes) -> None:
        """Send a short frame from another thread, if the channel supports that (`PipeChannel.speak`)."""
        send_nowait = getattr(self._channel, "send_nowait", None)
        if send_nowait is not None and not self.lost and not self._closing:
            send_nowait(frame)

    def post(self, message: Any) -> None:
        """Queue one frame. Raises WireError when it is too large; has no effect when the node is lost."""
        try:
            self._outgoing.send_nowait(encode(message))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass

    def drop_request(self, request_id: int) -> None:
        """Ignore further frames for an answered request."""
        self._running.pop(request_id, None)

    async def _send_all(self) -> None:
        async for data in self._to_send:
            # Frames posted together are written in one piece: each write costs every process on the path as much as a
            # long one.
            while True:
                try:
                    data += self._to_send.receive_nowait()
                except (anyio.WouldBlock, anyio.EndOfStream):
                    break
            try:
                await self._channel.send(data)
            except ExecutorError as error:
                self._mark_lost(error.message, ended=True)
                return

    async def _receive_all(self) -> None:
        early, self._early_messages = iter(self._early_messages), []
        if not self._handle_all(early):
            return
        while not self.lost:
            data = await self._channel.receive()
            if not data:
                words = self._channel.error_tail()
                last_line = f": {words.splitlines()[-1]}" if words else ""
                self._mark_lost(f"{self._channel.description} ended{last_line}", ended=True)
                return
            self._last_frame_s = time.monotonic()
            if not self._handle_all(self._read(data)):
                return

    def _read(self, data: bytes) -> Iterator[Any]:
        """Yield messages completed by `data`. Raises WireError if one is invalid, or the node has sent too much."""
        if not self._bytes.take(len(data)):
            raise WireError(f"it sent more than {MAX_BYTES} bytes and {MAX_BYTES_PER_S} in each second")
        for message in self._reader.feed(data):
            if not self._frames.take(1):
                raise WireError(f"it sent more than {MAX_FRAMES} frames and {MAX_FRAMES_PER_S} in each second")
            yield message

    def _handle_all(self, messages: Iterator[Any]) -> bool:
        """Handle these messages; return False if one makes the node count as lost. Never raises for the node."""
        try:
            for message in messages:
                self._handle(message)
        except WireError as error:
            self._mark_lost(f"its agent sent an invalid message: {error}")
        except Exception as error:
            # An invalid message of one node must not lose the results of other nodes.
            self._mark_lost(f"a message from its agent cannot be handled: {type(error).__name__}: {error!s:.200}")
        return not self.lost

    async def _beat(self) -> None:
        """Send a heartbeat every BEAT_S, and notice when the agent is silent."""
        self._looked_s = time.monotonic()
        while not self.lost:
            self.post(Beat(time.time()))
            await anyio.sleep(BEAT_S)
            now = time.monotonic()
            late_s = now - self._looked_s - 2 * BEAT_S
            if late_s > 0:
                self._paused_s, self._paused_until_s = now - self._looked_s, now
            # While this process itself slept or got no CPU time, the agent's messages were unread.
            self._last_frame_s = min(now, self._last_frame_s + max(0.0, late_s))
            self._looked_s = now
            if now - self._last_frame_s > SILENCE_S:
                self._mark_lost(f"its agent was silent for {now - self._last_frame_s:.1f} s")

    def _handle(self, message: Any) -> None:
        if isinstance(message, Beat):
            self._measure(message)
        elif not isinstance(message, (Event, Done, Failed)):
            raise WireError(f"a node does not send {type(message).__name__.lower()!r} here")
        elif not 0 < message.id <= self._last_id:
            raise WireError(f"it answered request {message.id}, but only {self._last_id} were sent")
        elif isinstance(message, Event):
            if message.origin not in _ORIGINS:
                raise WireError(f"an event has the unknown origin {message.origin!r:.40}")
            running = self._running.get(message.id)
            if running is not None:
                running.on_event(replace(message, at_s=self._run_time(message.at_s)))
        else:
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
            # Sent at once, because the code that opened the node waits for this.
            self.post(Beat(time.time()))

    def _run_time(self, at_s: float) -> float:
        """Return a time of the node's wall clock as seconds since the run began, never later than now."""
        offset = self._estimate.offset_s if self._estimate else 0.0
        age = time.time() - (at_s - offset)
        now = self._clock()
        # If the node's clock was changed meanwhile, the time of arrival is used instead.
        return now - age if 0.0 <= age < 60.0 else now

    def _own_pause_s(self) -> float:
        """Return the seconds for which this process sent no heartbeat, until now or a moment ago."""
        now = time.monotonic()
        recent_s = self._paused_s if now - self._paused_until_s < _NOTICED_S else 0.0
        return max(recent_s, now - self._looked_s)

    def _mark_lost(self, why: str, *, ended: bool = False) -> None:
        """Mark the node as lost.

        Args:
            ended: whether the agent, or the channel to it, ended. If the agent reports that it received nothing (some
                channels carry no last message), and this process paused for a whole lease, the pause is the reason.
        """
        if self.lost or self._closing:
            return
        self.lost_kind = "unreachable"
        paused_s, words = self._own_pause_s(), self._channel.error_tail()
        if ended and paused_s >= LEASE_S - BEAT_S and (not words or HEAD_SILENT in words):
            self.lost_kind = HEAD_PAUSED
            why = (
                f"preflight itself did not run for {paused_s:.0f} s (suspended, or starved of CPU time), and the "
                f"agent ended, as it does when it receives nothing ({why})"
            )
        self.lost = f"{self.node.name} was lost {self._clock():.1f} s into the run: {why}"
        for running in list(self._running.values()):
            running.settle(Failed(running.request.id, "unreachable", self.lost, self._channel.error_tail()))
        self._channel.abandon()
        self._scope.cancel()


def _describe(request: AgentRequest) -> str:
    """Return a request in words for the log, with the wrapper and interpreter of its context."""
    shown = redact_tree(dict(request.params))
    if request.context is None:
        return f"{request.target} {shown}"
    return f"{request.target} {shown} in {command_text([*request.context.wrapper, request.context.interpreter])}"


@asynccontextmanager
async def _in_task_group(session: AgentSession) -> AsyncIterator[AgentSession]:
    failure: Exception | None = None
    try:
        await session.hello()
        async with anyio.create_task_group() as group:
            group.start_soon(session.serve)
            await session.measure_clock()
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


# All agents of one run, which are opened and closed together and end with this process.


#: Number of nodes that are opened at once: a handshake costs the head about 75 ms of CPU with OpenSSH's default key
#: exchange, and login nodes limit the number of connections that may be starting.
FAN_OUT = 32
#: Executors enforce the deadline themselves and give a better reason; this is a fallback.
LATE_S = 2.0

OnProgress = Callable[[NodeRecord], None]
#: Modules to send in addition to our own: sources by module name.
Modules = tuple[tuple[str, str], ...]


class OpenFleet:
    """The nodes of a run, each with its session or with the reason why it has none."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = tuple(nodes)
        self._sessions: dict[str, AgentSession] = {}
        self._problems: dict[str, NodeRecord] = {}

    @property
    def sessions(self) -> dict[str, AgentSession]:
        """Return the sessions by node name, in rank order, of the nodes whose agent answered."""
        return {node.name: self._sessions[node.name] for node in self._nodes if node.name in self._sessions}

    @property
    def records(self) -> tuple[NodeRecord, ...]:
        """Return the result of connecting to each node, in rank order, with the latest estimates of the clocks."""
        return tuple(self._record(node) for node in self._nodes)

    def session(self, name: str) -> AgentSession | NodeRecord:
        """Return the session with a node, or its record with the problem. Raises KeyError for an unknown node."""
        return self._sessions[name] if name in self._sessions else self._problems[name]

    def ship(self, modules: Modules) -> None:
        """Send further modules that agents can then import. Raises BundleError if they are far too large."""
        if modules:
            shipment = pack_extra_modules(modules)
            for session in self._sessions.values():
                session.post(shipment)

    def snapshot(self) -> recording.Fleet:
        """Return the nodes as checks see them."""
        return recording.Fleet(self.records)

    def _record(self, node: Node) -> NodeRecord:
        session = self._sessions.get(node.name)
        if session is not None:
            record = session.record()
            return replace(record, problem=session.lost, problem_kind=session.lost_kind) if session.lost else record
        return self._problems.get(node.name) or NodeRecord(node, "it was not tried", "cancelled")


@asynccontextmanager
async def open_fleet(
    executor: Executor,
    nodes: Sequence[Node],
    *,
    deadline_s: float = 10.0,
    on_progress: OnProgress | None = None,
    clock: Callable[[], float] | None = None,
    extra: Modules = (),
    trainer: bool = True,
    cache: Cache | None = None,
) -> AsyncIterator[OpenFleet]:
    """Start an agent on every node, at most FAN_OUT at once; `deadline_s` is for each node.

    `on_progress` is called once for each node, when it answered or failed. `clock` returns seconds since the run began.
    `extra` are modules to send in addition to our own: the probes of a plugin. Without a smoke run, the `trainer` need
    not be sent. The bundle is kept in `cache`.

    A node that cannot be reached becomes a record with a problem, never an exception. On exit, even after an exception,
    all agents are ended, and with them everything they started.
    """
    if len({node.name for node in nodes}) != len(nodes):
        raise ValueError("two nodes of a fleet share a name")
    fleet = OpenFleet(nodes)
    lock = anyio.Lock()
    make = functools.partial(build_bundle, trainer=trainer, cache=cache)

    async def bundle() -> bytes:
        # Built in a thread for the first node that is ready for it; the others get the same result.
        async with lock:
            return await anyio.to_thread.run_sync(make)

    limiter = anyio.CapacityLimiter(FAN_OUT)
    failure: Exception | None = None
    keepalive = KeepaliveThread()
    keepalive.start()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_beat_regularly, keepalive)

            async def open_node(node: Node) -> None:
                nonlocal failure
                try:
                    async with limiter:
                        opened = await _open_node(executor, node, deadline_s, clock, bundle)
                except BundleError as error:
                    failure = error
                    opening.cancel_scope.cancel()
                    return
                if isinstance(opened, NodeRecord):
                    fleet._problems[node.name] = opened
                else:
                    fleet._sessions[node.name] = opened
                    keepalive.register(node.name, opened.send_nowait)
                    group.start_soon(opened.serve)
                    await opened.measure_clock()
                if on_progress is not None:
                    on_progress(fleet._record(node))

            async with anyio.create_task_group() as opening:
                for node in nodes:
                    opening.start_soon(open_node, node)
            try:
                if failure is None:
                    fleet.ship(extra)
                    yield fleet
            except Exception as error:
                # Raised below, outside the task group, which would wrap it in an ExceptionGroup.
                failure = error
            finally:
                # Done before the channels are closed, because their descriptors may be reused afterwards.
                keepalive.stop()
                await _close_all(fleet)
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure
    finally:
        keepalive.stop()
        try:
            await _close_all(fleet)
        finally:
            with anyio.CancelScope(shield=True):
                await executor.aclose()


async def _beat_regularly(keepalive: KeepaliveThread) -> None:
    while True:
        keepalive.beat()
        await anyio.sleep(BEAT_S)


async def _open_node(
    executor: Executor, node: Node, deadline_s: float, clock: Callable[[], float] | None, bundle: Bundle
) -> AgentSession | NodeRecord:
    channel = None
    session = None
    began_s = time.monotonic()
    try:
        with anyio.fail_after(deadline_s + LATE_S) as scope:
            untimed = functools.partial(await_bundle, bundle, scope)
            channel = await executor.open(node, deadline_s=deadline_s, bundle=untimed)
            session = AgentSession(channel, node, clock)
            await session.hello()
            _log.debug("%s: agent ready after %.3f s", node.name, time.monotonic() - began_s)
            return session
    except ExecutorError as error:
        problem = NodeRecord(node, error.message, error.kind, notes=(error.detail,) if error.detail else ())
    except TimeoutError:
        waited = "its agent's first message" if channel is not None else f"{executor.name} to reach it"
        problem = NodeRecord(node, f"{node.name}: no response within {deadline_s:g} s, waiting for {waited}", "timeout")
    except BaseException:
        if channel is not None:
            await channel.aclose()
        raise
    if channel is not None:
        await channel.aclose()
    _log.info("%s: not opened after %.3f s: %s", node.name, time.monotonic() - began_s, problem.problem)
    return problem


async def _close_all(fleet: OpenFleet) -> None:
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as closing:
            for session in fleet.sessions.values():
                closing.start_soon(session.aclose)


#: The loop sends a heartbeat every BEAT_S; if it is silent for this long, the thread sends one instead.
_LATE_S = 2 * BEAT_S
#: A loop that has not run for this long is stuck, and its agents had better end.
_STUCK_S = 60.0


class KeepaliveThread:
    """`speak` sends bytes to one agent from any thread, or does nothing if it would have to wait."""

    def __init__(self, *, late_s: float = _LATE_S, stuck_s: float = _STUCK_S) -> None:
        self._late_s = late_s
        self._stuck_s = stuck_s
        self._senders: dict[str, Callable[[bytes], None]] = {}
        self._last_beat_s = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="preflight-keeper", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._last_beat_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; nothing is sent after this returns."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def register(self, key: str, send: Callable[[bytes], None]) -> None:
        self._senders[key] = send

    def beat(self) -> None:
        """Record that the event loop, which calls this, is not stuck."""
        self._last_beat_s = time.monotonic()

    def _watch(self) -> None:
        while not self._stopped.wait(BEAT_S):
            silent_s = time.monotonic() - self._last_beat_s
            if not self._late_s < silent_s < self._stuck_s:
                continue
            beat = encode(Beat(time.time()))
            for send in list(self._senders.values()):
                send(beat)
