"""A live check: open the nodes, observe in stages, and put everything into one recording.

Nothing is judged here but the one question whether the smoke run still makes sense; the verdict is judged from
the recording, so that a saved one cannot differ.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from preflight import catalog
from preflight.engine import outcomes_of, selected
from preflight.errors import UsageError
from preflight.executors.base import Executor
from preflight.fleet import open_fleet
from preflight.job import Job
from preflight.judgement import STAGES, Check, Rule
from preflight.observe import Observer
from preflight.outcome import Severity
from preflight.place import ContextChoice, context_of, nodes_of
from preflight.progress import Progress, Step, ignore
from preflight.recording import (
    Facts,
    Fleet,
    Node,
    NodeRecord,
    Recording,
    StageRecord,
    UnplannedCheck,
)
from preflight.request import Request
from preflight.suppress import sift


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
    open_deadline: float = 8.0
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
        anyio.run(run.until_terminated, executor, nodes)
    except (KeyboardInterrupt, asyncio.CancelledError):  # Python 3.10 lets the cancelling by Ctrl-C out as it is
        run.interrupt(130)
    return run.recording()


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
        self._observer: Observer | None = None
        self._unplanned: list[UnplannedCheck] = []
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
            facts=tuple(self._observer.facts) if self._observer else (),
            events=tuple(self._observer.events) if self._observer else (),
            unplanned=tuple(self._unplanned),
            interrupted=self._interrupted,
        )

    async def until_terminated(self, executor: Executor, nodes: Sequence[Node]) -> None:
        """Carry the run out; SIGTERM cancels it, so that every agent is taken leave of in order.

        An exception raised by a signal handler would surface in whichever task happens to run, wrapped in the groups
        of tasks around it, or inside the event loop itself. Only the main thread of a program may ask for signals.
        """
        async with anyio.create_task_group() as group:
            if threading.current_thread() is threading.main_thread():
                await group.start(self._watch_for_sigterm, group.cancel_scope)
            await self.carry_out(executor, nodes)
            group.cancel_scope.cancel()

    async def _watch_for_sigterm(
        self, scope: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                self.interrupt(143)
                scope.cancel()
                return

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
            self._observer = observer = Observer(fleet, self._context, self.now, self._progress)
            for name in STAGES[: STAGES.index(self._options.until) + 1]:
                self._nodes = fleet.records
                # In a thread: agents end themselves when the head says nothing for a few seconds.
                why_not = await anyio.to_thread.run_sync(self._why_not, name)
                if why_not:
                    self._stages.append(StageRecord(name, self.now(), self.now(), skipped=why_not))
                    continue
                self._under_way = (name, self.now())
                requests = await anyio.to_thread.run_sync(self._plan, name, observer)
                await self._observe(observer, name, requests)
                self._finish_stage()
            self._nodes = fleet.records

    async def _observe(self, observer: Observer, stage: str, requests: list[Request]) -> None:
        if stage == "node":
            await observer.nodes(requests, deadline_s=self._options.node_deadline)
        elif stage == "link":
            await observer.links(requests, deadline_s=self._options.link_deadline)
        else:
            wanted = [self._with_steps(request) for request in requests]
            await observer.ranks(wanted, deadline_s=self._options.smoke_deadline)

    def _with_steps(self, request: Request) -> Request:
        """The request with the number of training steps the user asked for, if any."""
        if self._options.steps is None or not request.group:
            return request
        return replace(request, params={**request.params, "steps": self._options.steps})

    def _opened(self, awaited: set[str], record: NodeRecord) -> None:
        """One node more answered, or cannot; `awaited` are the names not heard of yet."""
        awaited.discard(record.node.name)
        self._nodes = (*self._nodes, record)
        done = len(self._nodes)
        # Most problems begin with the node's name themselves.
        named = record.problem.startswith(f"{record.node.name}:") or not record.problem
        note = record.problem if named else f"{record.node.name}: {record.problem}"
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
            # The first stage is where silent nodes are reported, so it takes place even when there is nobody to ask.
            return "" if stage == "node" else "no node could be reached"
        if stage != "smoke":
            return ""
        if silent:
            return f"{', '.join(silent)} cannot be reached, and the run would not be the job without them"
        if self._options.keep_going:
            return ""
        outcomes = outcomes_of(self.recording(), self._rules, self._checks)
        findings = sift(outcomes, self._base).kept
        errors = sorted({finding.id for finding in findings if finding.severity is Severity.ERROR})
        if errors:
            return f"{', '.join(errors)} would stop it anyway (--keep-going runs it all the same)"
        return ""

    def _plan(self, stage: str, observer: Observer) -> list[Request]:
        """What the checks of this stage want to know, each request once."""
        fleet = Fleet(self._nodes)
        facts = Facts(tuple(observer.facts), tuple(observer.events))
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
        except Exception:
            # Kept in the recording, where it makes the check's outcome unknown instead of looking like a pass.
            self._unplanned.append(UnplannedCheck(check.meta.id, job.name, traceback.format_exc(limit=-4)))
            return []


def _merged(first: Request, second: Request) -> Request:
    """Two checks want the same fact: it is required if either requires it, because of both their claims."""
    return replace(
        first,
        because=tuple(dict.fromkeys((*first.because, *second.because))),
        required=first.required or second.required,
        deadline_s=max(first.deadline_s, second.deadline_s),
    )
