"""Finds the nodes of a run: the executor that connects to them, its options, and the source of their names.

The user's choice comes first (`--hosts`, `--hostfile`), then the executor's own nodes (its allocation, its cluster),
then the job's own files (with `--trust-job`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from preflight._util.usage_error import UsageError, similar_names
from preflight.executors.base import (
    Configurable,
    Detector,
    Executor,
    ExecutorError,
    GatheredNodes,
    Gatherer,
    NodeRequest,
)
from preflight.model.recording import Cluster, Node, Origin
from preflight.plugins import registry
from preflight.runner.job_context import named_nodes, nodes_of_jobs

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
