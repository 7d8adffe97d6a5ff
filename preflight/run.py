"""A live check: open the nodes, observe in stages, and put everything into one recording.

Nothing is judged here but the one question whether the smoke run still makes sense; the verdict is judged from
the recording, so that a saved one cannot differ.

Where the user named the nodes they are reached while the job is still being read, which takes as long.
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
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
import anyio.to_thread

from preflight.brief import Briefing, Known, Read
from preflight.check_options import CheckOptions
from preflight.ending import INTERRUPTED, TERMINATED, Ending, is_interrupt
from preflight.engine import SMOKE
from preflight.executors.base import Forward, Wanted
from preflight.fleet import open_fleet
from preflight.observe import Observer
from preflight.place import ContextChoice, claimed_count, context_of
from preflight.proceeding import after_errors, without_nodes
from preflight.progress import Progress, Step, across, ignore
from preflight.reach import Way, choose, find
from preflight.recording import (
    Cluster,
    Facts,
    Fleet,
    Node,
    NodeRecord,
    Origin,
    Recording,
    StageRecord,
)
from preflight.request import Request

if TYPE_CHECKING:
    from preflight.cache import Cache

#: Some time after which the first requests of a stage are on their way.
_ASKED_S = 0.02
T = TypeVar("T")


def record(
    verb: str,
    read: Read,
    options: CheckOptions,
    conclude: Callable[[Recording, Progress], T],
    *,
    progress: Progress | None = None,
    cache: Cache | None = None,
) -> T:
    """Carry out a check of what `read` gives, in a thread beside, and return what `conclude` makes of the recording.

    That is called in a thread beside, too, while the agents are taken leave of; once more where that is interrupted.

    Where the verb is `smoke`, nodes are asked only what the smoke stage looks at, and links are not tried.

    An interrupt ends it early; what was seen until then is in the recording, with `interrupted` set. In `cache`, which
    is none that the job's tree could hold, is kept what is shipped to nodes.

    Raises:
        UsageError: there is no job, the nodes cannot be told, or the executor is unknown.
        KeyboardInterrupt: it was interrupted before there was anything to record.
    """
    run = _Run(verb, read, options, conclude, progress or ignore, cache)
    try:
        _in_a_loop(run)
    except BaseException as error:
        if not is_interrupt(error):
            raise
        run.interrupt(INTERRUPTED)
    if run.failure is not None:
        raise run.failure
    return run.conclusion()


def _in_a_loop(run: _Run[T]) -> None:
    """Carry the run out in a loop of its own: where this thread has one already (a notebook), in a thread beside it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        anyio.run(run.until_terminated)
    else:
        with ThreadPoolExecutor(1) as beside:
            done = beside.submit(anyio.run, run.until_terminated)
            try:
                done.result()
            except KeyboardInterrupt:
                run.ending.now()
                done.result()


class _Run(Generic[T]):
    """One check under way: what has been observed so far, and the clock it is timed by."""

    def __init__(
        self,
        verb: str,
        read: Read,
        options: CheckOptions,
        conclude: Callable[[Recording, Progress], T],
        progress: Progress,
        cache: Cache | None,
    ) -> None:
        self._options = options
        self._conclude = conclude
        self._concluded: list[T] = []
        self._over = anyio.Event()
        self._only_smoke = verb == SMOKE
        self._stages_wanted = options.stages(verb)
        self._briefing = Briefing(read, self._context_of, progress)
        self._progress = progress
        self._cache = cache
        self._began = time.monotonic()
        #: How it is ended from outside.
        self.ending = Ending(self.interrupt)
        self._nodes: tuple[NodeRecord, ...] = ()
        self._stages: list[StageRecord] = []
        self._observer: Observer | None = None
        self._under_way: tuple[str, float] | None = None
        self._interrupted = 0
        self._executor = ""
        self._origin: Origin | None = None
        self._cluster: Cluster | None = None
        #: What ended it before its time: what the user did wrong, or a bug.
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
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def conclusion(self) -> T:
        """What became of it. Raises as `recording` does."""
        if self._concluded and not self._interrupted:
            return self._concluded[0]
        return self._conclude(self.recording(), self._progress)

    def recording(self) -> Recording:
        """Everything so far. Raises what ended it where that was before anything was read."""
        known = self._briefing.known
        if known is None:
            if self._interrupted == TERMINATED:
                signal.raise_signal(signal.SIGTERM)
            raise KeyboardInterrupt
        return replace(
            known.brief.base,
            executor=self._executor,
            origin=self._origin,
            cluster=self._cluster,
            context_provenance=known.context.provenance or known.context.missing,
            nodes=self._nodes,
            stages=tuple(self._stages),
            facts=tuple(self._observer.facts) if self._observer else (),
            events=tuple(self._observer.events) if self._observer else (),
            unplanned=tuple(known.planner.unplanned),
            interrupted=self._interrupted,
        )

    async def until_terminated(self) -> None:
        """Carry the run out, until it is over or ended from outside."""
        async with anyio.create_task_group() as group:
            await group.start(self.ending.watch, group.cancel_scope)

            async def read() -> None:
                try:
                    await self._briefing.learn()
                except Exception as error:
                    self.failure = error
                    group.cancel_scope.cancel()

            try:
                await self.carry_out(lambda: group.start_soon(read), lambda: group.start_soon(self._come_to_an_end))
            except Exception as error:
                # Raised by `record`, outside the task group, which would wrap it.
                self.failure = self.failure or error
            group.cancel_scope.cancel()

    def interrupt(self, exit_code: int) -> None:
        """Note that the run was ended from outside, in the stage it was in."""
        self._interrupted = self._interrupted or exit_code
        if self._under_way is not None:
            (name, started), self._under_way = self._under_way, None
            self._stages.append(StageRecord(name, started, self.now(), skipped="it was interrupted"))
            self._progress(Step(name, ended=True, skipped="it was interrupted"))

    async def _come_to_an_end(self) -> None:
        """Conclude from all that was seen, beside the loop."""
        tell = across(asyncio.get_running_loop(), self._progress)
        try:
            self._concluded.append(
                await anyio.to_thread.run_sync(self._conclude, self.recording(), tell, abandon_on_cancel=True)
            )
        except Exception as error:
            self.failure = self.failure or error
        self._over.set()

    async def carry_out(self, begin_to_read: Callable[[], object], conclude: Callable[[], object]) -> None:
        """Find the nodes, open them, then one stage after the other. Raises UsageError when nobody knows the nodes.

        What is read and concluded beside it is begun by `begin_to_read` and `conclude`.
        """
        options = self._options
        self._progress(Step("gather", planned=("gather", "open", *self._stages_wanted)))
        way = await choose(
            hosts=options.hosts,
            hostfile=options.hostfile,
            executor=options.executor,
            options=options.executor_options,
            environment=os.environ,
        )
        self._executor = way.executor.name
        if way.named and isinstance(way.executor, Forward) and way.executor.opens_named:
            begin_to_read()
        else:
            await self._briefing.learn()
        nodes = await self._gather(way)
        self._under_way = ("open", self.now())
        self._progress(_opening(nodes, options.open_deadline))
        async with open_fleet(
            way.executor,
            nodes,
            deadline_s=options.open_deadline,
            on_progress=functools.partial(self._opened, {node.name for node in nodes}, self.now()),
            clock=self.now,
            trainer="smoke" in self._stages_wanted,
            cache=self._cache,
        ) as fleet:
            known = await self._briefing.over()
            fleet.ship(tuple(known.planner.shipped.items()))
            self._nodes = fleet.records
            self._finish_stage()
            self._observer = observer = Observer(
                fleet, known.context, self.now, self._progress, frozenset(self._options.allow)
            )
            for name in self._stages_wanted:
                self._nodes = fleet.records
                # In a thread: agents end themselves when the head says nothing for a few seconds.
                why_not = await anyio.to_thread.run_sync(self._why_not, known, name, abandon_on_cancel=True)
                if why_not:
                    self._stages.append(StageRecord(name, self.now(), self.now(), skipped=why_not))
                    self._progress(Step(name, ended=True, skipped=why_not))
                    continue
                self._under_way = (name, self.now())
                seen = self._seen(known, observer)
                requests = await anyio.to_thread.run_sync(known.planner.plan, name, *seen, abandon_on_cancel=True)
                self._progress(Step(name))
                await self._observe(observer, known, name, requests)
                self._finish_stage()
            self._nodes = fleet.records
            conclude()
        await self._over.wait()

    async def _gather(self, way: Way) -> tuple[Node, ...]:
        """The nodes, as far as there are any; what the executor took for them is given back unless all goes well."""
        options = self._options
        self._under_way = ("gather", self.now())
        ends = self.now() + options.gather_deadline

        def tell(note: str) -> None:
            self._progress(Step("gather", 0, 1, (way.executor.name,), ends - self.now(), note))

        known = self._briefing.known
        jobs = known.brief.base.jobs if known is not None else ()
        wanted = Wanted(
            jobs=jobs,
            named=way.named,
            count=claimed_count(jobs),
            trust_job=options.trust_job,
            deadline_s=options.gather_deadline,
            lasts_s=options.longest_s(),
            environment=os.environ,
            tell=tell,
        )
        try:
            found = await find(way, wanted)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await way.executor.aclose()
            raise
        self._origin, self._cluster = found.origin, found.cluster
        if self._origin.source == "executor" or self._origin.problem:
            self._finish_stage()
        # Without what it had to prepare an executor reaches nobody, and the reason is known already.
        return () if self._origin.problem else found.nodes

    async def _observe(self, observer: Observer, known: Known, stage: str, requests: list[Request]) -> None:
        """Ask, and have made ready meanwhile what judging takes."""
        failure: Exception | None = None
        async with anyio.create_task_group() as beside:
            beside.start_soon(_prepare, known)
            try:
                await self._ask(observer, known, stage, requests)
            except Exception as error:
                # Raised below, outside the task group, which would wrap it in an ExceptionGroup.
                failure = error
            beside.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _ask(self, observer: Observer, known: Known, stage: str, requests: list[Request]) -> None:
        if stage == "node":
            await observer.nodes(requests, deadline_s=self._options.node_deadline)
            return
        more = functools.partial(self._follow_up, known, stage, observer)
        if stage == "link":
            await observer.links(requests, more, deadline_s=self._options.link_deadline)
        else:
            wanted = [self._with_steps(request) for request in requests]
            await observer.ranks(wanted, more, deadline_s=self._options.smoke_deadline)

    def _with_steps(self, request: Request) -> Request:
        """The request with the number of training steps the user asked for, if any."""
        if self._options.steps is None or not request.group:
            return request
        return replace(request, params={**request.params, "steps": self._options.steps})

    def _opened(self, awaited: set[str], began_s: float, record: NodeRecord) -> None:
        """One node more answered, or cannot; `awaited` are the names not heard of yet."""
        awaited.discard(record.node.name)
        self._nodes = (*self._nodes, record)
        done = len(self._nodes)
        # Most problems begin with the node's name themselves.
        named = record.problem.startswith(f"{record.node.name}:") or not record.problem
        note = record.problem if named else f"{record.node.name}: {record.problem}"
        left = began_s + self._options.open_deadline - self.now()
        total = done + len(awaited)
        self._progress(Step("open", done, total, tuple(sorted(awaited)), left, note, nodes=total))

    def _finish_stage(self) -> None:
        assert self._under_way is not None
        name, started = self._under_way
        self._stages.append(StageRecord(name, started, self.now()))
        self._progress(Step(name, ended=True))
        self._under_way = None

    def _why_not(self, known: Known, stage: str) -> str:
        """Why a stage makes no sense any more; empty when it does."""
        why = without_nodes(stage, self._nodes, only_smoke=self._only_smoke)
        if why or stage != "smoke" or self._options.keep_going or self._only_smoke:
            return why
        return after_errors(self.recording(), known.brief.rules(), known.planner.checks)

    async def _follow_up(self, known: Known, stage: str, observer: Observer) -> list[Request]:
        """What the facts of this stage make necessary besides; nothing that was asked already."""
        asked = {record.request.key for record in observer.facts}
        wanted = await anyio.to_thread.run_sync(known.planner.follow_up, stage, *self._seen(known, observer))
        return [request for request in wanted if request.key not in asked]

    def _seen(self, known: Known, observer: Observer) -> tuple[Fleet, Facts]:
        """The nodes and what was observed so far, as checks see them."""
        fleet = Fleet(self._nodes, self._executor, self._origin, self._cluster, known.brief.base.wish)
        return fleet, Facts(tuple(observer.facts), tuple(observer.events))


async def _prepare(known: Known) -> None:
    """Have ready what judging takes, once the nodes know what is asked of them. Nobody waits for the end of it."""
    await anyio.sleep(_ASKED_S)
    # What is wrong here is wrong when it is judged, too, and is said then.
    with contextlib.suppress(Exception):
        await anyio.to_thread.run_sync(known.brief.prepare, abandon_on_cancel=True)


def _opening(nodes: Sequence[Node], deadline_s: float) -> Step:
    names = tuple(sorted(node.name for node in nodes))
    return Step("open", 0, len(nodes), names, deadline_s, nodes=len(nodes))
