"""What an executor is, what its channels carry, and what it may know beside that: nodes, options, where we are.

Every executor opens channels (`Executor`). One that belongs to a scheduler or a cluster also says which nodes there
are (`Gatherer`), takes options of its own (`Configurable`) and recognises that preflight runs inside it (`Detector`).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Protocol, runtime_checkable

import anyio

from preflight.job import Job
from preflight.lazy.dataclasses import dataclass
from preflight.node.wire import UNAVAILABLE_KINDS
from preflight.recording import Cluster, Node, Origin

#: Gives what an agent is started from, of `preflight.bundle.node_bundle`. Asked for when there is somebody to send it
#: to; it may not be made yet, and waiting for it is none of the node's time.
Bundle = Callable[[], Awaitable[bytes]]


class ExecutorError(Exception):
    """A node could not be reached, its agent not be started, or the nodes not be told.

    Args:
        kind: one of `preflight.node.wire.UNAVAILABLE_KINDS`.
        message: names the node, quotes what the transport said, and says what to do.
        detail: raw evidence, such as the end of standard error.
        cluster: what the scheduler said of the whole, where it gave no nodes.
    """

    def __init__(self, kind: str, message: str, detail: str = "", *, cluster: Cluster | None = None) -> None:
        super().__init__(message)
        if kind not in UNAVAILABLE_KINDS:
            raise ValueError(f"unknown kind of unavailability: {kind!r}")
        self.kind = kind
        self.message = message
        self.detail = detail
        self.cluster = cluster


async def uncounted(bundle: Bundle, scope: anyio.CancelScope) -> bytes:
    """The bundle; the deadline of `scope` is put off for as long as it was waited for."""
    left_s = scope.deadline - anyio.current_time()
    scope.deadline = math.inf
    content = await bundle()
    scope.deadline = anyio.current_time() + left_s
    return content


@runtime_checkable
class Channel(Protocol):
    """A duplex stream of bytes to one agent, which is already running and speaks frames."""

    @property
    def description(self) -> str:
        """How the node was reached, for messages: `ssh user@node2`."""
        ...

    async def send(self, data: bytes) -> None:
        """Write all of `data`. Raises ExecutorError(kind="unreachable") when the other end is gone."""
        ...

    async def receive(self) -> bytes:
        """The next bytes; empty at the end of the stream."""
        ...

    def abandon(self) -> None:
        """Give up on the other end, which is lost: end the transport without a word. `aclose` still follows."""
        ...

    async def aclose(self) -> None:
        """End the channel, and with it the agent and all it started. Never raises."""
        ...

    def last_words(self) -> str:
        """What the transport said on standard error (its end), for messages about a lost node."""
        ...


@runtime_checkable
class Executor(Protocol):
    """One way to reach nodes."""

    @property
    def name(self) -> str:
        """As `--on` takes it."""
        ...

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> Channel:
        """Start an agent on `node` from `bundle`.

        Raises ExecutorError, at the latest after `deadline_s` and the time that the bundle was waited for.
        """
        ...

    async def aclose(self) -> None:
        """Give back what all channels shared, and what `gather` took. Called last, perhaps more than once."""
        ...


def _anything(value: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Option:
    """Something an executor can be told by `--on-option NAME=VALUE`.

    Args:
        meaning: what it is for, in one sentence of help.
        wrong: says what is wrong with a value, and what is expected; empty for one that will do.
    """

    name: str
    meaning: str
    example: str = ""
    wrong: Callable[[str], str] = field(default=_anything, compare=False)


@runtime_checkable
class Configurable(Protocol):
    """An executor with options of its own."""

    @property
    def options(self) -> tuple[Option, ...]:
        """What it can be told."""
        ...

    def configured(self, given: Mapping[str, str]) -> Executor:
        """Another one of its kind that was told so; names and values were looked at before."""
        ...


def _untold(note: str) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an executor may know when it is asked for nodes.

    Args:
        jobs: the jobs as their files describe them; what they say is hostile until `trust_job`.
        named: the nodes that the user named (`--hosts`, `--hostfile`), in rank order. Where there are any, no others
            are looked at; the executor is asked all the same, because it may have to prepare for them.
        count: on how many nodes the job runs, where its files say so.
        deadline_s: how long finding nodes may take.
        lasts_s: how long the whole run takes at the most, for whoever has to ask for the nodes.
        environment: the variables of this process.
        tell: passes on what is waited for, for whoever watches.
    """

    jobs: tuple[Job, ...] = ()
    named: tuple[Node, ...] = ()
    count: int | None = None
    trust_job: bool = False
    deadline_s: float = 30.0
    lasts_s: float = 300.0
    environment: Mapping[str, str] = field(default_factory=dict)
    tell: Callable[[str], None] = _untold


@dataclass(frozen=True, slots=True)
class Gathered:
    """The nodes there are, in rank order, and where they came from: `Slurm job 71 (SLURM_JOB_NODELIST)`.

    A node that is known to be out of order belongs among them: `open` then says so, and it is reported by its name.
    `notes` hold what else there is to say of the whole, such as "2 of 4 pods are pending"; `cluster` is what the
    scheduler says of all its nodes. `origin` is for an executor that knows who said it another time.
    """

    nodes: tuple[Node, ...]
    words: str
    notes: tuple[str, ...] = ()
    origin: Origin | None = None
    cluster: Cluster | None = None


@runtime_checkable
class Gatherer(Protocol):
    """An executor that knows which nodes there are."""

    async def gather(self, wanted: Wanted) -> Gathered | None:
        """The nodes of its allocation or cluster; None where it knows of none here.

        Where `wanted.named` is not empty these nodes and no others are returned (with the addresses at which it
        reaches them), or None when there is nothing to prepare.

        Raises:
            ExecutorError: there should be nodes and they cannot be had (kind and message as for a node).
            UsageError: it was told what cannot be.
        """
        ...


@runtime_checkable
class Forward(Protocol):
    """An executor that opens nodes which the user named without looking at any job: it may begin before one is read."""

    @property
    def opens_named(self) -> bool:
        """Whether `gather`, for named nodes, needs nothing but their names."""
        ...


@runtime_checkable
class Usable(Protocol):
    """An executor that knows whether it could be used from this machine, before there is any job."""

    async def usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """With what, in words: `OpenSSH_9.2p1`. Nothing is asked for, started or changed.

        Raises ExecutorError that says what is not there; behind its last semicolon, what to do.
        """
        ...


@runtime_checkable
class Detector(Protocol):
    """An executor that recognises its own surroundings."""

    def detect(self, environment: Mapping[str, str]) -> str:
        """Why this process must be inside of what it reaches: `SLURM_JOB_ID=71 is set`; empty when it is not.

        Looks at `environment` and at little else, and never waits.
        """
        ...
