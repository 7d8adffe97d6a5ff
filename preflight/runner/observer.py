"""Observing: turns the requests of a stage into facts, over the sessions of a fleet."""

from __future__ import annotations

import functools
import secrets
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio

from preflight._util.sequences import grouped
from preflight.agent.cheap import kind_of, run_order
from preflight.agent.wire import AgentRequest, Done, Event, Failed
from preflight.analysis.link_matrix import disjoint_rounds
from preflight.model.progress import Progress, Step
from preflight.model.recording import EventRecord, FactRecord, Unavailable
from preflight.model.requests import Request
from preflight.runner.preparation import ContextChoice
from preflight.runner.session import AgentSession, OpenFleet

if TYPE_CHECKING:
    from preflight.analysis.rank_state import Member

#: Probes that run on one node at the same time; more would only slow each other down.
_PROBES_AT_ONCE = 8
#: Share of the stage for the first request in the job context, which includes entering the context: setup lines and
#: containers make that slow. The rest of the stage lets the answer arrive in time.
_ENTER_SHARE = 0.8
#: The key of the run replaces this parameter of a probe. The key is created for one run and not recorded; its only
#: use is to compare hashes of secret values.
RUN_KEY = "run_key"
#: A listener binds its ports at once or not at all; the rest is for starting it on a busy node.
LISTEN_TIMEOUT_S = 3.0
#: Share of the link stage that is reserved for running requests to end, and for a busy head to receive the answers.
END_SHARE = 0.05
#: How long after the link stage a busy head may still receive answers that agents sent in time.
RECEIVE_S = 1.0
#: If less time than this remains in the stage, no request is started, because it would be cut off.
MIN_REMAINING_S = 0.5
#: Progress of the pairs of a stage is reported at most this often.
PROGRESS_EVERY_S = 0.1
#: Largest number of rounds in which facts of a stage lead to further requests in the same stage.
MAX_WAVES = 12


#: Returns the additional requests that the facts so far make necessary.
FollowUp = Callable[[], Awaitable[Sequence[Request]]]


@dataclass
class Observer:
    """Sends requests and records the results. `now` returns seconds since the run began."""

    fleet: OpenFleet
    context: ContextChoice
    now: Callable[[], float]
    progress: Progress
    allowed: frozenset[str] = frozenset()
    facts: list[FactRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    _run_key: str = field(default_factory=lambda: secrets.token_hex(16))

    async def nodes(self, requests: Sequence[Request], *, deadline_s: float, stage: str = "node") -> None:
        """Send all requests, a few at a time to each node; late answers are recorded as late."""
        ends = self.now() + deadline_s
        queues: dict[str, deque[Request]] = {}
        cheap: list[Request] = []
        # By identity: each request occurs once, and formatting its key takes as long as sending it.
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

        async def observe_one(request: Request) -> None:
            nonlocal done
            await self._request(request, start_s=max(0.0, _ENTER_SHARE * deadline_s - request.deadline_s))
            del waiting[request.node][id(request)]
            if not waiting[request.node]:
                del waiting[request.node]
            done += 1
            self.progress(Step(stage, done, len(requests), tuple(waiting), ends - self.now(), nodes=nodes))

        async def work(queue: deque[Request]) -> None:
            while queue:
                await observe_one(queue.popleft())

        with anyio.move_on_after(deadline_s):
            async with anyio.create_task_group() as group:
                # Requests of one kind share a process and are sent together.
                for request in sorted(cheap, key=lambda request: run_order(_probe(request))):
                    group.start_soon(observe_one, request)
                for queue in queues.values():
                    for _ in range(min(_PROBES_AT_ONCE, len(queue))):
                        group.start_soon(work, queue)
        for left in waiting.values():
            for request in left.values():
                late = Unavailable("timeout", f"{request.node} did not respond within the stage's {deadline_s:g} s")
                self._record_unavailable(request, late)

    async def links(self, requests: Sequence[Request], follow_up: FollowUp, *, deadline_s: float) -> None:
        """Send requests without peers, then requests between nodes, then the resulting requests of `follow_up`.

        Listeners run from the first request to the last follow-up. Measurements take turns, so that no node has two at
        a time; everything else is sent at once. Nothing continues after `deadline_s`: requests that have not started
        shortly before are recorded as not tried, and running ones are ended, whether or not their agents confirm that.
        """
        stops = self.now() + deadline_s + RECEIVE_S
        ends = self.now() + deadline_s * (1 - END_SHARE)
        async with _Listeners(self.fleet.sessions, self.events.append) as listeners:
            for _ in range(MAX_WAVES):
                await self._wave(requests, listeners, ends, stops)
                requests = await follow_up() if self.now() < ends else ()
                if not requests:
                    break

    async def _wave(self, requests: Sequence[Request], listeners: _Listeners, ends: float, stops: float) -> None:
        wanted = {request.listen for request in requests if request.peers}
        serving = [request for request in requests if request.probe in wanted]
        plain = [request for request in requests if not request.peers and request.probe not in wanted]
        between = [request for request in requests if request.peers and not request.exclusive]
        turns = disjoint_rounds(request for request in requests if request.exclusive)
        await self.nodes(plain, deadline_s=max(0.0, ends - self.now()), stage="link")
        self.facts.extend(await listeners.start(serving, self.now, ends))
        done, total = 0, len(between) + sum(map(len, turns))
        left: dict[str, int] = {}
        reported_at = -PROGRESS_EVERY_S

        def report_progress() -> None:
            # With thousands of nodes, each record would otherwise list all that remain.
            nonlocal reported_at
            if done == total or self.now() - reported_at >= PROGRESS_EVERY_S:
                reported_at = self.now()
                self.progress(Step("link", done, total, tuple(left), ends - reported_at))

        # By identity, as for nodes.
        waiting = {id(request): request for batch in (between, *turns) for request in batch}

        async def observe_one(request: Request) -> None:
            nonlocal done
            await self._request_between(request, listeners, ends)
            del waiting[id(request)]
            done += 1
            left[request.node] -= 1
            if not left[request.node]:
                del left[request.node]
            report_progress()

        # A frozen agent confirms nothing, and many of them would extend the stage by their grace periods.
        with anyio.move_on_after(max(0.0, stops - self.now())):
            for batch in (between, *turns):
                for request in batch:
                    left[request.node] = left.get(request.node, 0) + 1
                report_progress()
                async with anyio.create_task_group() as group:
                    for request in batch:
                        group.start_soon(observe_one, request)
        for request in waiting.values():
            reason = f"{request.node} did not respond before the link stage ended"
            self._record_unavailable(request, Unavailable("timeout", reason))

    async def ranks(self, requests: Sequence[Request], follow_up: FollowUp, *, deadline_s: float) -> None:
        """Run each group's ranks together, disjoint groups at the same time, then `follow_up` for as long again."""
        await self._rank_groups(requests, lambda ranks: deadline_s)
        ends = self.now() + deadline_s
        for _ in range(MAX_WAVES):
            requests = await follow_up() if ends - self.now() > MIN_REMAINING_S else ()
            if not requests:
                break
            await self._rank_groups(requests, lambda ranks: min(ranks[0].deadline_s, ends - self.now()))

    async def _rank_groups(
        self, requests: Sequence[Request], deadline_of: Callable[[Sequence[Request]], float]
    ) -> None:
        groups = grouped((request.group, request) for request in requests)
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
                        together.start_soon(self._rank_group, groups.pop(name), deadline_of(ranks))

    async def _rank_group(self, ranks: Sequence[Request], deadline_s: float) -> None:
        if self.context.context is None:
            for request in ranks:
                self._record_unavailable(request, Unavailable("context", self.context.missing))
            return
        from preflight.analysis.rank_state import members_of
        from preflight.runner.supervisor import run_rank_group

        members = {member.key: member for member in members_of(ranks)}
        self.progress(Step("smoke", deadline_s=deadline_s))
        for member in members.values():
            self.progress(Step("smoke", party=member.name, node=member.node))
        facts, events = await run_rank_group(
            self.fleet.sessions,
            ranks,
            context=self.context.context,
            deadline_s=deadline_s,
            clock=self.now,
            on_event=functools.partial(self._with_training_flag, members),
        )
        for member in members.values():
            self.progress(Step("smoke", party=member.name))
        self.facts.extend(facts)
        self.events.extend(events)

    def _with_training_flag(self, members: Mapping[str, Member], event: EventRecord) -> None:
        phase, member = event.data.get("phase"), members.get(event.request_key)
        if isinstance(phase, str) and member is not None:
            self.progress(Step("smoke", party=member.name, node=member.node, phase=phase))

    async def _request_between(self, request: Request, listeners: _Listeners, ends: float) -> None:
        """Send one node a request about its peers, with the reports from the peers' listeners."""
        left = ends - self.now()
        if left < MIN_REMAINING_S:
            self._record_unavailable(request, Unavailable("timeout", "the link stage ended before it was tried"))
            return
        reports = {peer: listeners.report(request.listen, peer) for peer in request.peers}
        listening = {peer: report for peer, report in reports.items() if not isinstance(report, Unavailable)}
        silent = {peer: report.reason for peer, report in reports.items() if isinstance(report, Unavailable)}
        if not listening and request.node in self.fleet.sessions:
            peer, reason = next(iter(silent.items()))
            self._record_unavailable(request, Unavailable("blocked", f"{peer} could not listen: {reason}"))
            return
        params = {**request.params, "listening": listening, "unheard": silent}
        limited = replace(request, params=params, deadline_s=min(request.deadline_s, left))
        await self._request(limited, recorded_as=request)

    async def _request(self, request: Request, *, start_s: float = 0.0, recorded_as: Request | None = None) -> None:
        session = self.fleet.sessions.get(request.node)
        recorded_request = recorded_as or request
        if session is None:
            self._record_unavailable(recorded_request, Unavailable("unreachable", f"{request.node} has no agent"))
            return
        if request.context and self.context.context is None:
            self._record_unavailable(recorded_request, Unavailable("context", self.context.missing))
            return
        if request.consent and request.consent not in self.allowed:
            self._record_unavailable(
                recorded_request, Unavailable("denied", f"it is observed only with --allow {request.consent}")
            )
            return
        started = self.now()
        context = self.context.context if request.context else None
        params = dict(request.params)
        if RUN_KEY in params:
            params[RUN_KEY] = self._run_key
        agent_request = AgentRequest(
            0, request.probe, params, request.deadline_s, context, start_s=start_s, together=_kind(request)
        )
        answer = await session.run(agent_request)
        value = answer.value if isinstance(answer, Done) else None
        problem = _unavailable(answer) if isinstance(answer, Failed) else None
        provenance = self.context.provenance if request.context else ""
        self.facts.append(FactRecord(recorded_request, value, problem, started, self.now(), provenance))

    def _record_unavailable(self, request: Request, why: Unavailable) -> None:
        self.facts.append(FactRecord(request, None, why, self.now(), self.now()))


class _Listeners:
    """The listeners on the nodes during a stage, by probe and node; ended together with the `async with`."""

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

    async def start(self, requests: Sequence[Request], clock: Callable[[], float], ends: float) -> list[FactRecord]:
        """Start these listeners until the end. Returns one record each, as soon as all listen or have timed out."""
        started_at = clock()
        fresh: list[tuple[Request, _Listener]] = []
        for request in requests:
            session = self._sessions.get(request.node)
            listener = _Listener(session, request, max(0.0, ends - started_at) + LISTEN_TIMEOUT_S, self._keep)
            self._listeners[(request.probe, request.node)] = listener
            fresh.append((request, listener))
            self._group.start_soon(listener.serve)
        with anyio.move_on_after(min(LISTEN_TIMEOUT_S, max(0.0, ends - started_at))):
            for _, listener in fresh:
                await listener.settled.wait()
        return [FactRecord(request, item.report, item.problem, started_at, clock()) for request, item in fresh]

    def report(self, probe: str, node: str) -> Any:
        """Return the report of the listener on `node`, or the reason why there is no report."""
        listener = self._listeners.get((probe, node))
        if listener is None:
            return Unavailable("blocked", "it was not requested to listen")
        return listener.problem or listener.report


class _Listener:
    """A listener on one node, which runs until it is cancelled; `settled` is set once it listens or has failed."""

    def __init__(
        self, session: AgentSession | None, request: Request, lifetime_s: float, keep: Callable[[EventRecord], None]
    ) -> None:
        self._session = session
        self._key = request.key
        self._keep = keep
        self._request = AgentRequest(0, request.probe, dict(request.params), lifetime_s)
        self._node = request.node
        self._where: object = None
        self._problem: Unavailable | None = None
        self.settled = anyio.Event()

    @property
    def report(self) -> object:
        """Return what the probe reported when it began to listen; None if it has not begun."""
        return self._where

    @property
    def problem(self) -> Unavailable | None:
        if self._where is not None:
            return None
        return self._problem or Unavailable("timeout", f"it did not listen within {LISTEN_TIMEOUT_S:g} s")

    async def serve(self) -> None:
        """Listen until cancelled or until the probe ends by itself."""
        if self._session is None:
            self._problem = Unavailable("unreachable", f"{self._node} has no agent")
            self.settled.set()
            return
        answer = await self._session.run(self._request, self._on_event)
        if self._where is None:
            ended = Unavailable("crashed", "it ended before it began to listen")
            self._problem = _unavailable(answer) if isinstance(answer, Failed) else ended
            self.settled.set()

    def _on_event(self, event: Event) -> None:
        if event.origin == "child" and "listening" in event.data and self._where is None:
            self._where = event.data["listening"]
            self.settled.set()
        elif event.origin == "child":
            # Its answer counts as an observation as much as that of the peers that connect.
            self._keep(EventRecord(self._key, self._node, event.at_s, event.origin, event.data))


def _kind(request: Request) -> str:
    """Return the kind of requests that may share a process with this one, as declared by its probe."""
    return kind_of(_probe(request))


def _probe(request: Request) -> object:
    module, _, path = request.probe.partition(":")
    probe: object = sys.modules.get(module)
    for name in path.split("."):
        probe = getattr(probe, name, None)
    return probe


def _unavailable(answer: Failed) -> Unavailable:
    return Unavailable(answer.kind, answer.reason, answer.detail, answer.exit_code)
