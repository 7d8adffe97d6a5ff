"""Prepares a run: finds its nodes and their executor, loads its jobs in a thread, and plans the facts that checks need.

The user's choice comes first (`--hosts`, `--hostfile`), then the executor's own nodes (its allocation, its cluster),
then the job's own files (with `--trust-job`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import anyio.to_thread

from preflight._util.redaction import scrub_traceback
from preflight._util.usage_error import UsageError, similar_names
from preflight.config.resolve import rules_for
from preflight.engine.evaluate import judged, selected
from preflight.executors.base import (
    Configurable,
    Detector,
    Executor,
    ExecutorError,
    GatheredNodes,
    Gatherer,
    NodeRequest,
)
from preflight.executors.bundle import ExtractionError, extract
from preflight.model.job import Job
from preflight.model.options import NODES, SMOKE
from preflight.model.progress import Progress, threadsafe
from preflight.model.recording import Cluster, Facts, Fleet, Node, Origin, Recording, UnplannedCheck
from preflight.model.requests import Request, probe_name
from preflight.plugins import registry
from preflight.plugins.authoring import Check, PlanRequests
from preflight.runner.job_context import ContextChoice, named_nodes, nodes_of_jobs

_log = logging.getLogger(__name__)

#: How much longer than its deadline an executor may take to report why it has no nodes.
LATE_S = 5.0
#: How long an executor may take to report whether the named nodes are its own.
_OWNS_NODES_S = 5.0


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """The executor of a run with its options set.

    Args:
        because: why it was chosen.
        named: the nodes that the user named.
        origin: where their names come from.
    """

    executor: Executor
    because: str
    named: tuple[Node, ...] = ()
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class FoundNodes:
    """The nodes of a run, where their names came from, and the scheduler's data about all of its nodes."""

    nodes: tuple[Node, ...]
    origin: Origin
    cluster: Cluster | None = None


async def choose(
    *, hosts: str, hostfile: Path | None, executor: str, options: Sequence[str], environment: Mapping[str, str]
) -> ExecutorChoice:
    """The executor of a run: the user's choice, otherwise that of the environment, otherwise ssh.

    Raises:
        UsageError: no such executor or option, or an invalid host name.
    """
    choice = await _choice(hosts, hostfile, executor, options, environment)
    _log.info("executor %s chosen: %s", choice.executor.name, choice.because)
    return choice


async def _choice(
    hosts: str, hostfile: Path | None, executor: str, options: Sequence[str], environment: Mapping[str, str]
) -> ExecutorChoice:
    named, origin = named_nodes(hosts, hostfile)
    if executor:
        return ExecutorChoice(_configured(_find_executor(executor), options), f"--on {executor}", named, origin)
    for found, reason in recognising_executors(environment):
        if not named or await _owns_nodes(_configured(found, options), named, environment):
            return ExecutorChoice(_configured(found, options), reason, named, origin)
        _log.info("executor %s not chosen: %s, but not all of the named hosts are its own", found.name, reason)
    because = "nodes were named" if named else "no other executor was chosen"
    return ExecutorChoice(_configured(_find_executor("ssh"), options), because, named, origin)


def recognising_executors(environment: Mapping[str, str]) -> Iterator[tuple[Executor, str]]:
    """The executors that recognise their own environment here, in order of preference, each with the reason."""
    for found in registry.load(registry.EXECUTORS).items:
        reason = found.detect(environment) if isinstance(found, Detector) else ""
        if reason:
            yield found, reason


async def _owns_nodes(executor: Executor, named: Sequence[Node], environment: Mapping[str, str]) -> bool:
    """Whether all nodes that the user named belong to the environment of `executor`."""
    try:
        gathered = await _gathered(executor, NodeRequest(deadline_s=_OWNS_NODES_S, environment=environment))
    except (ExecutorError, UsageError):
        return False
    finally:
        await executor.aclose()
    names = {node.name for node in gathered.nodes} if gathered else set()
    return all(node.name in names for node in named)


async def find(choice: ExecutorChoice, wanted: NodeRequest) -> FoundNodes:
    """The nodes of the run in rank order, and their origin. If there are none, the origin has the reason.

    Raises:
        UsageError: no nodes are known, or their names are invalid.
    """
    try:
        gathered = await _gathered(choice.executor, wanted)
    except ExecutorError as error:
        source = choice.origin.source if choice.origin else "executor"
        words = choice.origin.words if choice.origin else choice.executor.name
        names = tuple(node.name for node in wanted.named)
        origin = Origin(source, words, choice.because, error.message, error.kind, detail=error.detail, named=names)
        return FoundNodes((), origin, error.cluster)
    if wanted.named:
        assert choice.origin is not None
        if gathered is None:
            return FoundNodes(wanted.named, Origin(choice.origin.source, choice.origin.words, choice.because))
        origin = Origin(choice.origin.source, choice.origin.words, choice.because, notes=gathered.notes)
        return FoundNodes(gathered.nodes, origin, gathered.cluster)
    if gathered is not None:
        gathered_origin = Origin("executor", gathered.source, notes=gathered.notes)
        return FoundNodes(
            gathered.nodes, replace(gathered.origin or gathered_origin, because=choice.because), gathered.cluster
        )
    nodes, words = nodes_of_jobs(wanted.jobs, trust_job=wanted.trust_job)
    return FoundNodes(nodes, Origin("job", words, choice.because))


async def _gathered(executor: Executor, wanted: NodeRequest) -> GatheredNodes | None:
    if not isinstance(executor, Gatherer):
        return None
    # Executors enforce the deadline themselves and give a better reason; this is for one that does not.
    with anyio.move_on_after(wanted.deadline_s + LATE_S):
        return await executor.gather(wanted)
    raise ExecutorError("timeout", f"{executor.name} did not list its nodes within {wanted.deadline_s:g} s")


def _find_executor(name: str) -> Executor:
    try:
        found = registry.named(registry.EXECUTORS, name)
    except KeyError as error:
        raise UsageError(f"--on {name}: {error.args[0]}") from None
    assert isinstance(found, Executor)
    return found


def _configured(executor: Executor, options: Sequence[str]) -> Executor:
    """The executor with its options set. Raises UsageError for an invalid option."""
    declared = {option.name: option for option in executor.options} if isinstance(executor, Configurable) else {}
    given: dict[str, str] = {}
    for text in options:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"--on-option {text}: expected NAME=VALUE")
        if name not in declared:
            raise UsageError(f"--on-option {text}: {_unknown_option(executor.name, name, declared)}")
        if name in given:
            raise UsageError(f"--on-option {text}: {name} was already set to {given[name]!r}; give it once")
        wrong = declared[name].problem_of(value)
        if wrong:
            raise UsageError(f"--on-option {text}: {wrong}")
        given[name] = value
    return executor.configured(given) if isinstance(executor, Configurable) else executor


def _unknown_option(executor: str, name: str, declared: Mapping[str, object]) -> str:
    if not declared:
        return f"the executor {executor} takes no options"
    near = similar_names(name.lower(), declared)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"the executor {executor} has no option {name!r}; {hint}known options: {', '.join(sorted(declared))}"


@dataclass(frozen=True, slots=True)
class LoadedJobs:
    """The jobs of a run and the checks that it makes.

    Args:
        recording: holds the jobs, the configuration and the smoke options, and nothing observed yet.
        checks: those of the run's stages.
    """

    recording: Recording
    checks: Sequence[Check]


#: Reads the job's files and reports progress. Raises UsageError.
LoadJobs = Callable[[Progress], LoadedJobs]


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """The loaded jobs, and what follows from them: what to request, and the context in which to observe it.

    Args:
        context: that of the first job; a run over several jobs observes all of them from there.
    """

    recording: Recording
    planner: Planner
    context: ContextChoice


class Preparation:
    """Loads the jobs of one run. `prepared` is None until they are loaded."""

    def __init__(self, load_jobs: LoadJobs, context: Callable[[Recording], ContextChoice], progress: Progress) -> None:
        self._load_jobs = load_jobs
        self._context = context
        self._progress = progress
        self.prepared: PreparedRun | None = None
        self._done = anyio.Event()

    async def load(self) -> None:
        """Load the jobs in a thread.

        Raises:
            UsageError: the paths contain no job, or cannot be read.
        """
        progress = threadsafe(asyncio.get_running_loop(), self._progress)
        self.prepared = await anyio.to_thread.run_sync(self._prepare, progress, abandon_on_cancel=True)
        self._done.set()

    def _prepare(self, progress: Progress) -> PreparedRun:
        loaded = self._load_jobs(progress)
        if not loaded.recording.jobs:
            raise UsageError(
                "no launch script or configuration was recognised in the given paths; "
                "name the script that starts the ranks"
            )
        planner = Planner(loaded.recording, loaded.checks)
        return PreparedRun(loaded.recording, planner, self._context(loaded.recording))

    async def wait(self) -> PreparedRun:
        """Return the prepared run as soon as the jobs are loaded."""
        await self._done.wait()
        assert self.prepared is not None
        return self.prepared


def warm_up(recording: Recording, stages: frozenset[str]) -> None:
    """Load the rules, the functions that make charts and the schema of recordings, which judging needs later."""
    from preflight._util.validation import type_adapter
    from preflight.model.recording_io import document

    type_adapter(document())
    if recording.verb not in (NODES, SMOKE):
        rules_for(recording.configuration)
    registry.chart_makers(stages)
    registry.measurement_readers(stages)


class Planner:
    """Collects the requests of the checks that a run selected. `unplanned` are those that could not plan, each with the
    reason.

    `checks` are those whose probes can be sent, `shipped` the modules, with sources, that plugins' probes need.
    """

    def __init__(self, base: Recording, checks: Sequence[Check]) -> None:
        self._jobs = base.jobs
        self._only_smoke = base.verb == SMOKE
        #: If only the smoke run counts: the probes that its checks use.
        self._read = {probe_name(probe) for check in checks if check.when == "smoke" for probe in check.reads}
        self.unplanned: list[UnplannedCheck] = []
        self.shipped: dict[str, str] = {}
        self.checks: list[Check] = []
        for check in checks:
            if not selected(check.meta, base.configuration) and not (self._only_smoke and check.when == "node"):
                continue
            try:
                self.shipped.update(extract(check.probes))
                self.checks.append(check)
            except ExtractionError as error:
                self.unplanned.extend(UnplannedCheck(check.meta.id, job.name, str(error)) for job in self._jobs)

    def plan(self, stage: str, fleet: Fleet, facts: Facts) -> list[Request]:
        """The requests of the checks of this stage, each once."""
        return self._requests(stage, fleet, facts, [check.plan for check in self.checks])

    def follow_up(self, stage: str, fleet: Fleet, facts: Facts) -> list[Request]:
        """The additional requests that the facts of this stage make necessary; some may have been sent already."""
        return self._requests(stage, fleet, facts, [check.follow_up for check in self.checks])

    def _requests(self, stage: str, fleet: Fleet, facts: Facts, plans: Sequence[PlanRequests | None]) -> list[Request]:
        wanted: dict[str, Request] = {}
        for check, plan in zip(self.checks, plans, strict=True):
            if check.when != stage or plan is None:
                continue
            for job in self._jobs:
                for request in self._planned(check, plan, job, fleet, facts):
                    if self._only_smoke and stage == "node" and request.probe not in self._read:
                        continue
                    first = wanted.setdefault(request.key, request)
                    if first is not request:
                        wanted[request.key] = _merged(first, request)
        return list(wanted.values())

    def _planned(self, check: Check, plan: PlanRequests, job: Job, fleet: Fleet, facts: Facts) -> Iterable[Request]:
        try:
            return judged(functools.partial(plan, job), fleet, facts)[0]
        except Exception:
            # Kept in the recording, where it makes the check's outcome unknown instead of looking like a pass.
            crashed = UnplannedCheck(check.meta.id, job.name, scrub_traceback(traceback.format_exc(limit=-4)))
            if crashed not in self.unplanned:
                self.unplanned.append(crashed)
            return []


def _merged(first: Request, second: Request) -> Request:
    """Merge two requests for the same fact: it is required if either requires it, because of both their claims."""
    return replace(
        first,
        because=tuple(dict.fromkeys((*first.because, *second.because))),
        required=first.required or second.required,
        deadline_s=max(first.deadline_s, second.deadline_s),
    )
