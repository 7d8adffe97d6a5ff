"""The base of executors, and their channels; runs the tools of schedulers with a deadline."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import functools
import logging
import math
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import anyio

from preflight._util import toml
from preflight._util.hostnames import is_hostname
from preflight._util.log import command_text
from preflight.agent import process
from preflight.agent.wire import UNAVAILABLE_KINDS
from preflight.model.job import Job
from preflight.model.recording import Cluster, Node, Origin

#: Returns the bundle that an agent is started from (`preflight.executors.bundle.build_bundle`). It is called once
#: there is a node to send it to; waiting for it does not count against the node's deadline.
Bundle = Callable[[], Awaitable[bytes]]


class ExecutorError(Exception):
    """The reason why a node could not be reached, its agent not started, or the nodes not listed.

    Args:
        kind: one of `preflight.agent.wire.UNAVAILABLE_KINDS`.
        message: names the node, quotes the transport, and says what to do.
        detail: raw evidence, such as the end of standard error.
        cluster: the scheduler's description of the cluster, if it gave no nodes.
    """

    def __init__(self, kind: str, message: str, detail: str = "", *, cluster: Cluster | None = None) -> None:
        super().__init__(message)
        if kind not in UNAVAILABLE_KINDS:
            raise ValueError(f"unknown kind of unavailability: {kind!r}")
        self.kind = kind
        self.message = message
        self.detail = detail
        self.cluster = cluster


async def await_bundle(bundle: Bundle, scope: anyio.CancelScope) -> bytes:
    """Return the bundle, and extend the deadline of `scope` by the time spent waiting for it."""
    left_s = scope.deadline - anyio.current_time()
    scope.deadline = math.inf
    content = await bundle()
    scope.deadline = anyio.current_time() + left_s
    return content


@runtime_checkable
class Channel(Protocol):
    """A two-way byte stream to one agent, which is already running and speaks frames."""

    @property
    def description(self) -> str:
        """Return how the node was reached, for messages: `ssh user@node2`."""
        ...

    async def send(self, data: bytes) -> None:
        """Write all of `data`. Raises ExecutorError(kind="unreachable") if the other end is gone."""
        ...

    async def receive(self) -> bytes:
        """Return the next bytes; empty at the end of the stream."""
        ...

    def abandon(self) -> None:
        """Give up on a lost node: end the transport immediately. `aclose` still follows."""
        ...

    async def aclose(self) -> None:
        """Close the channel, which ends the agent and everything it started. Never raises."""
        ...

    def error_tail(self) -> str:
        """Return the end of the transport's standard error, for messages about a lost node."""
        ...


def _accept_any(value: str) -> str:
    return ""


def file_problem(value: str) -> str:
    """Return why a value does not name an existing file; empty if it does."""
    return "" if Path(value).is_file() else f"the file {value} does not exist"


def yes_no_problem(value: str) -> str:
    """Return why a value is neither yes nor no; empty if it is one of them."""
    return "" if value in ("yes", "no") else "expected yes or no"


def interpreter_problem(value: str) -> str:
    """Return why a value is not the path of a Python interpreter; empty if it is."""
    return "" if value and "\0" not in value else "expected the path of a Python interpreter"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of an executor, given by `--on-option NAME=VALUE`.

    Args:
        meaning: its purpose, in one sentence of help.
        problem_of: returns the error in a value and the expected form; empty for a valid value.
    """

    name: str
    meaning: str
    example: str = ""
    problem_of: Callable[[str], str] = field(default=_accept_any, compare=False)


def _ignore_note(note: str) -> None:
    """Do nothing with the note."""


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """The request for nodes to an executor.

    Args:
        jobs: the jobs as described by their files; untrusted unless `trust_job`.
        named_nodes: the nodes that the user named (`--hosts`, `--hostfile`), in rank order. If there are any, no others
            are used; `gather` is still called, because the executor may have to prepare for them.
        count: number of nodes of the job, if its files state it.
        deadline_s: time limit for finding nodes.
        lasts_s: longest duration of the whole run, for executors that must request nodes.
        environment: the variables of this process.
        on_note: reports the current wait.
    """

    jobs: tuple[Job, ...] = ()
    named_nodes: tuple[Node, ...] = ()
    count: int | None = None
    trust_job: bool = False
    deadline_s: float = 30.0
    lasts_s: float = 300.0
    environment: Mapping[str, str] = field(default_factory=dict)
    on_note: Callable[[str], None] = _ignore_note


@dataclass(frozen=True, slots=True)
class GatheredNodes:
    """The nodes in rank order, and their source: `Slurm job 71 (SLURM_JOB_NODELIST)`.

    A node known to be broken is included: `open` then fails with the reason, and it is reported by name. `notes` are
    messages for the user, such as "2 of 4 pods are pending"; `cluster` is what the scheduler reports about all its
    nodes. `origin` is for an executor that replays an earlier run.
    """

    nodes: tuple[Node, ...]
    source: str
    notes: tuple[str, ...] = ()
    origin: Origin | None = None
    cluster: Cluster | None = None


class Executor(abc.ABC):
    """Starts agents on nodes by one method. Only `open` is required.

    An executor that belongs to a scheduler or a cluster also lists its nodes (`gather`) and detects that preflight runs
    inside it (`detect`).
    """

    __slots__ = ()

    #: The value of `--on`.
    name: str
    options: tuple[Option, ...] = ()
    #: Whether it can open named nodes without a job, so that it may start before the job is read.
    opens_named: bool = False

    def configured(self, settings: Mapping[str, str]) -> Executor:
        """Return a copy with these values of its options; names and values were validated before.

        Raises UsageError for options that contradict each other.
        """
        return self

    def detect(self, environment: Mapping[str, str]) -> str:
        """Return why this process is inside the executor's environment, such as `SLURM_JOB_ID=71 is set`; empty if it
        is not inside.

        Uses little more than `environment`, and never waits.
        """
        return ""

    async def check_usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Return the tool that the executor would use here, such as `OpenSSH_9.2p1`; empty if unknown.

        Nothing is requested, started or changed. Raises ExecutorError that says what is missing and, after its last
        semicolon, what to do.
        """
        return ""

    async def gather(self, request: NodeRequest) -> GatheredNodes | None:
        """Return the nodes of the executor's allocation or cluster; None if none exists here.

        If `request.named_nodes` is not empty, return exactly these nodes (with the addresses for connecting to them),
        or None if there is nothing to prepare.

        Raises:
            ExecutorError: nodes should exist but are not available (kind and message as for a node).
            UsageError: an option or a name is impossible.
        """
        return None

    @abc.abstractmethod
    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> Channel:
        """Start an agent on `node` from `bundle`.

        Raises ExecutorError, at the latest after `deadline_s` plus the time spent waiting for the bundle.
        """

    async def aclose(self) -> None:  # noqa: B027
        """Release the resources of channels and of `gather`. Called last, possibly more than once."""


def target_of(node: Node) -> str:
    """Return the address for connecting to a node, else its name. Raises ExecutorError for an invalid host name."""
    target = node.address or node.name
    if not is_hostname(target):
        raise ExecutorError("denied", f"{node.name}: {target!r} is not a valid host name")
    return target


_log = logging.getLogger(__name__)

#: Largest output of a tool on a large cluster.
_MAX_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The exit code and output of a tool."""

    code: int
    output: str
    errors: str

    @property
    def last_error(self) -> str:
        """Return the last non-empty line of standard error."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


async def run_tool(
    command: Sequence[str], *, deadline_s: float, environment: Mapping[str, str] | None = None
) -> ToolResult:
    """Run `command` to its end.

    Raises:
        ExecutorError: the command was not found ("missing"), or did not end in time ("timeout").
    """
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("run %s", command_text(command))
    began_s = time.monotonic()
    chosen = {**(os.environ if environment is None else environment), "LC_ALL": "C"}
    try:
        started = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=chosen,
            start_new_session=True,
            limit=_MAX_BYTES,
            preexec_fn=_die_with_parent,
        )
    except OSError as error:
        raise ExecutorError("missing", f"`{command[0]}` cannot be run here: {error.strerror}") from error
    try:
        with anyio.fail_after(deadline_s):
            output, errors = await started.communicate()
    except TimeoutError:
        raise ExecutorError("timeout", f"`{' '.join(command)}` did not respond within {deadline_s:.3g} s") from None
    finally:
        if started.returncode is None:
            kill_tree(started.pid)
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await started.wait()
    code = started.returncode if started.returncode is not None else -signal.SIGKILL
    _log.debug("%s: exit code %d after %.3f s", command[0], code, time.monotonic() - began_s)
    return ToolResult(code, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants, including those in separate sessions."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process_below in (*root.children(recursive=True), root):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process_below.kill()
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _die_with_parent() -> None:
    process.die_with_parent(signal.SIGKILL)


class ErrorMeaning(NamedTuple):
    """The meaning of messages that match a pattern: the kind of failure, a sentence, and the remedy."""

    pattern: str
    kind: str
    meaning: str
    remedy: str


@functools.cache
def _meanings() -> dict[str, list[ErrorMeaning]]:
    tables = toml.beside(__file__, "error_meanings.toml")
    return {name: [ErrorMeaning(*row) for row in rows] for name, rows in tables.items()}


def find_meaning(table: str, lines: Iterable[str]) -> tuple[ErrorMeaning, str] | None:
    """Return the first row of a table of `error_meanings.toml` that matches a line, and the first such line."""
    kept = tuple(lines)
    for row in _meanings()[table]:
        line = next((line for line in kept if re.search(row.pattern, line, re.IGNORECASE)), None)
        if line is not None:
            return row, line
    return None
