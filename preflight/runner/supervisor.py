"""Starts the members of a smoke run together, watches them, and stops waiting once the culprit is known."""

from __future__ import annotations

import asyncio
import secrets
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import anyio
from anyio.abc import TaskStatus

from preflight._util.validation import format_errors
from preflight.agent import rank_events
from preflight.agent.wire import AgentRequest, Context, Done, Event
from preflight.analysis.culprit import LIMITS, Culprit, Limits, Member, decision_time, find_culprit
from preflight.analysis.rank_state import members_of, replacements
from preflight.model.recording import EventRecord, FactRecord, Unavailable
from preflight.model.requests import Request
from preflight.runner.session import AgentSession, RunningRequest

if TYPE_CHECKING:
    from pydantic import TypeAdapter


#: Interval between checks of the ranks; the fastest verdict (a death) is due within a second.
CHECK_EVERY_S = 0.2
#: Delay between naming a member and accepting the verdict: the cause of a death may be reported after the death.
CONFIRM_S = 0.4
#: A longer delay of the loop beyond `CHECK_EVERY_S` is recorded, because missing events during it are not a fault.
PAUSE_S = 0.3
#: How long to wait for the stacks of a stuck rank.
STACKS_S = 2.0
#: If all ranks hang together, stacks of at most this many ranks are requested.
MAX_STACKS = 8


async def run_rank_group(
    sessions: Mapping[str, AgentSession],
    requests: Sequence[Request],
    *,
    context: Context,
    deadline_s: float,
    clock: Callable[[], float],
    on_event: Callable[[EventRecord], None] | None = None,
    limits: Limits = LIMITS,
) -> tuple[list[FactRecord], list[EventRecord]]:
    """Run all requests of one group at the same time; returns one record per request, and all events in time order.

    Args:
        sessions: by node name; a node without one makes its ranks unavailable at once.
        deadline_s: for the whole group. `clock` gives seconds since the run began.
        on_event: is called with every event as it arrives.
    """
    problem_with({})  # the model of events is built now, not while the first ones wait
    gang = _RankGroup(clock, on_event or (lambda record: None), limits)
    # Neither value is part of the request, so neither gets into a recording.
    run_id, secret = uuid.uuid4().hex, secrets.token_hex(32)
    async with anyio.create_task_group() as group:
        for request in requests:
            session = sessions.get(request.node)
            if session is None:
                gang.record_missing_agent(request)
                continue
            params = {"timeout_s": deadline_s, **request.params, "run_id": run_id, "secret": secret}
            ask = AgentRequest(0, request.probe, params, deadline_s, context, fresh=True)
            running = session.start(ask, gang.event_recorder(request))
            gang.running[request.key] = running
            group.start_soon(gang.await_rank, request, running, context.provenance)
        await gang.watch(requests)
    order = {request.key: index for index, request in enumerate(requests)}
    records = sorted(map(gang.with_cause, gang.records), key=lambda record: order[record.request.key])
    return records, sorted(gang.events, key=lambda event: event.at_s)


@dataclass
class _RankGroup:
    now: Callable[[], float]
    on_record: Callable[[EventRecord], None]
    limits: Limits
    running: dict[str, RunningRequest] = field(default_factory=dict)
    records: list[FactRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    decided_s: float | None = None
    named: Culprit | None = None
    began_s: float = 0.0
    #: Members that were ended because of an invalid event, with the reason.
    rejected: dict[str, str] = field(default_factory=dict)
    #: Members that were ended because a backup worker replaced them, with the reason.
    replaced: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began_s = self.now()

    def record_missing_agent(self, request: Request) -> None:
        why = Unavailable("unreachable", f"{request.node} has no agent")
        self.records.append(FactRecord(request, None, why, self.began_s, self.began_s))

    def event_recorder(self, request: Request) -> Callable[[Event], None]:
        def on_event(event: Event) -> None:
            if request.key in self.rejected:
                return
            problem = problem_with(event.data, role=str(request.params.get("role", "")))
            if problem:
                self.rejected[request.key] = f"it sent an invalid event: {problem}"
                self.running[request.key].cancel()
                return
            at_s = min(event.at_s, self.now())
            if self.decided_s is not None:
                # The verdict counts from that moment; the requested stacks are its evidence, and all later events are
                # consequences.
                if "stacks" not in event.data:
                    return
                at_s = max(at_s, self.decided_s)
            self._record(EventRecord(request.key, request.node, at_s, event.origin, event.data))

        return on_event

    async def await_rank(self, request: Request, running: RunningRequest, provenance: str) -> None:
        answer = await running.result()
        value: Any = None
        problem: Unavailable | None = None
        if isinstance(answer, Done):
            value = answer.value
        else:
            problem = Unavailable(answer.kind, answer.reason, answer.detail, answer.exit_code)
        if request.key in self.rejected:
            value, problem = None, Unavailable("crashed", self.rejected[request.key])
        finished_s = self.now()
        if self.decided_s is not None and finished_s <= self.decided_s:
            finished_s = self.decided_s + 1e-6
        self.records.append(FactRecord(request, value, problem, self.began_s, finished_s, provenance))

    def with_cause(self, record: FactRecord) -> FactRecord:
        """Return the record; if the rank ended because of another one, include that rank's fault."""
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
        """Watch until all ranks are finished or a culprit is known; then take its stacks and end all ranks."""
        members = members_of(requests)
        suspected_s: float | None = None
        before_s = self.now()
        while len(self.records) < len(requests):
            await anyio.sleep(CHECK_EVERY_S)
            at_s = self.now()
            self._record_pause(requests[0], at_s - before_s - CHECK_EVERY_S, at_s)
            before_s = at_s
            self._end_replaced(members)
            named = find_culprit(
                members, self.events, self.records, now_s=at_s, began_s=self.began_s, limits=self.limits
            )
            if named is None:
                suspected_s = None
                continue
            if suspected_s is None:
                suspected_s = at_s
            if at_s - suspected_s >= CONFIRM_S:
                await self._end(named, at_s)
                return
        if any(record.unavailable is not None for record in self.records):
            # All members ended before a decision was needed.
            at_s = decision_time(self.events, self.records)
            self.named = find_culprit(
                members, self.events, self.records, now_s=at_s, began_s=self.began_s, limits=self.limits
            )

    def _record_pause(self, request: Request, seconds: float, at_s: float) -> None:
        if seconds >= PAUSE_S:
            data = {"event": rank_events.HEAD_PAUSED, "seconds": round(seconds, 3)}
            self._record(EventRecord(request.key, request.node, at_s, "head", data))

    def _end_replaced(self, members: Sequence[Member]) -> None:
        """End replaced members once no others are left, because stopped processes do not end by themselves."""
        running = {member.rank: member.key for member in members if not self._has_ended(member.key)}
        gone = replacements(members, self.events)
        if running and all(number in gone for number in running):
            for number, key in running.items():
                spare = gone[number]
                who = f"{spare.name} on {spare.node}" if spare is not None else "a backup worker"
                if key in self.running and key not in self.replaced:
                    self.replaced[key] = f"stopped, because {who} replaced it"
                    self.running[key].cancel()

    async def _end(self, named: Culprit, at_s: float) -> None:
        self.decided_s = at_s
        self.named = named
        first = next(iter(self.running), named.key)
        data = {"event": rank_events.DECIDED, "because": named.because}
        self._record(EventRecord(named.key or first, named.node, at_s, "head", data))
        await self._take_stacks(named)
        for running in self.running.values():
            running.cancel()

    async def _take_stacks(self, named: Culprit) -> None:
        """Request the stacks of a stuck rank, or of all ranks if none can be named, and wait briefly for the answer."""
        if named.kind != "stuck":
            return
        keys = [named.key] if named.rank is not None else list(self.running)[:MAX_STACKS]
        requested = {key for key in keys if key in self.running and not self._has_ended(key)}
        for key in requested:
            self.running[key].dump_stacks()
        with anyio.move_on_after(STACKS_S):
            while requested - {event.request_key for event in self.events if "stacks" in event.data}:
                await anyio.sleep(CHECK_EVERY_S / 2)

    def _has_ended(self, key: str) -> bool:
        return any(record.request.key == key for record in self.records)

    def _record(self, record: EventRecord) -> None:
        self.events.append(record)
        self.on_record(record)


_PHASES = frozenset(("", rank_events.LISTENING, *rank_events.ORDER, *rank_events.PS_ORDER))


def _known_phase(phase: str) -> str:
    if phase not in _PHASES:
        raise ValueError("it is not a phase of a smoke run")
    return phase


#: Ranks of one run, and indexes within their roles.
_MAX_RANKS = 1 << 20


@cache
def _validator() -> TypeAdapter[Any]:
    """Return the model of an event. The model is built, and pydantic imported, on first use."""
    from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

    _Text = Annotated[str, Field(max_length=4096)]
    _Rank = Annotated[int, Field(ge=-1, le=_MAX_RANKS)]
    _Count = Annotated[int, Field(ge=0, le=1 << 53)]
    _Seconds = Annotated[float, Field(ge=0, le=1e8, allow_inf_nan=False)]

    class RankEvent(BaseModel):
        """An event of a rank, or of the agent about one. Every field is optional, but must have its type if present."""

        model_config = ConfigDict(extra="allow", strict=True, frozen=True)

        event: _Text = ""
        phase: Annotated[_Text, AfterValidator(_known_phase)] = ""
        what: _Text = ""
        progress: _Count = 0
        collective: _Count = 0
        beat: _Count = 0
        inside: bool = False
        loading: bool = False
        idle: bool = False
        again: bool = False
        consequence: bool = False
        waiting_for: Annotated[list[_Rank], Field(max_length=1 << 16)] = []
        seconds: _Seconds = 0.0
        since_s: _Seconds = 0.0
        starved_s: _Seconds = 0.0
        details: Annotated[dict[str, Any], Field(max_length=1000)] = {}
        rank: _Rank = 0
        root: _Rank | None = None
        to: _Rank = 0
        worker: _Rank | _Text | None = None
        spare: _Rank | None = None
        result: _Text = ""
        endpoint: _Text = ""
        problem: _Text = ""
        error: Annotated[str, Field(max_length=1 << 18)] = ""
        stacks: Annotated[str, Field(max_length=1 << 16)] = ""
        state: _Text = ""
        pid: Annotated[int, Field(ge=0, le=1 << 31)] = 0

    return TypeAdapter(RankEvent)


def problem_with(data: Mapping[str, Any], *, role: str = "") -> str:
    """Return why a rank of this role, or an agent, cannot send this event, with the field; empty if it can."""
    from pydantic import ValidationError

    try:
        event = _validator().validate_python(dict(data))
    except ValidationError as error:
        return format_errors(error)
    if event.event == rank_events.DECIDED:
        return "event: only the head names the culprit"
    if event.event == rank_events.HEAD_PAUSED:
        return "event: only the head reports its own pauses"
    if event.event == rank_events.REPLACED and role != "server":
        return "event: only a server replaces a worker by a backup worker"
    return ""


# Interrupts of a run: by SIGTERM, by Ctrl-C, or by the thread that waits for it.


#: Exit codes of a program that SIGTERM or Ctrl-C ended.
TERMINATED, INTERRUPTED = 128 + signal.SIGTERM, 128 + signal.SIGINT


def is_interrupt(error: BaseException) -> bool:
    """Return whether `error` is Ctrl-C, alone or wrapped by task groups."""
    inner = [one for one in getattr(error, "exceptions", ()) if not isinstance(one, asyncio.CancelledError)]
    return isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)) or any(map(is_interrupt, inner))


class Terminated(BaseException):
    """Raised on SIGTERM within `termination_raises`."""


def exit_code_of(interrupt: BaseException) -> int:
    """Return the exit code of a program that this interrupt ended."""
    return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED


@contextmanager
def termination_raises() -> Iterator[None]:
    """Make SIGTERM raise `Terminated`, as Ctrl-C raises KeyboardInterrupt. Only the main thread can do this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class Interrupter:
    """Cancels a run in order, so that every agent is closed; before that it calls `interrupt` with the exit code.

    An exception raised by a signal handler would surface in whichever task happens to run, wrapped in the task groups
    around it, or inside the event loop itself, and asyncio's own handling of Ctrl-C ignores shields. A second Ctrl-C
    reaches Python's own handler again.
    """

    def __init__(self, interrupt: Callable[[int], None]) -> None:
        self._interrupt = interrupt
        self._exit_codes = {signal.SIGTERM: TERMINATED}
        # The caller may handle Ctrl-C in its own way.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._exit_codes[signal.SIGINT] = INTERRUPTED
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scope: anyio.CancelScope | None = None
        self._is_interrupted = False

    async def watch(
        self, scope: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Cancel `scope` on an interrupt. Only the main thread of a program may handle signals."""
        self._loop, self._scope = asyncio.get_running_loop(), scope
        if threading.current_thread() is not threading.main_thread():
            task_status.started()
            if self._is_interrupted:
                self._cancel(INTERRUPTED)
            return
        with anyio.open_signal_receiver(*self._exit_codes) as signals:
            task_status.started()
            async for number in signals:
                self._cancel(self._exit_codes[number])
                return

    def now(self) -> None:
        """Interrupt the run from another thread."""
        self._is_interrupted = True
        if self._loop is not None:
            # Once the loop is closed, the run is finished.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel, INTERRUPTED)

    def _cancel(self, exit_code: int) -> None:
        assert self._scope is not None
        self._interrupt(exit_code)
        self._scope.cancel()
