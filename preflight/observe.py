"""Observing: how the requests of a stage become facts, over the sessions of a fleet.

Nothing here knows what a fact means. Whatever does not come in time, or cannot, is recorded as unavailable with
the reason, so that a judgement can tell it from a fact.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import anyio

from preflight.fleet import OpenFleet
from preflight.gang import run_gang
from preflight.links import disjoint
from preflight.node.wire import Ask, Done, Event, Failed
from preflight.place import ContextChoice
from preflight.progress import Progress, Step
from preflight.recording import EventRecord, FactRecord, Unavailable
from preflight.request import Request
from preflight.session import AgentSession

#: So many probes run on one node at the same time; more would only measure each other.
_PROBES_AT_ONCE = 8
#: A listener binds its ports at once or not at all; the rest is for starting it on a busy node.
_LISTENING_WITHIN_S = 5.0


@dataclass
class Observer:
    """Asks what was requested and keeps what came of it. `now` gives seconds since the run began."""

    fleet: OpenFleet
    context: ContextChoice
    now: Callable[[], float]
    progress: Progress
    facts: list[FactRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)

    async def nodes(self, requests: Sequence[Request], *, deadline_s: float, stage: str = "node") -> None:
        """Ask everything at once, a few at a time on each node; what is not there in time is said to be late."""
        limits: dict[str, anyio.CapacityLimiter] = {}
        waiting: dict[str, Request] = {request.key: request for request in requests}
        ends = self.now() + deadline_s

        async def ask(request: Request) -> None:
            async with limits.setdefault(request.node, anyio.CapacityLimiter(_PROBES_AT_ONCE)):
                await self._ask(request)
            del waiting[request.key]
            names = tuple(dict.fromkeys(r.node for r in waiting.values()))
            self.progress(Step(stage, len(requests) - len(waiting), len(requests), names, ends - self.now()))

        with anyio.move_on_after(deadline_s):
            async with anyio.create_task_group() as group:
                for request in requests:
                    group.start_soon(ask, request)
        for request in waiting.values():
            late = Unavailable("timeout", f"{request.node} did not answer within the stage's {deadline_s:g} s")
            self._without(request, late)

    async def links(self, requests: Sequence[Request], *, deadline_s: float) -> None:
        """Pairs in rounds: in one round a node talks to one other node, in both directions.

        `deadline_s` is for what needs no peer, and for how long a listener may serve one round.
        """
        pairs = [request for request in requests if request.peer]
        await self.nodes([request for request in requests if not request.peer], deadline_s=deadline_s, stage="link")
        done = 0
        for batch in disjoint(pairs):
            waiting = tuple(dict.fromkeys(name for request in batch for name in (request.node, request.peer)))
            self.progress(Step("link", done, len(pairs), waiting))
            async with anyio.create_task_group() as group:
                for request in batch:
                    group.start_soon(self._dial, request, deadline_s)
            done += len(batch)
        self.progress(Step("link", done, len(pairs)))

    async def ranks(self, requests: Sequence[Request], *, deadline_s: float) -> None:
        """Each group of ranks together, one group after the other; what has no group like facts of nodes."""
        groups: dict[str, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.group, []).append(request)
        await self.nodes(groups.pop("", []), deadline_s=deadline_s, stage="smoke")
        for name, ranks in groups.items():
            if self.context.context is None:
                for request in ranks:
                    self._without(request, Unavailable("context", self.context.missing))
                continue
            facts, events = await run_gang(
                self.fleet.sessions,
                ranks,
                context=self.context.context,
                deadline_s=deadline_s,
                now=self.now,
                on_event=functools.partial(self._trained, len(ranks)),
            )
            self.facts.extend(facts)
            self.events.extend(events)
            self.progress(Step("smoke", len(ranks), len(ranks), note=name))

    def _trained(self, ranks: int, event: EventRecord) -> None:
        phase = event.data.get("phase")
        if isinstance(phase, str):
            self.progress(Step("smoke", 0, ranks, note=f"{event.node}: {phase}"))

    async def _dial(self, request: Request, deadline_s: float) -> None:
        """Let the peer listen, hand where it listens to the dialling probe, and end the listener."""
        peer = self.fleet.sessions.get(request.peer)
        if peer is None or request.node not in self.fleet.sessions:
            gone = request.peer if peer is None else request.node
            self._without(request, Unavailable("unreachable", f"{gone} gave no agent"))
            return
        started = self.now()
        listener = _Listener(peer, request, deadline_s + _LISTENING_WITHIN_S)
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve)
            with anyio.move_on_after(_LISTENING_WITHIN_S):
                await listener.settled.wait()
            if listener.where is None:
                late = Unavailable("timeout", f"it did not listen within {_LISTENING_WITHIN_S:g} s")
                why = listener.problem or late
                why = replace(why, reason=f"{request.peer} could not listen: {why.reason}")
                self.facts.append(FactRecord(request, None, why, started, self.now()))
            else:
                params = {**request.params, "listening": listener.where}
                await self._ask(replace(request, params=params), recorded_as=request)
            group.cancel_scope.cancel()

    async def _ask(self, request: Request, *, recorded_as: Request | None = None) -> None:
        session = self.fleet.sessions.get(request.node)
        kept = recorded_as or request
        if session is None:
            self._without(kept, Unavailable("unreachable", f"{request.node} gave no agent"))
            return
        if request.context and self.context.context is None:
            self._without(kept, Unavailable("context", self.context.missing))
            return
        started = self.now()
        context = self.context.context if request.context else None
        answer = await session.run(Ask(0, request.probe, dict(request.params), request.deadline_s, context))
        value = answer.value if isinstance(answer, Done) else None
        problem = _unavailable(answer) if isinstance(answer, Failed) else None
        provenance = self.context.provenance if request.context else ""
        self.facts.append(FactRecord(kept, value, problem, started, self.now(), provenance))

    def _without(self, request: Request, why: Unavailable) -> None:
        self.facts.append(FactRecord(request, None, why, self.now(), self.now()))


class _Listener:
    """What runs on the peer of a pair until it is cancelled; `settled` once it listens, or cannot."""

    def __init__(self, session: AgentSession, request: Request, lifetime_s: float) -> None:
        self._session = session
        self._ask = Ask(0, request.listen, dict(request.listen_params), lifetime_s)
        self.where: object = None
        self.problem: Unavailable | None = None
        self.settled = anyio.Event()

    async def serve(self) -> None:
        """Listen until cancelled or until the probe ends by itself."""
        answer = await self._session.run(self._ask, self._hear)
        if self.where is None:
            ended = Unavailable("crashed", "it ended before it had begun to listen")
            self.problem = _unavailable(answer) if isinstance(answer, Failed) else ended
            self.settled.set()

    def _hear(self, event: Event) -> None:
        if event.origin == "child" and "listening" in event.data and self.where is None:
            self.where = event.data["listening"]
            self.settled.set()


def _unavailable(answer: Failed) -> Unavailable:
    return Unavailable(answer.kind, answer.reason, answer.detail, answer.exit_code)
