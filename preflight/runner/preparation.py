"""Prepares a run: finds its nodes, their executor and the context of its ranks, loads its jobs, plans the facts.

Nodes and context may come from the user (always accepted) or from the job's own files (only with `trust_job`:
repository content may be hostile unless the user trusts it). What cannot be determined is reported, never guessed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import anyio.to_thread

from preflight._util.hostnames import is_hostname, is_loopback, max_host_count, split_endpoint, split_outside_brackets
from preflight._util.redaction import HIDDEN, scrub_traceback
from preflight._util.sequences import join_some
from preflight._util.usage_error import UsageError, similar_names
from preflight.agent.wire import Context
from preflight.engine.evaluate import is_selected, judge_without_crashing_nodes
from preflight.executors.base import Executor, ExecutorError, GatheredNodes, NodeRequest
from preflight.executors.bundle import ExtractionError, extract
from preflight.model.configuration import NODES, SMOKE
from preflight.model.job import Claim, Job, Known, Launch, Scope
from preflight.model.job.value import items, known_number, known_text
from preflight.model.progress import Progress, threadsafe
from preflight.model.recording import Cluster, Facts, Fleet, Node, Origin, Recording, UnplannedCheck
from preflight.model.requests import Request, probe_name
from preflight.plugins import registry
from preflight.plugins.authoring import Check, PlanRequests
from preflight.plugins.installed import rules_for

#: Variables of the job that a child must not get: they would affect the observer itself.
_EXCLUDED_VARIABLES = ("PATH", "HOME", "SHELL", "USER", "LOGNAME", "PYTHONSTARTUP", "PYTHONINSPECT")

#: Twice the largest clusters; a longer list is a mistake, or an attempt to fill the memory.
MAX_NODES = 32_768

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)

#: Addresses of the job's processes; the lists name their nodes in the order of ranks.
_ENDPOINTS = ("ps_worker_endpoints", "ps_server_endpoints")

#: Launchers that pip installs as console scripts: the ranks use the script's own interpreter.
_CONSOLE_SCRIPTS = ("torchrun", "deepspeed", "accelerate", "llamafactory-cli")


#: Prefix of the reason why a container's context is not entered, and the provenance of an interpreter that the user
#: named on the host of ranks in a container.
IN_CONTAINER, OUTSIDE = "the ranks run in the container", "outside the container"


@dataclass(frozen=True, slots=True)
class ContextChoice:
    """The job context, or the reason why there is none; `provenance` names the claims or options that state it."""

    context: Context | None
    provenance: str
    missing: str = ""
    prelude: tuple[Claim, ...] = field(default=())


def named_nodes(hosts: str, hostfile: Path | None) -> tuple[tuple[Node, ...], Origin | None]:
    """Return the nodes that the user named, in rank order, and the option; empty if none. Raises UsageError."""
    if hosts:
        return _parse_names(_expand(hosts)), Origin("hosts", f"--hosts {hosts}")
    if hostfile is not None:
        return _read_hostfile(hostfile), Origin("hostfile", f"--hostfile {hostfile}")
    return (), None


def nodes_of_jobs(jobs: Sequence[Job], *, trust_job: bool) -> tuple[tuple[Node, ...], str]:
    """Return the nodes in the job's files, in rank order, with locations. Raises UsageError without any or trust."""
    claimed, where = claimed_hosts(jobs)
    if not claimed:
        raise UsageError(
            "no nodes were named; use --hosts node[1-4], --hostfile FILE or --on local, or run inside an allocation"
        )
    if not trust_job:
        shown = join_some(claimed, 4)
        raise UsageError(
            f"only the job's own files name nodes ({shown}); "
            "pass --trust-job to connect to them, or name them with --hosts"
        )
    return _parse_names(claimed), where


def _expand(hosts: str) -> tuple[str, ...]:
    if "[" not in hosts:
        return tuple(split_outside_brackets(hosts))
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    names: list[str] = []
    if (count := max_host_count(hosts)) > MAX_NODES:
        raise UsageError(f"--hosts {hosts:.200}: this names up to {count} nodes, but the limit is {MAX_NODES}")
    try:
        for part in split_outside_brackets(hosts):
            # Groups are not expanded: their definitions may be commands, which the user did not ask to run.
            names.extend([part] if "[" not in part else NodeSet(part, resolver=RESOLVER_NOGROUP))
    except (NodeSetException, ValueError) as error:
        raise UsageError(f"--hosts {hosts:.200}: {error}") from None
    return tuple(names)


def _parse_names(names: Sequence[str], slots: Sequence[int | None] = ()) -> tuple[Node, ...]:
    if len(names) > MAX_NODES:
        raise UsageError(f"the list names {len(names)} nodes, but the limit is {MAX_NODES}")
    nodes: list[Node] = []
    known: set[str] = set()
    for index, name in enumerate(names):
        user, at, host = name.rpartition("@")
        if at and not _USER.fullmatch(user):
            raise UsageError(f"{user!r} of {name!r} is not a user name; expected letters, digits, dots, _ and -")
        if not is_hostname(host):
            raise UsageError(
                f"{name!r} is not a host name; expected letters, digits, dots and hyphens, without a leading hyphen"
            )
        if host in known:
            raise UsageError(f"{host} is listed twice; list each node once, because it runs one agent")
        known.add(host)
        nodes.append(Node(host, index, name, slots[index] if slots else None))
    if not nodes:
        raise UsageError("the list of nodes is empty")
    return tuple(nodes)


def _read_hostfile(path: Path) -> tuple[Node, ...]:
    from preflight._util import regular_file
    from preflight.sources.base import SourceFile
    from preflight.sources.configs.line_files import HostfileSource
    from preflight.sources.formats.tree import MAX_BYTES, MemoryTree

    try:
        text = regular_file.read_text(path, MAX_BYTES, errors="replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    reading = HostfileSource().read(SourceFile(path.name, text, "", len(text)), MemoryTree({}), role="hostfile")
    if reading.notes:
        note = reading.notes[0]
        raise UsageError(f"{path}:{note.span.line}: {note.message}")
    job = Job(path.name, claims=reading.claims)
    names, _ = claimed_hosts((job,))
    if not names:
        raise UsageError(f"{path} names no hosts")
    return _parse_names(names, [known_number(job.value("host_slots", Scope(node=name))) for name in names])


def claimed_hosts(jobs: Sequence[Job]) -> tuple[tuple[str, ...], str]:
    """Return the job's nodes in rank order and their location: a host list, else trainers, then servers."""
    for job, scope in _scopes(jobs):
        names = items(job.value("hosts", scope))
        if names:
            return names, _where(job, "hosts", scope)
    for job, scope in _scopes(jobs):
        spelled = [endpoint for quantity in _ENDPOINTS for endpoint in items(job.value(quantity, scope))]
        parts = [split_endpoint(endpoint) for endpoint in spelled]
        hosts = dict.fromkeys(part[0] for part in parts if part is not None and not is_loopback(part[0]))
        if hosts:
            listed = next(quantity for quantity in _ENDPOINTS if items(job.value(quantity, scope)))
            return tuple(hosts), _where(job, listed, scope)
    return (), ""


def _scopes(jobs: Sequence[Job]) -> Iterator[tuple[Job, Scope]]:
    for job in jobs:
        yield from ((job, launch.scope) for launch in job.launches)
        yield job, Scope()


def _where(job: Job, quantity: str, scope: Scope) -> str:
    claims = job.setting(quantity, scope) or job.about(quantity)
    return f"{claims[0].span.path}:{claims[0].span.line}" if claims else job.name


def claimed_count(jobs: Sequence[Job]) -> int | None:
    """Return the number of nodes of the job, if its files state it."""
    return next((count for job, scope in _scopes(jobs) if (count := known_number(job.value("nodes", scope)))), None)


def context_of(job: Job, *, python: str, directory: str, trust_job: bool, prelude: bool) -> ContextChoice:
    """Return the context of the job's ranks: from the user first, then from the job's files, if trusted."""
    launch = main_launch(job)
    scope = launch.scope if launch is not None else Scope()
    context_fields = {
        name: known_text(job.value(name, scope)) or "" for name in ("interpreter", "working_directory", "container")
    }
    if context_fields["container"] and not python and trust_job:
        return ContextChoice(
            None, "", f"{IN_CONTAINER} {context_fields['container']}, which preflight cannot enter yet"
        )
    interpreter = python or (context_fields["interpreter"] if trust_job else "")
    has_script = launch is not None and launch.launcher in _CONSOLE_SCRIPTS and not context_fields["interpreter"]
    script = launch.launcher if launch is not None and has_script else ""
    if not interpreter and not (script and trust_job):
        return ContextChoice(None, "", _nothing_to_run(context_fields["interpreter"], script))
    environment = _environment(job, scope) if trust_job else {}
    lines = job.setting("prelude", scope) if prelude and trust_job else ()
    where = directory or (context_fields["working_directory"] if trust_job else "")
    script = "" if interpreter else script
    parts = [f"interpreter {interpreter} ({'--python' if python else 'the job'})"]
    if script:
        parts = [f"the Python that {script} uses on each node"]
    if where:
        parts.append(f"directory {where} ({'--directory' if directory else 'the job'})")
    if context_fields["container"]:
        parts.append(f"{OUTSIDE} {context_fields['container']}")
    taken = f"{len(environment)} variable{'' if len(environment) == 1 else 's'} of the job"
    parts.append(taken if trust_job else "no variables of the job (--trust-job uses them)")
    if lines:
        parts.append(f"{len(lines)} setup lines of the job")
    context = Context(
        interpreter=interpreter,
        directory=where or None,
        environment=environment,
        prelude=[str(value) for claim in lines for value in claim.alternatives],
        provenance=", ".join(parts),
        script=script,
    )
    return ContextChoice(context, context.provenance, prelude=lines)


def _nothing_to_run(interpreter: str, script: str) -> str:
    if interpreter:
        return f"the job names the interpreter {interpreter!r}; pass --trust-job to use it, or --python PATH"
    if script:
        return f"the job starts its ranks with {script}; pass --trust-job to use that script's Python, or --python PATH"
    return "the Python interpreter of the ranks is unknown; pass --python PATH"


def main_launch(job: Job) -> Launch | None:
    """Return the launch whose ranks are examined: the first that needs several processes, otherwise the first."""
    for launch in job.launches:
        if (known_number(job.value("world_size", launch.scope)) or 0) > 1:
            return launch
    return job.launches[0] if job.launches else None


def _environment(job: Job, scope: Scope) -> dict[str, str]:
    variables: dict[str, str] = {}
    for claim in job.environment(scope):
        name = claim.quantity.removeprefix("env.")
        if name in _EXCLUDED_VARIABLES or not isinstance(claim.value, Known) or claim.value.value is None:
            continue
        text = str(claim.value.value)
        # A secret was removed when the file was read; its asterisks are not a value.
        if HIDDEN not in text:
            variables[name] = text
    return variables


_log = logging.getLogger(__name__)

#: Grace period after the deadline in which an executor may report why it has no nodes.
LATE_S = 5.0
#: Time limit for an executor to report whether it manages the named nodes.
_OWNS_NODES_S = 5.0


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """The executor of a run with its options set, why it was chosen, and the named nodes with their origin."""

    executor: Executor
    because: str
    named_nodes: tuple[Node, ...] = ()
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class FoundNodes:
    """The nodes of a run, the source of their names, and the scheduler's data about all of its nodes."""

    nodes: tuple[Node, ...]
    origin: Origin
    cluster: Cluster | None = None


async def choose(
    *, hosts: str, hostfile: Path | None, executor: str, options: Sequence[str], environment: Mapping[str, str]
) -> ExecutorChoice:
    """Return the executor: the user's choice, else the environment's, else ssh. Raises UsageError."""
    choice = await _choice(hosts, hostfile, executor, options, environment)
    _log.info("executor %s chosen: %s", choice.executor.name, choice.because)
    return choice


async def _choice(
    hosts: str, hostfile: Path | None, executor: str, options: Sequence[str], environment: Mapping[str, str]
) -> ExecutorChoice:
    named, origin = named_nodes(hosts, hostfile)
    if executor:
        return ExecutorChoice(_configure_executor(_find_executor(executor), options), f"--on {executor}", named, origin)
    for found, reason in recognising_executors(environment):
        if not named or await _owns_nodes(_configure_executor(found, options), named, environment):
            return ExecutorChoice(_configure_executor(found, options), reason, named, origin)
        _log.info("executor %s not chosen: %s, but it does not manage all of the named hosts", found.name, reason)
    because = "nodes were named" if named else "no other executor was chosen"
    return ExecutorChoice(_configure_executor(_find_executor("ssh"), options), because, named, origin)


def recognising_executors(environment: Mapping[str, str]) -> Iterator[tuple[Executor, str]]:
    """Yield the executors that recognise their own environment here, in order of preference, each with the reason."""
    for found in registry.load(registry.EXECUTORS).items:
        reason = found.detect(environment)
        if reason:
            yield found, reason


async def _owns_nodes(executor: Executor, named: Sequence[Node], environment: Mapping[str, str]) -> bool:
    """Return whether the environment of `executor` contains all nodes that the user named."""
    try:
        gathered = await _gather_nodes(executor, NodeRequest(deadline_s=_OWNS_NODES_S, environment=environment))
    except (ExecutorError, UsageError):
        return False
    finally:
        await executor.aclose()
    names = {node.name for node in gathered.nodes} if gathered else set()
    return all(node.name in names for node in named)


async def find(choice: ExecutorChoice, request: NodeRequest) -> FoundNodes:
    """Return the run's nodes in rank order, and their origin or the reason for none. Raises UsageError."""
    try:
        gathered = await _gather_nodes(choice.executor, request)
    except ExecutorError as error:
        source = choice.origin.source if choice.origin else "executor"
        words = choice.origin.words if choice.origin else choice.executor.name
        names = tuple(node.name for node in request.named_nodes)
        origin = Origin(source, words, choice.because, error.message, error.kind, detail=error.detail, named=names)
        return FoundNodes((), origin, error.cluster)
    if request.named_nodes:
        assert choice.origin is not None
        if gathered is None:
            return FoundNodes(request.named_nodes, Origin(choice.origin.source, choice.origin.words, choice.because))
        origin = Origin(choice.origin.source, choice.origin.words, choice.because, notes=gathered.notes)
        return FoundNodes(gathered.nodes, origin, gathered.cluster)
    if gathered is not None:
        gathered_origin = Origin("executor", gathered.source, notes=gathered.notes)
        return FoundNodes(
            gathered.nodes, replace(gathered.origin or gathered_origin, because=choice.because), gathered.cluster
        )
    nodes, words = nodes_of_jobs(request.jobs, trust_job=request.trust_job)
    return FoundNodes(nodes, Origin("job", words, choice.because))


async def _gather_nodes(executor: Executor, request: NodeRequest) -> GatheredNodes | None:
    # Executors enforce the deadline themselves and give a better reason; this is a fallback.
    with anyio.move_on_after(request.deadline_s + LATE_S):
        return await executor.gather(request)
    raise ExecutorError("timeout", f"{executor.name} did not list its nodes within {request.deadline_s:g} s")


def _find_executor(name: str) -> Executor:
    try:
        found = registry.load_named(registry.EXECUTORS, name)
    except KeyError as error:
        raise UsageError(f"--on {name}: {error.args[0]}") from None
    assert isinstance(found, Executor)
    return found


def _configure_executor(executor: Executor, options: Sequence[str]) -> Executor:
    """Return the executor with its options set. Raises UsageError for an invalid option."""
    declared = {option.name: option for option in executor.options}
    given_options: dict[str, str] = {}
    for text in options:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"--on-option {text}: expected NAME=VALUE")
        if name not in declared:
            raise UsageError(f"--on-option {text}: {_unknown_option(executor.name, name, declared)}")
        if name in given_options:
            raise UsageError(
                f"--on-option {text}: {name} was already set to {given_options[name]!r}; pass it only once"
            )
        wrong = declared[name].problem_of(value)
        if wrong:
            raise UsageError(f"--on-option {text}: {wrong}")
        given_options[name] = value
    return executor.configured(given_options)


def _unknown_option(executor: str, name: str, declared: Mapping[str, object]) -> str:
    if not declared:
        return f"the executor {executor} does not accept options"
    near = similar_names(name.lower(), declared)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"the executor {executor} has no option {name!r}; {hint}known options: {', '.join(sorted(declared))}"


@dataclass(frozen=True, slots=True)
class LoadedJobs:
    """The jobs of a run (in a recording without observations), and the checks of its stages."""

    recording: Recording
    checks: Sequence[Check]


#: Reads the job's files and reports progress. Raises UsageError.
LoadJobs = Callable[[Progress], LoadedJobs]


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """The loaded jobs, the requests to send, and the context of the first job, to observe from."""

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
        """Load the jobs in a thread. Raises UsageError."""
        progress = threadsafe(asyncio.get_running_loop(), self._progress)
        self.prepared = await anyio.to_thread.run_sync(self._prepare, progress, abandon_on_cancel=True)
        self._done.set()

    def _prepare(self, progress: Progress) -> PreparedRun:
        loaded = self._load_jobs(progress)
        if not loaded.recording.jobs:
            raise UsageError(
                "no launch script or configuration was recognized in the given paths; name the script that starts "
                "the ranks"
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
    from preflight.model.recording_io import document_class

    type_adapter(document_class())
    if recording.verb not in (NODES, SMOKE):
        rules_for(recording.configuration)
    registry.chart_makers(stages)
    registry.measurement_readers(stages)


class Planner:
    """Collects the requests of the checks that a run selected.

    `checks` are those whose probes can be sent, `shipped` the modules, with sources, that plugins' probes need, and
    `unplanned` the checks that could not plan, each with the reason.
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
            if not is_selected(check.meta, base.configuration) and not (self._only_smoke and check.when == "node"):
                continue
            try:
                self.shipped.update(extract(check.probes))
                self.checks.append(check)
            except ExtractionError as error:
                self.unplanned.extend(UnplannedCheck(check.meta.id, job.name, str(error)) for job in self._jobs)

    def plan(self, stage: str, fleet: Fleet, facts: Facts) -> list[Request]:
        """Return the requests of this stage's checks, without duplicates."""
        return self._requests(stage, fleet, facts, [check.plan for check in self.checks])

    def follow_up(self, stage: str, fleet: Fleet, facts: Facts) -> list[Request]:
        """Return the further requests that the facts of this stage make necessary; some may be sent already."""
        return self._requests(stage, fleet, facts, [check.follow_up for check in self.checks])

    def _requests(self, stage: str, fleet: Fleet, facts: Facts, plans: Sequence[PlanRequests | None]) -> list[Request]:
        requests_by_id: dict[str, Request] = {}
        for check, plan in zip(self.checks, plans, strict=True):
            if check.when != stage or plan is None:
                continue
            for job in self._jobs:
                for request in self._plan_check(check, plan, job, fleet, facts):
                    if self._only_smoke and stage == "node" and request.probe not in self._read:
                        continue
                    first = requests_by_id.setdefault(request.key, request)
                    if first is not request:
                        requests_by_id[request.key] = _merge_requests(first, request)
        return list(requests_by_id.values())

    def _plan_check(self, check: Check, plan: PlanRequests, job: Job, fleet: Fleet, facts: Facts) -> Iterable[Request]:
        try:
            return judge_without_crashing_nodes(functools.partial(plan, job), fleet, facts)[0]
        except Exception:
            # Kept in the recording, where it makes the check's outcome unknown instead of looking like a pass.
            crashed = UnplannedCheck(check.meta.id, job.name, scrub_traceback(traceback.format_exc(limit=-4)))
            if crashed not in self.unplanned:
                self.unplanned.append(crashed)
            return []


def _merge_requests(first: Request, second: Request) -> Request:
    """Merge two requests for the same fact: it is required if either requires it, because of both requests' claims."""
    return replace(
        first,
        because=tuple(dict.fromkeys((*first.because, *second.because))),
        required=first.required or second.required,
        deadline_s=max(first.deadline_s, second.deadline_s),
    )
