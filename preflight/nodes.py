"""The nodes of a job as a recording has them: who named them, how reaching them went, what their scheduler says"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from preflight.lazy.dataclasses import dataclass
from preflight.wish import Wish


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the job, in rank order. `address` is where the executor reaches it, as the user gave it.

    Args:
        name: what it is called in the report.
        index: its place in rank order, from 0.
        slots: how many ranks a host file gives it; null where nothing says so.
    """

    name: str
    index: int
    address: str = ""
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """How reaching a node went. `problem` is empty when its agent answered.

    Args:
        node: which node.
        problem_kind: the same in one word: `timeout`, `unreachable` and the like.
        host: the name that the node has for itself.
        python: version of the Python that the agent runs with.
        user: as whom.
        boot_id: the same for names of one machine that was not restarted between.
        clock_offset_s: how far its clock is ahead of the head's.
        round_trip_s: how long a word to the node and back takes.
        notes: what else the executor said.
    """

    node: Node
    problem: str = ""
    problem_kind: str = ""
    host: str = ""
    python: str = ""
    user: str = ""
    boot_id: str = ""
    clock_offset_s: float | None = None
    round_trip_s: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the list of nodes came from, and why they were reached on this way.

    Args:
        source: who said it: the user (`hosts`, `hostfile`), the `executor` (its allocation or cluster), or the `job`.
        words: in words, with the spelling: `--hosts node[1-4]`, `Slurm job 71 (SLURM_JOB_NODELIST)`.
        because: why the executor was chosen: `--on slurm`, `SLURM_JOB_ID=71 is set`.
        problem: why there are no nodes, where there are none; `problem_kind` as of a node, `detail` raw evidence.
        notes: what the executor said of the whole.
        named: the nodes that the user named, where none could be had.
    """

    source: Literal["hosts", "hostfile", "executor", "job"]
    words: str
    because: str = ""
    problem: str = ""
    problem_kind: str = ""
    detail: str = ""
    notes: tuple[str, ...] = ()
    named: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """What a scheduler says of one of its nodes, whether or not the job will run there.

    Args:
        has: what it can give in all, by resource, in base units (cores, bytes, pieces).
        free: what of that nobody has taken; None where that is not known.
        taints: what must be tolerated there, as `key=value:effect`.
        closed: why nothing new is placed there now; empty when something may be.
    """

    name: str
    has: Mapping[str, float]
    free: Mapping[str, float] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    closed: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a scheduler and its limits; None or empty where there is none.

    `max_time` is written as the scheduler writes it. Of accounts and qualities of service all are allowed where no
    list says otherwise.
    """

    name: str
    state: str
    total_nodes: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    max_time: str = ""
    is_default: bool = False
    allowed_accounts: tuple[str, ...] = ()
    denied_accounts: tuple[str, ...] = ()
    allowed_qos: tuple[str, ...] = ()
    denied_qos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the scheduler says of the whole, asked once when nodes are found.

    `kind` is whose words these are (`kubernetes`, `ray`, `slurm`); `unknown` says what could not be asked, and why;
    `refusal` is why it would not even put the job's own request into its queue.
    """

    kind: str
    nodes: tuple[ClusterNode, ...] = ()
    unknown: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()
    refusal: str = ""


@dataclass(frozen=True)
class Fleet:
    """The nodes of the job as far as known: all expected ones, and which of them answered.

    `executor` is how they are reached, `origin` who said which they are, `cluster` what a scheduler says of all its
    nodes, `wish` what the user asks of the smoke run beside what the job says.
    """

    records: tuple[NodeRecord, ...] = ()
    executor: str = ""
    origin: Origin | None = None
    cluster: Cluster | None = None
    wish: Wish = field(default_factory=Wish)

    @functools.cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every expected node, in rank order."""
        return tuple(record.node for record in self.records)

    @functools.cached_property
    def reached(self) -> tuple[Node, ...]:
        """The nodes whose agent answered."""
        return tuple(record.node for record in self.records if not record.problem)

    @property
    def master(self) -> Node | None:
        """The node of rank 0."""
        return self.records[0].node if self.records else None
