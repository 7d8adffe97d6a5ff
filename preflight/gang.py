"""Starts the members of a smoke run together, watches them, and stops waiting once it is known who is to blame."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Protocol

import anyio

from preflight.culprit import LIMITS, Culprit, Limits, Member, culprit, decision_time
from preflight.lazy.dataclasses import dataclass
from preflight.node.wire import Ask, Context, Done, Event, Failed
from preflight.ranks import RANK, SPARE, replaced
from preflight.recording import EventRecord, FactRecord, Unavailable
from preflight.request import Request
from reference_trainer import phases

#: How often the ranks are looked at; the quickest verdict of all (a death) is due within a second.
LOOK_S = 0.2
#: Between naming somebody and believing it: what caused a death may be reported after the death.
CONFIRM_S = 0.4
#: How long the stacks of a stuck rank are waited for.
STACKS_S = 2.0
#: Stacks of more ranks than this are not asked for when all hang together.
MOST_STACKS = 8


class Running(Protocol):
    """A request under way, as `preflight.session.Running`."""

    async def result(self) -> Done | Failed:
        """Wait for the answer."""
        ...

    def cancel(self) -> None:
        """Have the child killed."""
        ...

    def dump_stacks(self) -> None:
        """Have the child say where its threads are."""
        ...


class Session(Protocol):
    """What is needed of `preflight.session.AgentSession`."""

    def start(self, ask: Ask, on_event: Callable[[Event], None] | None = None) -> Running:
        """Send a request and return at once."""
        ...


def members_of(requests: Sequence[Request]) -> tuple[Member, ...]:
    """Whom these requests start. Where two were given one number, the later one is counted behind all others."""
    found: dict[int, Member] = {}
    for request in requests:
        params = request.params
        number = int(params["rank"])
        if number in found:
            number = max(max(found), len(requests)) + 1
        role = SPARE if params.get("spare") is True else str(params.get("role", RANK))
        index = params.get("index", params["rank"])
        found[number] = Member(number, request.node, request.key, role, index if isinstance(index, int) else str(index))
    return tuple(found.values())


async def run_gang(
    sessions: Mapping[str, Session],
    requests: Sequence[Request],
    *,
    context: Context,
    deadline_s: float,
    now: Callable[[], float],
    on_event: Callable[[EventRecord], None] | None = None,
    limits: Limits = LIMITS,
) -> tuple[list[FactRecord], list[EventRecord]]:
    """Run all requests of one group at the same time; returns one record a request, and every event in time order.

    Args:
        sessions: by node name; a node without one makes its ranks unavailable at once.
        deadline_s: for the whole group. `now` gives seconds since the run began.
        on_event: hears every event as it comes.
    """
    gang = _Gang(now, on_event or (lambda record: None), limits)
    # Neither stands in the request, and so in no recording.
    run_id, secret = uuid.uuid4().hex, secrets.token_hex(32)
    async with anyio.create_task_group() as group:
        for request in requests:
            session = sessions.get(request.node)
            if session is None:
                gang.lack(request)
                continue
            params = {"timeout_s": deadline_s, **request.params, "run_id": run_id, "secret": secret}
            ask = Ask(0, request.probe, params, deadline_s, context, fresh=True)
            running = session.start(ask, gang.hearing(request))
            gang.running[request.key] = running
            group.start_soon(gang.await_one, request, running, context.provenance)
        await gang.watch(requests)
    order = {request.key: index for index, request in enumerate(requests)}
    records = sorted(map(gang.explained, gang.records), key=lambda record: order[record.request.key])
    return records, sorted(gang.events, key=lambda event: event.at_s)


@dataclass
class _Gang:
    now: Callable[[], float]
    tell: Callable[[EventRecord], None]
    limits: Limits
    running: dict[str, Running] = field(default_factory=dict)
    records: list[FactRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    decided_s: float | None = None
    named: Culprit | None = None
    began_s: float = 0.0
    #: Why those were ended whose place a spare worker has.
    replaced: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began_s = self.now()

    def lack(self, request: Request) -> None:
        """A rank whose node gave no agent."""
        why = Unavailable("unreachable", f"{request.node} gave no agent")
        self.records.append(FactRecord(request, None, why, self.began_s, self.began_s))

    def hearing(self, request: Request) -> Callable[[Event], None]:
        """What records the events of one request."""

        def hear(event: Event) -> None:
            at_s = min(event.at_s, self.now())
            if self.decided_s is not None:
                # The verdict is as of then; stacks that were asked for are its evidence, the rest is aftermath.
                if "stacks" not in event.data:
                    return
                at_s = max(at_s, self.decided_s)
            self._keep(EventRecord(request.key, request.node, at_s, event.origin, event.data))

        return hear

    async def await_one(self, request: Request, running: Running, provenance: str) -> None:
        """Wait for one rank and record what came of it."""
        answer = await running.result()
        value: Any = None
        problem: Unavailable | None = None
        if isinstance(answer, Done):
            value = answer.value
        else:
            problem = Unavailable(answer.kind, answer.reason, answer.detail, answer.exit_code)
        finished_s = self.now()
        if self.decided_s is not None and finished_s <= self.decided_s:
            finished_s = self.decided_s + 1e-6
        self.records.append(FactRecord(request, value, problem, self.began_s, finished_s, provenance))

    def explained(self, record: FactRecord) -> FactRecord:
        """The record; of one that was ended, or ended itself, because of another one, with whose fault it was."""
        why, named = record.unavailable, self.named
        if why is not None and record.request.key in self.replaced:
            return replace(record, unavailable=replace(why, reason=self.replaced[record.request.key]))
        if why is None or named is None or record.request.key == named.key:
            return record
        because = f"because of {named.title}" if named.title else f"because {named.because}"
        if why.kind == "cancelled":
            return replace(record, unavailable=replace(why, reason=f"stopped {because}"))
        if why.kind == "blocked":
            return replace(record, unavailable=replace(why, reason=f"{because}: {why.reason}"))
        return record

    async def watch(self, requests: Sequence[Request]) -> None:
        """Look until all ranks are through, or one is to blame; then take its stacks and end all of them."""
        members = members_of(requests)
        suspected_s: float | None = None
        while len(self.records) < len(requests):
            await anyio.sleep(LOOK_S)
            at_s = self.now()
            self._end_replaced(members)
            named = culprit(members, self.events, self.records, now_s=at_s, began_s=self.began_s, limits=self.limits)
            if named is None:
                suspected_s = None
                continue
            if suspected_s is None:
                suspected_s = at_s
            if at_s - suspected_s >= CONFIRM_S:
                await self._end(named, at_s)
                return
        if any(record.unavailable is not None for record in self.records):
            # All of them ended before anybody had to decide.
            at_s = decision_time(self.events, self.records)
            self.named = culprit(
                members, self.events, self.records, now_s=at_s, began_s=self.began_s, limits=self.limits
            )

    def _end_replaced(self, members: Sequence[Member]) -> None:
        """End whoever a spare worker has replaced, when nobody else is left: stopped processes end by nothing else."""
        running = {member.rank: member.key for member in members if not self._has_ended(member.key)}
        gone = replaced(members, self.events)
        if running and all(number in gone for number in running):
            for number, key in running.items():
                spare = gone[number]
                who = f"{spare.name} on {spare.node}" if spare is not None else "a spare worker"
                if key in self.running and key not in self.replaced:
                    self.replaced[key] = f"stopped: {who} had taken its place"
                    self.running[key].cancel()

    async def _end(self, named: Culprit, at_s: float) -> None:
        self.decided_s = at_s
        self.named = named
        first = next(iter(self.running), named.key)
        said = {"event": phases.DECIDED, "because": named.because}
        self._keep(EventRecord(named.key or first, named.node, at_s, "head", said))
        await self._take_stacks(named)
        for running in self.running.values():
            running.cancel()

    async def _take_stacks(self, named: Culprit) -> None:
        """Ask a stuck rank (all of them when none can be named) where it is, and wait a moment for the answer."""
        if named.kind != "stuck":
            return
        keys = [named.key] if named.rank is not None else list(self.running)[:MOST_STACKS]
        asked = {key for key in keys if key in self.running and not self._has_ended(key)}
        for key in asked:
            self.running[key].dump_stacks()
        with anyio.move_on_after(STACKS_S):
            while asked - {event.request_key for event in self.events if "stacks" in event.data}:
                await anyio.sleep(LOOK_S / 2)

    def _has_ended(self, key: str) -> bool:
        return any(record.request.key == key for record in self.records)

    def _keep(self, record: EventRecord) -> None:
        self.events.append(record)
        self.tell(record)
