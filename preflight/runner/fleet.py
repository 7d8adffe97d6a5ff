"""All agents of one run, which are opened and closed together and end with this process."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from preflight.agent.wire import BEAT_S, Beat, encode
from preflight.executors.base import Bundle, Executor, ExecutorError, await_bundle
from preflight.executors.bundle import BundleError, build_bundle, pack_extra_modules
from preflight.model import recording
from preflight.model.recording import Node, NodeRecord
from preflight.runner.session import AgentSession

if TYPE_CHECKING:
    from preflight._util.cache import Cache


_log = logging.getLogger(__name__)

#: How many nodes are opened at once: a handshake costs the head about 75 ms of CPU with OpenSSH's default key exchange,
#: and login nodes limit how many connections may be starting.
FAN_OUT = 32

#: Executors enforce the deadline themselves and give a better reason; this is for one that does not.
LATE_S = 2.0

OnProgress = Callable[[NodeRecord], None]
#: Modules to send besides our own, by name with their sources.
Modules = tuple[tuple[str, str], ...]


class OpenFleet:
    """The nodes of a run, each with its session or with the reason why it has none."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = tuple(nodes)
        self._sessions: dict[str, AgentSession] = {}
        self._problems: dict[str, NodeRecord] = {}

    @property
    def sessions(self) -> dict[str, AgentSession]:
        """The sessions by node name, in rank order, of the nodes whose agent answered."""
        return {node.name: self._sessions[node.name] for node in self._nodes if node.name in self._sessions}

    @property
    def records(self) -> tuple[NodeRecord, ...]:
        """The result of connecting to each node, in rank order, with the latest estimates of the clocks."""
        return tuple(self._record(node) for node in self._nodes)

    def session(self, name: str) -> AgentSession | NodeRecord:
        """The session with a node, or its record with the problem. Raises KeyError for an unknown node."""
        return self._sessions[name] if name in self._sessions else self._problems[name]

    def ship(self, modules: Modules) -> None:
        """Send further modules to the agents, which can then import them. Raises BundleError when they are far too
        large.
        """
        if modules:
            shipment = pack_extra_modules(modules)
            for session in self._sessions.values():
                session.post(shipment)

    def snapshot(self) -> recording.Fleet:
        """The nodes as checks see them."""
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
    `extra` are modules to send besides our own: the probes of a plugin. Without a smoke run, the `trainer` need not be
    sent. The bundle is kept in `cache`.

    A node that cannot be reached becomes a record with a problem, never an exception. On exit, however that happens,
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
                        opened = await _opened(executor, node, deadline_s, clock, bundle)
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
                    await opened.measured()
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


async def _opened(
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
        problem = NodeRecord(node, f"{node.name}: no answer within {deadline_s:g} s, waiting for {waited}", "timeout")
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
        """Register another agent."""
        self._senders[key] = send

    def beat(self) -> None:
        """Called by the loop, to show that it is not busy."""
        self._last_beat_s = time.monotonic()

    def _watch(self) -> None:
        while not self._stopped.wait(BEAT_S):
            silent_s = time.monotonic() - self._last_beat_s
            if not self._late_s < silent_s < self._stuck_s:
                continue
            beat = encode(Beat(time.time()))
            for send in list(self._senders.values()):
                send(beat)
