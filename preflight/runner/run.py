"""A live check: opens the nodes, observes in stages, and puts everything into one recording.

Only one thing is judged here: whether the smoke run still makes sense. The verdict is judged from the recording, so
that a saved recording always gives the same verdict. If the user names the nodes, they are opened while the files
are read, because both take about as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from preflight.engine.evaluate import outcomes_of
from preflight.engine.suppress import apply_suppressions
from preflight.executors.base import NodeRequest
from preflight.model.configuration import SMOKE, RunOptions
from preflight.model.findings import Severity
from preflight.model.progress import Progress, Step, ignore
from preflight.model.recording import Cluster, Facts, Fleet, Node, NodeRecord, Origin, Recording, StageRecord
from preflight.model.requests import Request
from preflight.plugins.authoring import Check, Rule
from preflight.plugins.installed import rules_for
from preflight.runner.observer import Observer
from preflight.runner.preparation import (
    ContextChoice,
    ExecutorChoice,
    LoadJobs,
    Preparation,
    PreparedRun,
    choose,
    claimed_count,
    context_of,
    find,
    warm_up,
)
from preflight.runner.session import open_fleet
from preflight.runner.supervisor import INTERRUPTED, TERMINATED, Interrupter, is_interrupt

if TYPE_CHECKING:
    from preflight._util.cache import Cache


#: Delay after which the first requests of a stage have been sent.
_WARM_UP_DELAY_S = 0.02


def run(
    verb: str, options: RunOptions, load_jobs: LoadJobs, *, progress: Progress | None = None, cache: Cache | None = None
) -> Recording:
    """Make a live run over the jobs that `load_jobs` reads, and return its recording.

    An interrupt ends the run early; the recording then holds everything observed so far, with `interrupted` set.

    Args:
        verb: `check`, or `smoke` for only what the smoke stage needs.
        load_jobs: called once, in a thread.
        progress: called at every step, in the thread of the run.
        cache: keeps the files that are shipped to nodes; it must be outside the job's tree.

    Raises:
        UsageError: there is no job, the nodes are unknown, or the executor does not exist.
        KeyboardInterrupt: the run was interrupted before the jobs were read.
    """
    live = _LiveRun(verb, options, load_jobs, progress or ignore, cache)
    try:
        _in_own_loop(live)
    except BaseException as error:
        if not is_interrupt(error):
            raise
        live.interrupt(INTERRUPTED)
    if live.failure is not None:
        raise live.failure
    return live.recording()


def _in_own_loop(live: _LiveRun) -> None:
    """Run in a new event loop, in another thread if this one already has a loop (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        anyio.run(live.make)
    else:
        with ThreadPoolExecutor(1) as thread:
            result = thread.submit(anyio.run, live.make)
            try:
                result.result()
            except KeyboardInterrupt:
                live.ending.now()
                result.result()


class _LiveRun:
    """One run in progress: the observations so far, and its clock."""

    def __init__(
        self, verb: str, options: RunOptions, load_jobs: LoadJobs, progress: Progress, cache: Cache | None
    ) -> None:
        self._options = options
        self._only_smoke = verb == SMOKE
        self._stage_names = options.stages(verb)
        self._preparation = Preparation(load_jobs, self._context_of, progress)
        self._progress = progress
        self._cache = cache
        self._began = time.monotonic()
        #: Interrupts the run.
        self.ending = Interrupter(self.interrupt)
        self._nodes: tuple[NodeRecord, ...] = ()
        self._stages: list[StageRecord] = []
        self._observer: Observer | None = None
        #: Name and start of the current stage.
        self._current_stage: tuple[str, float] | None = None
        self._interrupted = 0
        self._executor = ""
        self._origin: Origin | None = None
        self._cluster: Cluster | None = None
        #: The error that ended the run early: a user's mistake, or a bug.
        self.failure: Exception | None = None

    def _context_of(self, base: Recording) -> ContextChoice:
        options = self._options
        return context_of(
            base.jobs[0],
            python=options.python or "",
            directory=options.directory or "",
            trust_job=options.trust_job,
            prelude=options.prelude,
        )

    def now(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._began

    def recording(self) -> Recording:
        """Return all observations so far. Raises KeyboardInterrupt if interrupted before the jobs were read."""
        prepared = self._preparation.prepared
        if prepared is None:
            if self._interrupted == TERMINATED:
                signal.raise_signal(signal.SIGTERM)
            raise KeyboardInterrupt
        return replace(
            prepared.recording,
            executor=self._executor,
            origin=self._origin,
            cluster=self._cluster,
            context_provenance=prepared.context.provenance or prepared.context.missing,
            nodes=self._nodes,
            stages=tuple(self._stages),
            facts=tuple(self._observer.facts) if self._observer else (),
            events=tuple(self._observer.events) if self._observer else (),
            unplanned=tuple(prepared.planner.unplanned),
            interrupted=self._interrupted,
        )

    async def make(self) -> None:
        async with anyio.create_task_group() as group:
            await group.start(self.ending.watch, group.cancel_scope)

            async def load_jobs() -> None:
                try:
                    await self._preparation.load()
                except Exception as error:
                    self.failure = error
                    group.cancel_scope.cancel()

            try:
                await self._run_stages(lambda: group.start_soon(load_jobs))
            except Exception as error:
                # Raised by `run`, outside the task group, which would wrap it.
                self.failure = self.failure or error
            group.cancel_scope.cancel()

    def interrupt(self, exit_code: int) -> None:
        """Record in the current stage that the run was interrupted."""
        self._interrupted = self._interrupted or exit_code
        if self._current_stage is not None:
            (name, started), self._current_stage = self._current_stage, None
            self._stages.append(StageRecord(name, started, self.now(), skipped="it was interrupted"))
            self._progress(Step(name, ended=True, skipped="it was interrupted"))

    async def _run_stages(self, start_loading: Callable[[], object]) -> None:
        """Find the nodes, open them (meanwhile loading jobs if possible), and run the stages. Raises UsageError."""
        options = self._options
        self._progress(Step("gather", planned=("gather", "open", *self._stage_names)))
        choice = await choose(
            hosts=options.hosts,
            hostfile=options.hostfile,
            executor=options.executor,
            options=options.executor_options,
            environment=os.environ,
        )
        self._executor = choice.executor.name
        if choice.named_nodes and choice.executor.opens_named:
            start_loading()
        else:
            await self._preparation.load()
        nodes = await self._gather(choice)
        self._current_stage = ("open", self.now())
        self._progress(_opening(nodes, options.open_deadline))
        async with open_fleet(
            choice.executor,
            nodes,
            deadline_s=options.open_deadline,
            on_progress=functools.partial(self._report_opened, {node.name for node in nodes}, self.now()),
            clock=self.now,
            trainer=SMOKE in self._stage_names,
            cache=self._cache,
        ) as fleet:
            prepared = await self._preparation.wait()
            fleet.ship(tuple(prepared.planner.shipped.items()))
            self._nodes = fleet.records
            self._finish_stage()
            self._observer = observer = Observer(
                fleet, prepared.context, self.now, self._progress, frozenset(self._options.allow)
            )
            for name in self._stage_names:
                self._nodes = fleet.records
                # In a thread: agents end themselves if the head is silent for a few seconds.
                skipped = await anyio.to_thread.run_sync(self._why_skipped, prepared, name, abandon_on_cancel=True)
                if skipped:
                    self._stages.append(StageRecord(name, self.now(), self.now(), skipped=skipped))
                    self._progress(Step(name, ended=True, skipped=skipped))
                    continue
                self._current_stage = (name, self.now())
                observed = self._current_view(prepared, observer)
                requests = await anyio.to_thread.run_sync(
                    prepared.planner.plan, name, *observed, abandon_on_cancel=True
                )
                self._progress(Step(name))
                await self._observe(observer, prepared, name, requests)
                self._finish_stage()
            self._nodes = fleet.records

    async def _gather(self, choice: ExecutorChoice) -> tuple[Node, ...]:
        """Return the nodes, if there are any. On failure, the executor releases what it allocated."""
        options = self._options
        self._current_stage = ("gather", self.now())
        ends = self.now() + options.gather_deadline

        def on_note(note: str) -> None:
            self._progress(Step("gather", 0, 1, (choice.executor.name,), ends - self.now(), note))

        prepared = self._preparation.prepared
        jobs = prepared.recording.jobs if prepared is not None else ()
        node_request = NodeRequest(
            jobs=jobs,
            named_nodes=choice.named_nodes,
            count=claimed_count(jobs),
            trust_job=options.trust_job,
            deadline_s=options.gather_deadline,
            lasts_s=options.longest_s(),
            environment=os.environ,
            on_note=on_note,
        )
        try:
            nodes = await find(choice, node_request)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await choice.executor.aclose()
            raise
        self._origin, self._cluster = nodes.origin, nodes.cluster
        if self._origin.source == "executor" or self._origin.problem:
            self._finish_stage()
        # An executor that failed to prepare reaches no node, and the reason is already known.
        return () if self._origin.problem else nodes.nodes

    async def _observe(self, observer: Observer, prepared: PreparedRun, stage: str, requests: list[Request]) -> None:
        """Run one stage, and meanwhile load the modules that judging needs."""
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(_warm_up_later, prepared.recording, frozenset(self._stage_names))
            try:
                await self._run_stage(observer, prepared, stage, requests)
            except Exception as error:
                # Raised below, outside the task group, which would wrap it in an ExceptionGroup.
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _run_stage(self, observer: Observer, prepared: PreparedRun, stage: str, requests: list[Request]) -> None:
        if stage == "node":
            await observer.nodes(requests, deadline_s=self._options.node_deadline)
            return
        more = functools.partial(self._follow_up, prepared, stage, observer)
        if stage == "link":
            await observer.links(requests, more, deadline_s=self._options.link_deadline)
        else:
            await observer.ranks(
                [self._set_step_count(request) for request in requests], more, deadline_s=self._options.smoke_deadline
            )

    def _set_step_count(self, request: Request) -> Request:
        """Return the request with the number of training steps that the user chose, if any."""
        if self._options.steps is None or not request.group:
            return request
        return replace(request, params={**request.params, "steps": self._options.steps})

    def _report_opened(self, awaited: set[str], began_s: float, record: NodeRecord) -> None:
        """Report that one more node was opened, or failed; `awaited` holds the names of the others."""
        awaited.discard(record.node.name)
        self._nodes = (*self._nodes, record)
        done = len(self._nodes)
        # Most problems already begin with the node's name.
        named = record.problem.startswith(f"{record.node.name}:") or not record.problem
        note = record.problem if named else f"{record.node.name}: {record.problem}"
        left = began_s + self._options.open_deadline - self.now()
        total = done + len(awaited)
        self._progress(Step("open", done, total, tuple(sorted(awaited)), left, note, nodes=total))

    def _finish_stage(self) -> None:
        assert self._current_stage is not None
        name, started = self._current_stage
        self._stages.append(StageRecord(name, started, self.now()))
        self._progress(Step(name, ended=True))
        self._current_stage = None

    def _why_skipped(self, prepared: PreparedRun, stage: str) -> str:
        """Return why a stage is pointless; empty if it is not."""
        why = why_pointless_without_nodes(stage, self._nodes, only_smoke=self._only_smoke)
        if why or stage != SMOKE or self._options.keep_going or self._only_smoke:
            return why
        return why_pointless_after_errors(
            self.recording(), rules_for(prepared.recording.configuration), prepared.planner.checks
        )

    async def _follow_up(self, prepared: PreparedRun, stage: str, observer: Observer) -> list[Request]:
        """Return the requests that the facts of this stage make necessary, without those already made."""
        answered_keys = {record.request.key for record in observer.facts}
        observed = self._current_view(prepared, observer)
        requests = await anyio.to_thread.run_sync(prepared.planner.follow_up, stage, *observed)
        return [request for request in requests if request.key not in answered_keys]

    def _current_view(self, prepared: PreparedRun, observer: Observer) -> tuple[Fleet, Facts]:
        """Return the nodes and the facts so far, as checks see them."""
        fleet = Fleet(self._nodes, self._executor, self._origin, self._cluster, prepared.recording.smoke_options)
        return fleet, Facts(tuple(observer.facts), tuple(observer.events))


async def _warm_up_later(recording: Recording, stages: frozenset[str]) -> None:
    """Load the modules that judging needs, in the background, once the requests are sent."""
    await anyio.sleep(_WARM_UP_DELAY_S)
    # A problem here recurs when the recording is judged, and is reported then.
    with contextlib.suppress(Exception):
        await anyio.to_thread.run_sync(warm_up, recording, stages, abandon_on_cancel=True)


def _opening(nodes: Sequence[Node], deadline_s: float) -> Step:
    names = tuple(sorted(node.name for node in nodes))
    return Step("open", 0, len(nodes), names, deadline_s, nodes=len(nodes))


def why_pointless_without_nodes(stage: str, nodes: Sequence[NodeRecord], *, only_smoke: bool) -> str:
    """Return why a stage (`only_smoke`: the smoke run alone) is pointless with the available nodes; else empty."""
    silent = [record for record in nodes if record.problem]
    because = f" ({silent[0].problem})" if silent and only_smoke else ""
    if len(silent) == len(nodes):
        # The first stage reports silent nodes, so it runs even without any nodes.
        return "" if stage == "node" and not only_smoke else f"no node could be reached{because}"
    if stage == "smoke" and silent:
        names = ", ".join(record.node.name for record in silent)
        return f"{names} cannot be reached{because}, and the smoke run needs all nodes of the job"
    return ""


def why_pointless_after_errors(recording: Recording, rules: Sequence[Rule], checks: Sequence[Check]) -> str:
    """Return why a smoke run is pointless after the errors so far; empty if it is not."""
    kept = apply_suppressions(outcomes_of(recording, rules, checks), recording).kept
    errors = sorted({finding.id for finding in kept if finding.severity is Severity.ERROR})
    return f"{', '.join(errors)} would make it fail anyway (--keep-going runs it regardless)" if errors else ""
