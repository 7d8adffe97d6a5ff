"""All agents of one run: opened together, closed together, gone when this process is."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from preflight import recording
from preflight.bundle import BundleError, further, node_bundle
from preflight.executors.base import Bundle, Executor, ExecutorError, uncounted
from preflight.keeping import Keeper
from preflight.node.wire import BEAT_S
from preflight.recording import Node, NodeRecord
from preflight.session import AgentSession

if TYPE_CHECKING:
    from preflight.cache import Cache

#: How many nodes are opened at once: a handshake costs the head about 75 ms of CPU with OpenSSH's default key
#: exchange, and login nodes limit how many connections may be starting.
FAN_OUT = 32

#: Executors keep the deadline themselves and know better what they waited for; this is for one that does not.
LATE_S = 2.0

OnProgress = Callable[[NodeRecord], None]
#: Modules to ship besides our own, by name with their sources.
Modules = tuple[tuple[str, str], ...]


class OpenFleet:
    """The nodes of a run, each with its session, or with the reason why it has none."""

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
        """How reaching each node went, in rank order, with the latest estimates of the clocks."""
        return tuple(self._record(node) for node in self._nodes)

    def session(self, name: str) -> AgentSession | NodeRecord:
        """The session with a node, or its record with the problem. Raises KeyError for a stranger."""
        return self._sessions[name] if name in self._sessions else self._problems[name]

    def ship(self, modules: Modules) -> None:
        """Have the agents import these too. Raises BundleError when they are far too large."""
        if modules:
            shipment = further(modules)
            for session in self._sessions.values():
                session.post(shipment)

    def snapshot(self) -> recording.Fleet:
        """The fleet as checks see it."""
        return recording.Fleet(self.records)

    def _record(self, node: Node) -> NodeRecord:
        session = self._sessions.get(node.name)
        if session is not None:
            record = session.record()
            return replace(record, problem=session.lost, problem_kind="unreachable") if session.lost else record
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

    `on_progress` is called once for each node, when it answered or failed. `clock` gives seconds since the run
    began. `extra` are modules to ship besides our own: the probes of a plugin. Without a smoke run to follow, the
    `trainer` may stay here. In `cache` is kept what is shipped.

    A node that cannot be reached is a record with a problem, never an exception. On leaving, however that
    happens, all agents are ended, and with them everything they started.
    """
    if len({node.name for node in nodes}) != len(nodes):
        raise ValueError("two nodes of a fleet share a name")
    fleet = OpenFleet(nodes)
    lock = anyio.Lock()
    make = functools.partial(node_bundle, trainer=trainer, cache=cache)

    async def bundle() -> bytes:
        # Beside the loop, and for the first node that is there to take it; the others are given the same.
        async with lock:
            return await anyio.to_thread.run_sync(make)

    limiter = anyio.CapacityLimiter(FAN_OUT)
    failure: Exception | None = None
    keeper = Keeper()
    keeper.start()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_come_round, keeper)

            async def open_one(node: Node) -> None:
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
                    keeper.keep(node.name, opened.speak)
                    group.start_soon(opened.serve)
                    await opened.measured()
                if on_progress is not None:
                    on_progress(fleet._record(node))

            async with anyio.create_task_group() as opening:
                for node in nodes:
                    opening.start_soon(open_one, node)
            try:
                if failure is None:
                    fleet.ship(extra)
                    yield fleet
            except Exception as error:
                # Raised below, outside the task group, which would wrap it in an ExceptionGroup.
                failure = error
            finally:
                # Before the channels are closed, whose numbers may be somebody else's afterwards.
                keeper.stop()
                await _close_all(fleet)
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure
    finally:
        keeper.stop()
        try:
            await _close_all(fleet)
        finally:
            with anyio.CancelScope(shield=True):
                await executor.aclose()


async def _come_round(keeper: Keeper) -> None:
    while True:
        keeper.come_round()
        await anyio.sleep(BEAT_S)


async def _opened(
    executor: Executor, node: Node, deadline_s: float, clock: Callable[[], float] | None, bundle: Bundle
) -> AgentSession | NodeRecord:
    channel = None
    session = None
    try:
        with anyio.fail_after(deadline_s + LATE_S) as scope:
            untimed = functools.partial(uncounted, bundle, scope)
            channel = await executor.open(node, deadline_s=deadline_s, bundle=untimed)
            session = AgentSession(channel, node, clock)
            await session.hello()
            return session
    except ExecutorError as error:
        problem = NodeRecord(node, error.message, error.kind, notes=(error.detail,) if error.detail else ())
    except TimeoutError:
        waited = "its agent's first word" if channel is not None else f"{executor.name} to reach it"
        problem = NodeRecord(node, f"{node.name}: no answer within {deadline_s:g} s, waiting for {waited}", "timeout")
    except BaseException:
        if channel is not None:
            await channel.aclose()
        raise
    if channel is not None:
        await channel.aclose()
    return problem


async def _close_all(fleet: OpenFleet) -> None:
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as closing:
            for session in fleet.sessions.values():
                closing.start_soon(session.aclose)
