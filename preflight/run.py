"""A live check: open the nodes, observe in stages, and put everything into one recording.

Nothing is judged here but the one question whether the smoke run still makes sense; the verdict is judged from
the recording, so that a saved one cannot differ.
"""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from preflight import catalog
from preflight.engine import outcomes_of, selected
from preflight.errors import UsageError
from preflight.executors.base import Executor
from preflight.fleet import OpenFleet, open_fleet
from preflight.gang import run_gang
from preflight.job import Job
from preflight.judgement import STAGES, Check, Rule
from preflight.links import disjoint
from preflight.node.wire import Ask, Done, Event
from preflight.outcome import Severity
from preflight.place import ContextChoice, context_of, nodes_of
from preflight.progress import Progress, Step, ignore
from preflight.recording import (
    EventRecord,
    FactRecord,
    Facts,
    Fleet,
    Node,
    NodeRecord,
    Recording,
    StageRecord,
    Unavailable,
)
from preflight.request import Request

if TYPE_CHECKING:
    from preflight.session import AgentSession

#: So many probes run on one node at the same time; more would only measure each other.
_PROBES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How and how far to look. Deadlines are seconds; `until` is the last stage.

    ``executor` empty means ssh, which is what a person with a list of hosts wants. `steps` is the number of training
    steps of the smoke run; None leaves it to the check.
    """

    hosts: str = ""
    hostfile: Path | None = None
    executor: str = ""
    trust_job: bool = False
    python: str = ""
    directory: str = ""
    prelude: bool = False
    until: str = "smoke"
    keep_going: bool = False
    steps: int | None = None
    open_deadline: float = 9.0
    node_deadline: float = 10.0
    link_deadline: float = 10.0
    smoke_deadline: float = 60.0

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """The names the command line may set."""
        return tuple(field.name for field in fields(cls))


def record(
    base: Recording,
    options: CheckOptions,
    rules: Sequence[Rule],
    checks: Sequence[Check],
    *,
    progress: Progress | None = None,
) -> Recording:
    """Carry out a check of `base.jobs` and return the recording.

    An interrupt ends it early; what was seen until then is in the recording, with `interrupted` set.

    Raises:
        UsageError: there is no job, the nodes cannot be told, or the executor is unknown.
    """
    if not base.jobs:
        raise UsageError("no launch script or configuration was recognised in the paths given; nothing to check")
    executor_name = options.executor or "ssh"
    try:
        executor = catalog.named(catalog.EXECUTORS, executor_name)
    except KeyError as error:
        raise UsageError(f"--on {executor_name}: {error.args[0]}") from None
    nodes = nodes_of(
        base.jobs,
        hosts=options.hosts or "",
        hostfile=options.hostfile,
        trust_job=options.trust_job,
        executor=executor_name,
    )
    run = _Run(replace(base, executor=executor_name), options, rules, checks, progress or ignore)
    try:
        with _hearing_sigterm(run.terminated):
            anyio.run(run.carry_out, executor, nodes)
    except (KeyboardInterrupt, _Terminated) as error:
        run.interrupt(143 if isinstance(error, _Terminated) else 130)
    return run.recording()


@contextmanager
def _hearing_sigterm(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Have SIGTERM end the run in order; only the main thread of a program may ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class _Terminated(BaseException):
    """SIGTERM arrived; like KeyboardInterrupt, nothing but the outermost level may catch it."""


class _Run:
    """One check under way: what has been observed so far, and the clock it is timed by."""

    def __init__(
        self,
        base: Recording,
        options: CheckOptions,
        rules: Sequence[Rule],
        checks: Sequence[Check],
        progress: Progress,
    ) -> None:
        self._base = base
        self._options = options
        self._rules = rules
        self._checks = [check for check in checks if selected(check.meta, base.configuration)]
        self._progress = progress
        self._began = time.monotonic()
        self._nodes: tuple[NodeRecord, ...] = ()
        self._stages: list[StageRecord] = []
        self._facts: list[FactRecord] = []
        self._events: list[EventRecord] = []
        self._under_way: tuple[str, float] | None = None
        self._interrupted = 0
        # One context for one job: a check of several jobs at once looks from the first one's.
        self._context: ContextChoice = context_of(
            base.jobs[0],
            python=options.python or "",
            directory=options.directory or "",
            trust_job=options.trust_job,
            prelude=options.prelude,
        )

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def recording(self) -> Recording:
        """Everything so far."""
        return replace(
            self._base,
            context_provenance=self._context.provenance or self._context.missing,
            nodes=self._nodes,
            stages=tuple(self._stages),
            facts=tuple(self._facts),
            events=tuple(self._events),
            interrupted=self._interrupted,
        )

    def terminated(self, number: int, frame: object) -> None:
        """Signal handler of SIGTERM."""
        raise _Terminated

    def interrupt(self, exit_code: int) -> None:
        """Note that the run was ended from outside, in the stage it was in."""
        self._interrupted = exit_code
        if self._under_way is not None:
            name, started = self._under_way
            self._stages.append(StageRecord(name, started, self.now(), skipped="it was interrupted"))

    async def carry_out(self, executor: Executor, nodes: Sequence[Node]) -> None:
        """Open the nodes, then one stage after the other."""
        self._under_way = ("open", 0.0)
        async with open_fleet(
            executor,
            nodes,
            deadline_s=self._options.open_deadline,
            on_progress=functools.partial(self._opened, {node.name for node in nodes}),
            clock=self.now,
        ) as fleet:
            self._nodes = fleet.records
            self._finish_stage()
            stages: dict[str, Callable[[OpenFleet, list[Request]], Awaitable[None]]] = {
                "node": self._node_stage,
                "link": self._link_stage,
                "smoke": self._smoke_stage,
            }
            last = STAGES.index(self._options.until)
            for name in STAGES[: last + 1]:
                self._nodes = fleet.records
                # In a thread: agents end themselves when the head says nothing for a few seconds.
                why_not = await anyio.to_thread.run_sync(self._why_not, name)
                if why_not:
                    self._stages.append(StageRecord(name, self.now(), self.now(), skipped=why_not))
                    continue
                self._under_way = (name, self.now())
                await stages[name](fleet, await anyio.to_thread.run_sync(self._plan, name))
                self._finish_stage()
            self._nodes = fleet.records

    def _opened(self, awaited: set[str], record: NodeRecord) -> None:
        """One node more answered, or cannot; `awaited` are the names not heard of yet."""
        awaited.discard(record.node.name)
        self._nodes = (*self._nodes, record)
        done = len(self._nodes)
        note = f"{record.node.name}: {record.problem}" if record.problem else ""
        left = self._options.open_deadline - self.now()
        self._progress(Step("open", done, done + len(awaited), tuple(sorted(awaited)), left, note))

    def _finish_stage(self) -> None:
        assert self._under_way is not None
        name, started = self._under_way
        self._stages.append(StageRecord(name, started, self.now()))
        self._under_way = None

    def _why_not(self, stage: str) -> str:
        """Why a stage makes no sense any more; empty when it does."""
        silent = [record.node.name for record in self._nodes if record.problem]
        if len(silent) == len(self._nodes):
            return "no node could be reached"
        if stage != "smoke":
            return ""
        if silent:
            return f"{', '.join(silent)} cannot be reached, and the run would not be the job without them"
        if self._options.keep_going:
            return ""
        outcomes = outcomes_of(self.recording(), self._rules, self._checks)
        errors = sorted({o.id for o in outcomes if o.finding is not None and o.finding.severity is Severity.ERROR})
        if errors:
            return f"{', '.join(errors)} would stop it anyway (--keep-going runs it all the same)"
        return ""

    def _plan(self, stage: str) -> list[Request]:
        """What the checks of this stage want to know, each request once."""
        fleet = Fleet(self._nodes)
        facts = Facts(tuple(self._facts), tuple(self._events))
        wanted: dict[str, Request] = {}
        for check in self._checks:
            if check.when != stage:
                continue
            for job in self._base.jobs:
                for request in self._planned(check, job, fleet, facts):
                    first = wanted.setdefault(request.key, request)
                    if first is not request:
                        wanted[request.key] = _merged(first, request)
        return list(wanted.values())

    def _planned(self, check: Check, job: Job, fleet: Fleet, facts: Facts) -> Iterable[Request]:
        try:
            return list(check.plan(job, fleet, facts))
        except Exception as error:
            # Its judgement will find nothing asked for and say so; the bug itself is named here.
            self._progress(Step(check.when, 0, 0, note=f"{check.meta.id} cannot plan: {error!r}"))
            return []

    # --- stages ---

    async def _node_stage(self, fleet: OpenFleet, requests: list[Request]) -> None:
        await self._ask_all(fleet, requests, self._options.node_deadline, "node")

    async def _link_stage(self, fleet: OpenFleet, requests: list[Request]) -> None:
        """Pairs in rounds: in one round a node talks to one other node, in both directions."""
        alone = [request for request in requests if not request.peer]
        await self._ask_all(fleet, alone, self._options.link_deadline, "link")
        total, done = len(requests) - len(alone), 0
        for batch in disjoint(request for request in requests if request.peer):
            waiting = tuple(dict.fromkeys(name for request in batch for name in (request.node, request.peer)))
            self._progress(Step("link", done, total, waiting))
            await self._one_round(fleet, batch)
            done += len(batch)
        self._progress(Step("link", done, total))

    async def _one_round(self, fleet: OpenFleet, batch: Sequence[Request]) -> None:
        async with anyio.create_task_group() as group:
            for request in batch:
                group.start_soon(self._dial, fleet, request)

    async def _dial(self, fleet: OpenFleet, request: Request) -> None:
        """Let the peer listen, hand where it listens to the dialling probe, and end the listener."""
        listening: list[dict[str, object]] = []
        heard = anyio.Event()
        failure: list[Unavailable] = []

        def on_event(event: Event) -> None:
            if event.origin == "child" and "listening" in event.data and not listening:
                listening.append(event.data["listening"])
                heard.set()

        async def listen(session: AgentSession) -> None:
            ask = Ask(0, request.listen, dict(request.listen_params), self._options.link_deadline + 5.0)
            answer = await session.run(ask, on_event)
            if not listening:
                failure.append(_unavailable(answer))
                heard.set()

        peer = fleet.sessions.get(request.peer)
        if peer is None or request.node not in fleet.sessions:
            gone = request.peer if peer is None else request.node
            self._without(request, Unavailable("unreachable", f"{gone} gave no agent"))
            return
        started = self.now()
        async with anyio.create_task_group() as group:
            group.start_soon(listen, peer)
            with anyio.move_on_after(5.0):
                await heard.wait()
            if not listening:
                why = failure[0] if failure else Unavailable("timeout", "it did not listen within 5 s")
                reason = f"{request.peer} could not listen: {why.reason}"
                self._facts.append(FactRecord(request, None, replace(why, reason=reason), started, self.now()))
            else:
                params = {**request.params, "listening": listening[0]}
                await self._ask(fleet, replace(request, params=params), recorded_as=request)
            group.cancel_scope.cancel()

    async def _smoke_stage(self, fleet: OpenFleet, requests: list[Request]) -> None:
        """Each group of ranks together, one group after the other."""
        groups: dict[str, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.group, []).append(request)
        await self._ask_all(fleet, groups.pop("", []), self._options.smoke_deadline, "smoke")
        for name, ranks in groups.items():
            if self._context.context is None:
                for request in ranks:
                    self._without(request, Unavailable("context", self._context.missing))
                continue
            facts, events = await run_gang(
                fleet.sessions,
                [self._with_steps(request) for request in ranks],
                context=self._context.context,
                deadline_s=self._options.smoke_deadline,
                now=self.now,
                on_event=functools.partial(self._trained, len(ranks)),
            )
            self._facts.extend(facts)
            self._events.extend(events)
            self._progress(Step("smoke", len(ranks), len(ranks), note=name))

    def _with_steps(self, request: Request) -> Request:
        """The request with the number of training steps the user asked for, if any."""
        if self._options.steps is None:
            return request
        return replace(request, params={**request.params, "steps": self._options.steps})

    def _trained(self, ranks: int, event: EventRecord) -> None:
        phase = event.data.get("phase")
        if isinstance(phase, str):
            self._progress(Step("smoke", 0, ranks, note=f"{event.node}: {phase}"))

    # --- single requests ---

    async def _ask_all(self, fleet: OpenFleet, requests: list[Request], deadline_s: float, stage: str) -> None:
        """Ask everything at once, a few at a time on each node; what is not there in time is said to be late."""
        limits: dict[str, anyio.CapacityLimiter] = {}
        waiting: dict[str, Request] = {request.key: request for request in requests}
        ends = self.now() + deadline_s

        async def ask(request: Request) -> None:
            async with limits.setdefault(request.node, anyio.CapacityLimiter(_PROBES_AT_ONCE)):
                await self._ask(fleet, request)
            del waiting[request.key]
            names = tuple(dict.fromkeys(r.node for r in waiting.values()))
            self._progress(Step(stage, len(requests) - len(waiting), len(requests), names, ends - self.now()))

        with anyio.move_on_after(deadline_s):
            async with anyio.create_task_group() as group:
                for request in requests:
                    group.start_soon(ask, request)
        for request in waiting.values():
            late = Unavailable("timeout", f"{request.node} did not answer within the stage's {deadline_s:g} s")
            self._without(request, late)

    async def _ask(self, fleet: OpenFleet, request: Request, *, recorded_as: Request | None = None) -> None:
        session = fleet.sessions.get(request.node)
        kept = recorded_as or request
        if session is None:
            self._without(kept, Unavailable("unreachable", f"{request.node} gave no agent"))
            return
        if request.context and self._context.context is None:
            self._without(kept, Unavailable("context", self._context.missing))
            return
        started = self.now()
        context = self._context.context if request.context else None
        answer = await session.run(Ask(0, request.probe, dict(request.params), request.deadline_s, context))
        value = answer.value if isinstance(answer, Done) else None
        problem = None if isinstance(answer, Done) else _unavailable(answer)
        provenance = self._context.provenance if request.context else ""
        self._facts.append(FactRecord(kept, value, problem, started, self.now(), provenance))

    def _without(self, request: Request, why: Unavailable) -> None:
        self._facts.append(FactRecord(request, None, why, self.now(), self.now()))


def _merged(first: Request, second: Request) -> Request:
    """Two checks want the same fact: it is required if either requires it, because of both their claims."""
    return replace(
        first,
        because=tuple(dict.fromkeys((*first.because, *second.because))),
        required=first.required or second.required,
        deadline_s=max(first.deadline_s, second.deadline_s),
    )


def _unavailable(answer: object) -> Unavailable:
    from preflight.node.wire import Failed

    if isinstance(answer, Failed):
        return Unavailable(answer.kind, answer.reason, answer.detail, answer.exit_code)
    return Unavailable("crashed", "it ended before it had begun to listen")
