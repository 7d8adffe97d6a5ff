"""How the nodes of a run are found: which executor reaches them, what it is told, and who says which they are.

The user's word counts first (`--hosts`, `--hostfile`), then what the executor knows (its allocation, its cluster),
then the job's own files (with `--trust-job`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import anyio

from preflight import catalog
from preflight.errors import UsageError
from preflight.executors.base import Configurable, Detector, Executor, ExecutorError, Gathered, Gatherer, Wanted
from preflight.lazy.dataclasses import dataclass
from preflight.place import named_nodes, nodes_of_jobs
from preflight.recording import Cluster, Node, Origin

#: How much longer than its deadline an executor may take to say why it has no nodes.
LATE_S = 5.0
#: How long an executor may take to say whether the nodes that the user named are its own.
_HOLDS_S = 5.0


@dataclass(frozen=True, slots=True)
class Way:
    """The executor of a run, told what it was to be told, and `because` of what it was chosen."""

    executor: Executor
    because: str
    named: tuple[Node, ...] = ()
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The nodes of a run, who said so, and what the scheduler says of all of its own."""

    nodes: tuple[Node, ...]
    origin: Origin
    cluster: Cluster | None = None


async def choose(
    *,
    hosts: str,
    hostfile: Path | None,
    executor: str,
    options: Sequence[str],
    environment: Mapping[str, str],
) -> Way:
    """The way to the nodes: what the user chose by name, else where we are, else ssh.

    Raises:
        UsageError: no such executor or option, or a host that is none.
    """
    named, origin = named_nodes(hosts, hostfile)
    if executor:
        return Way(_told(_known(executor), options), f"--on {executor}", named, origin)
    for found, reason in recognising(environment):
        if not named or await _holds(_told(found, options), named, environment):
            return Way(_told(found, options), reason, named, origin)
    because = "nodes were named" if named else "nothing else was chosen"
    return Way(_told(_known("ssh"), options), because, named, origin)


def recognising(environment: Mapping[str, str]) -> Iterator[tuple[Executor, str]]:
    """The executors that recognise their own surroundings here, in the order in which they are taken, each with why."""
    for found in catalog.load(catalog.EXECUTORS).items:
        reason = found.detect(environment) if isinstance(found, Detector) else ""
        if reason:
            yield found, reason


async def _holds(executor: Executor, named: Sequence[Node], environment: Mapping[str, str]) -> bool:
    """Whether all nodes that the user named belong to the surroundings of `executor`."""
    try:
        gathered = await _gathered(executor, Wanted(deadline_s=_HOLDS_S, environment=environment))
    except (ExecutorError, UsageError):
        return False
    finally:
        await executor.aclose()
    names = {node.name for node in gathered.nodes} if gathered else set()
    return all(node.name in names for node in named)


async def find(way: Way, wanted: Wanted) -> Found:
    """The nodes of the run in rank order, and who said so. Where none can be had, the origin says why.

    Raises:
        UsageError: nobody says which they are, or what they say cannot be.
    """
    try:
        gathered = await _gathered(way.executor, wanted)
    except ExecutorError as error:
        source = way.origin.source if way.origin else "executor"
        said = way.origin.words if way.origin else way.executor.name
        names = tuple(node.name for node in wanted.named)
        origin = Origin(source, said, way.because, error.message, error.kind, detail=error.detail, named=names)
        return Found((), origin, error.cluster)
    if wanted.named:
        assert way.origin is not None
        if gathered is None:
            return Found(wanted.named, Origin(way.origin.source, way.origin.words, way.because))
        origin = Origin(way.origin.source, way.origin.words, way.because, notes=gathered.notes)
        return Found(gathered.nodes, origin, gathered.cluster)
    if gathered is not None:
        said_now = Origin("executor", gathered.words, notes=gathered.notes)
        return Found(gathered.nodes, replace(gathered.origin or said_now, because=way.because), gathered.cluster)
    nodes, words = nodes_of_jobs(wanted.jobs, trust_job=wanted.trust_job)
    return Found(nodes, Origin("job", words, way.because))


async def _gathered(executor: Executor, wanted: Wanted) -> Gathered | None:
    if not isinstance(executor, Gatherer):
        return None
    # Executors keep the deadline themselves and know better what they waited for; this is for one that does not.
    with anyio.move_on_after(wanted.deadline_s + LATE_S):
        return await executor.gather(wanted)
    raise ExecutorError("timeout", f"{executor.name} did not say within {wanted.deadline_s:g} s which nodes there are")


def _known(name: str) -> Executor:
    try:
        found = catalog.named(catalog.EXECUTORS, name)
    except KeyError as error:
        raise UsageError(f"--on {name}: {error.args[0]}") from None
    assert isinstance(found, Executor)
    return found


def _told(executor: Executor, options: Sequence[str]) -> Executor:
    """The executor with its options set. Raises UsageError for one that it does not take."""
    declared = {option.name: option for option in executor.options} if isinstance(executor, Configurable) else {}
    given: dict[str, str] = {}
    for text in options:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"--on-option {text}: expected NAME=VALUE")
        if name not in declared:
            raise UsageError(f"--on-option {text}: {_no_such(executor.name, name, declared)}")
        if name in given:
            raise UsageError(f"--on-option {text}: {name} was given before, as {given[name]!r}")
        wrong = declared[name].wrong(value)
        if wrong:
            raise UsageError(f"--on-option {text}: {wrong}")
        given[name] = value
    return executor.configured(given) if isinstance(executor, Configurable) else executor


def _no_such(executor: str, name: str, declared: Mapping[str, object]) -> str:
    if not declared:
        return f"the executor {executor} takes no options"
    near = get_close_matches(name.lower(), declared, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"the executor {executor} has no option {name!r}; {hint}known are {', '.join(sorted(declared))}"
