"""Observing: how the requests of a stage become facts, over the sessions of a fleet.

Nothing here knows what a fact means. Whatever does not come in time, or cannot, is recorded as unavailable with
the reason, so that a judgement can tell it from a fact.
"""

from __future__ import annotations

import functools
import secrets
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import anyio

from preflight.fleet import OpenFleet
from preflight.lazy.dataclasses import dataclass
from preflight.links import disjoint
from preflight.node.cheap import kind_of, turn_of
from preflight.node.wire import Ask, Done, Event, Failed
from preflight.place import ContextChoice
from preflight.progress import Progress, Step
from preflight.recording import EventRecord, FactRecord, Unavailable
from preflight.request import Request
from preflight.session import AgentSession

if TYPE_CHECKING:
    from preflight.ranks import Member

#: So many probes run on one node at the same time; more would only measure each other.
_PROBES_AT_ONCE = 8
#: The first request in the job context waits until that is entered, which set-up lines and containers make slow. It and
#: the observation itself may take this part of the stage, so that their answer still comes within it.
_ENTERED_BY = 0.8
#: A probe with this among its parameters is given the key of this run in its place. The key is made for one run,
#: stands in no recording, and lets hashes of what must not leave a node be compared, and nothing more.
RUN_KEY = "run_key"
#: A listener binds its ports at once or not at all; the rest is for starting it on a busy node.
LISTENING_WITHIN_S = 3.0
#: This share of the link stage is for what is under way to end, and for a busy head to hear of it.
FOR_ENDING = 0.05
#: With less time than this left in the stage, nothing more is begun: it could only be cut off.
LEAST_S = 0.5
#: Trials with smaller groups of ranks may go on for so long after a run that ended badly.
FOLLOW_UP_S = 45.0
#: How far the pairs of a stage are is told at most so often.
TOLD_EVERY_S = 0.1
#: So often, at most, may facts of a stage make further requests of the same stage necessary.
MOST_WAVES = 12


#: What the facts so far make necessary besides; empty when nothing is.
FollowUp = Callable[[], Awaitable[Sequence[Request]]]


@dataclass
class Observer:
    """Asks what was requested and keeps what came of it. `now` gives seconds since the run began."""

    fleet: OpenFleet
    context: ContextChoice
    now: Callable[[], float]
    progress: Progress
    allowed: frozenset[str] = frozenset()
    facts: list[FactRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    _run_key: str = field(default_factory=lambda: secrets.token_hex(16))

    async def nodes(self, requests: Sequence[Request], *, deadline_s: float, stage: str = "node") -> None:
        """Ask everything, a few at a time on each node; what is not there in time is said to be late."""
        ends = self.now() + deadline_s
        queues: dict[str, deque[Request]] = {}
        cheap: list[Request] = []
        # By who they are: each is here once, and to spell the key of one takes as long as to ask it.
        waiting: dict[str, dict[int, Request]] = {}
        for request in requests:
            waiting.setdefault(request.node, {})[id(request)] = request
            if _kind(request):
                cheap.append(request)
            else:
                queues.setdefault(request.node, deque()).append(request)
        done, nodes = 0, len(waiting)
        if requests:
            self.progress(Step(stage, 0, len(requests), tuple(waiting), deadline_s, nodes=nodes))

        async def one(request: Request) -> None:
            nonlocal done
            await self._ask(request, start_s=max(0.0, _ENTERED_BY * deadline_s - request.deadline_s))
            del waiting[request.node][id(request)]
            if not waiting[request.node]:
                del waiting[request.node]
            done += 1
            self.progress(Step(stage, done, len(requests), tuple(waiting), ends - self.now(), nodes=nodes))

        async def work(queue: deque[Request]) -> None:
            while queue:
                await one(queue.popleft())

        with anyio.move_on_after(deadline_s):
            async with anyio.create_task_group() as group:
                # Those share a process, and go there in one piece.
                for request in sorted(cheap, key=lambda request: turn_of(_probe(request))):
                    group.start_soon(one, request)
                for queue in queues.values():
                    for _ in range(min(_PROBES_AT_ONCE, len(queue))):
                        group.start_soon(work, queue)
        for left in waiting.values():
            for request in left.values():
                late = Unavailable("timeout", f"{request.node} did not answer within the stage's {deadline_s:g} s")
                self._without(request, late)

    async def links(self, requests: Sequence[Request], follow_up: FollowUp, *, deadline_s: float) -> None:
        """What needs no peer, then what is tried between nodes, then whatever `follow_up` wants because of it.

        Who listens does so from the first request to the last follow-up. Measurements take turns, so that no node
        takes part in two; everything else is asked at once. Nothing goes on after `deadline_s`: what was not tried
        shortly before is said to be, and what is under way then is ended.
        """
        ends = self.now() + deadline_s * (1 - FOR_ENDING)
        async with _Listeners(self.fleet.sessions, self.events.append) as listeners:
            for _ in range(MOST_WAVES):
                await self._wave(requests, listeners, ends)
                requests = await follow_up() if self.now() < ends else ()
                if not requests:
                    break

    async def _wave(self, requests: Sequence[Request], listeners: _Listeners, ends: float) -> None:
        wanted = {request.listen for request in requests if request.peers}
        serving = [request for request in requests if request.probe in wanted]
        plain = [request for request in requests if not request.peers and request.probe not in wanted]
        between = [request for request in requests if request.peers and not request.exclusive]
        turns = disjoint(request for request in requests if request.exclusive)
        await self.nodes(plain, deadline_s=max(0.0, ends - self.now()), stage="link")
        self.facts.extend(await listeners.start(serving, self.now, ends))
        done, total = 0, len(between) + sum(map(len, turns))
        left: dict[str, int] = {}
        told = -TOLD_EVERY_S

        def tell() -> None:
            # Of thousands of nodes each would otherwise be told of all that are left.
            nonlocal told
            if done == total or self.now() - told >= TOLD_EVERY_S:
                told = self.now()
                self.progress(Step("link", done, total, tuple(left), ends - told))

        async def one(request: Request) -> None:
            nonlocal done
            await self._between(request, listeners, ends)
            done += 1
            left[request.node] -= 1
            if not left[request.node]:
                del left[request.node]
            tell()

        for batch in (between, *turns):
            for request in batch:
                left[request.node] = left.get(request.node, 0) + 1
            tell()
            async with anyio.create_task_group() as group:
                for request in batch:
                    group.start_soon(one, request)

    async def ranks(self, requests: Sequence[Request], follow_up: FollowUp, *, deadline_s: float) -> None:
        """The ranks of each group together, then, for a while, whatever `follow_up` wants because of how that ended.

        Groups that share no node run at the same time; what has no group is asked like facts of nodes.
        """
        await self._gangs(requests, lambda ranks: deadline_s)
        ends = self.now() + FOLLOW_UP_S
        for _ in range(MOST_WAVES):
            requests = await follow_up() if ends - self.now() > LEAST_S else ()
            if not requests:
                break
            await self._gangs(requests, lambda ranks: min(ranks[0].deadline_s, ends - self.now()))

    async def _gangs(self, requests: Sequence[Request], deadline_of: Callable[[Sequence[Request]], float]) -> None:
        groups: dict[str, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.group, []).append(request)
        plain = groups.pop("", [])
        if plain:
            await self.nodes(plain, deadline_s=deadline_of(plain), stage="smoke")
        while groups:
            busy: set[str] = set()
            async with anyio.create_task_group() as together:
                for name, ranks in list(groups.items()):
                    nodes = {request.node for request in ranks}
                    if not nodes & busy:
                        busy |= nodes
                        together.start_soon(self._gang, groups.pop(name), deadline_of(ranks))

    async def _gang(self, ranks: Sequence[Request], deadline_s: float) -> None:
        if self.context.context is None:
            for request in ranks:
                self._without(request, Unavailable("context", self.context.missing))
            return
        from preflight.gang import members_of, run_gang

        members = {member.key: member for member in members_of(ranks)}
        self.progress(Step("smoke", deadline_s=deadline_s))
        for member in members.values():
            self.progress(Step("smoke", party=member.name, node=member.node))
        facts, events = await run_gang(
            self.fleet.sessions,
            ranks,
            context=self.context.context,
            deadline_s=deadline_s,
            now=self.now,
            on_event=functools.partial(self._trained, members),
        )
        for member in members.values():
            self.progress(Step("smoke", party=member.name))
        self.facts.extend(facts)
        self.events.extend(events)

    def _trained(self, members: Mapping[str, Member], event: EventRecord) -> None:
        phase, member = event.data.get("phase"), members.get(event.request_key)
        if isinstance(phase, str) and member is not None:
            self.progress(Step("smoke", party=member.name, node=member.node, phase=phase))

    async def _between(self, request: Request, listeners: _Listeners, ends: float) -> None:
        """Ask one node about its peers, with what they said when they began to listen."""
        left = ends - self.now()
        if left < LEAST_S:
            self._without(request, Unavailable("timeout", "the link stage's time was up before it was tried"))
            return
        where = {peer: listeners.where(request.listen, peer) for peer in request.peers}
        heard = {peer: said for peer, said in where.items() if not isinstance(said, Unavailable)}
        silent = {peer: said.reason for peer, said in where.items() if isinstance(said, Unavailable)}
        if not heard and request.node in self.fleet.sessions:
            peer, reason = next(iter(silent.items()))
            self._without(request, Unavailable("blocked", f"{peer} could not listen: {reason}"))
            return
        params = {**request.params, "listening": heard, "unheard": silent}
        limited = replace(request, params=params, deadline_s=min(request.deadline_s, left))
        await self._ask(limited, recorded_as=request)

    async def _ask(self, request: Request, *, start_s: float = 0.0, recorded_as: Request | None = None) -> None:
        session = self.fleet.sessions.get(request.node)
        kept = recorded_as or request
        if session is None:
            self._without(kept, Unavailable("unreachable", f"{request.node} gave no agent"))
            return
        if request.context and self.context.context is None:
            self._without(kept, Unavailable("context", self.context.missing))
            return
        if request.consent and request.consent not in self.allowed:
            self._without(kept, Unavailable("denied", f"it is looked at with --allow {request.consent} alone"))
            return
        started = self.now()
        context = self.context.context if request.context else None
        params = dict(request.params)
        if RUN_KEY in params:
            params[RUN_KEY] = self._run_key
        ask = Ask(0, request.probe, params, request.deadline_s, context, start_s=start_s, together=_kind(request))
        answer = await session.run(ask)
        value = answer.value if isinstance(answer, Done) else None
        problem = _unavailable(answer) if isinstance(answer, Failed) else None
        provenance = self.context.provenance if request.context else ""
        self.facts.append(FactRecord(kept, value, problem, started, self.now(), provenance))

    def _without(self, request: Request, why: Unavailable) -> None:
        self.facts.append(FactRecord(request, None, why, self.now(), self.now()))


class _Listeners:
    """What listens on the nodes during a stage, by probe and node; ended together with the `async with`."""

    def __init__(self, sessions: Mapping[str, AgentSession], keep: Callable[[EventRecord], None]) -> None:
        self._sessions = sessions
        self._keep = keep
        self._listeners: dict[tuple[str, str], _Listener] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> _Listeners:
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(self, *raised: Any) -> bool | None:
        self._group.cancel_scope.cancel()
        return await self._stack.__aexit__(*raised)

    async def start(self, requests: Sequence[Request], now: Callable[[], float], ends: float) -> list[FactRecord]:
        """Let these listen until the end; one record each, as soon as all of them do or have had their time."""
        began = now()
        fresh: list[tuple[Request, _Listener]] = []
        for request in requests:
            session = self._sessions.get(request.node)
            listener = _Listener(session, request, max(0.0, ends - began) + LISTENING_WITHIN_S, self._keep)
            self._listeners[(request.probe, request.node)] = listener
            fresh.append((request, listener))
            self._group.start_soon(listener.serve)
        with anyio.move_on_after(min(LISTENING_WITHIN_S, max(0.0, ends - began))):
            for _, listener in fresh:
                await listener.settled.wait()
        return [FactRecord(request, item.where, item.problem, began, now()) for request, item in fresh]

    def where(self, probe: str, node: str) -> Any:
        """What the listener on `node` said of itself, or why there is none."""
        listener = self._listeners.get((probe, node))
        if listener is None:
            return Unavailable("blocked", "nobody asked it to listen")
        return listener.problem or listener.where


class _Listener:
    """What runs on one node until it is cancelled; `settled` once it listens, or cannot."""

    def __init__(
        self,
        session: AgentSession | None,
        request: Request,
        lifetime_s: float,
        keep: Callable[[EventRecord], None],
    ) -> None:
        self._session = session
        self._key = request.key
        self._keep = keep
        self._ask = Ask(0, request.probe, dict(request.params), lifetime_s)
        self._node = request.node
        self._where: object = None
        self._problem: Unavailable | None = None
        self.settled = anyio.Event()

    @property
    def where(self) -> object:
        """What it said when it began to listen; None when it has not."""
        return self._where

    @property
    def problem(self) -> Unavailable | None:
        """Why it does not listen."""
        if self._where is not None:
            return None
        return self._problem or Unavailable("timeout", f"it did not listen within {LISTENING_WITHIN_S:g} s")

    async def serve(self) -> None:
        """Listen until cancelled or until the probe ends by itself."""
        if self._session is None:
            self._problem = Unavailable("unreachable", f"{self._node} gave no agent")
            self.settled.set()
            return
        answer = await self._session.run(self._ask, self._hear)
        if self._where is None:
            ended = Unavailable("crashed", "it ended before it had begun to listen")
            self._problem = _unavailable(answer) if isinstance(answer, Failed) else ended
            self.settled.set()

    def _hear(self, event: Event) -> None:
        if event.origin == "child" and "listening" in event.data and self._where is None:
            self._where = event.data["listening"]
            self.settled.set()
        elif event.origin == "child":
            # What it hears meanwhile is as much of an observation as what whoever dials gets to see.
            self._keep(EventRecord(self._key, self._node, event.at_s, event.origin, event.data))


def _kind(request: Request) -> str:
    """With which others the observation may share a process, by what its probe says of itself."""
    return kind_of(_probe(request))


def _probe(request: Request) -> object:
    """The probe itself, where it is at hand."""
    module, _, path = request.probe.partition(":")
    probe: object = sys.modules.get(module)
    for name in path.split("."):
        probe = getattr(probe, name, None)
    return probe


def _unavailable(answer: Failed) -> Unavailable:
    return Unavailable(answer.kind, answer.reason, answer.detail, answer.exit_code)
