"""The nodes of a job in a recording: where their names come from, how connecting went, what their scheduler reports."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from preflight.model.smoke_options import SmokeOptions

#: The kind of a node's problem when the head's own pause ended the agent there.
HEAD_PAUSED = "head-paused"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the job, in rank order. `address` is where the executor connects to it, as the user gave it.

    Args:
        name: its name in the report.
        index: its position in rank order, from 0.
        slots: the number of ranks in a host file; null if none is given.
    """

    name: str
    index: int
    address: str = ""
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The result of connecting to a node. `problem` is empty when its agent answered.

    Args:
        node: the node.
        problem_kind: the problem in one word: `timeout`, `unreachable` and the like; `HEAD_PAUSED` if the head's own
            pause ended the agent, which says nothing about the node.
        host: the node's own name for itself.
        python: version of the agent's Python.
        user: the agent's user.
        boot_id: the same for all names of a machine, until it reboots.
        clock_offset_s: how far its clock is ahead of the head's.
        round_trip_s: the round-trip time to the node.
        notes: further messages of the executor.
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
    """Where the list of nodes came from, and why this executor was used.

    Args:
        source: the user (`hosts`, `hostfile`), the `executor` (its allocation or cluster), or the `job`.
        words: a description, with the spelling: `--hosts node[1-4]`, `Slurm job 71 (SLURM_JOB_NODELIST)`.
        because: why the executor was chosen: `--on slurm`, `SLURM_JOB_ID=71 is set`.
        problem: why there are no nodes, if there are none; `problem_kind` as for a node, `detail` raw evidence.
        notes: the executor's messages about all nodes.
        named: the nodes that the user named, if none were available.
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
    """A scheduler's data about one of its nodes, whether or not the job will run there.

    Args:
        has: its capacity by resource, in base units (cores, bytes, pieces).
        free: its unallocated capacity; None if unknown.
        taints: what must be tolerated there, as `key=value:effect`.
        closed: why it accepts no new work; empty when it does.
    """

    name: str
    has: Mapping[str, float]
    free: Mapping[str, float] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    closed: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """A scheduler partition and its limits; None or empty means no limit.

    `max_time` is in the scheduler's format. If there is no list of accounts or qualities of service, all are allowed.
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
    """The scheduler's data about the whole cluster, requested once when nodes are found.

    `kind` is the scheduler (`kubernetes`, `ray`, `slurm`); `unknown` lists what could not be queried, and why;
    `refusal` is why it would not accept the job's own request into its queue.
    """

    kind: str
    nodes: tuple[ClusterNode, ...] = ()
    unknown: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()
    refusal: str = ""


@dataclass(frozen=True)
class Fleet:
    """The known nodes of the job: all expected ones, and those that answered.

    `executor` is the transport to them, `origin` where their list came from, `cluster` the scheduler's data about all
    its nodes, `smoke_options` the user's options for the smoke run.
    """

    records: tuple[NodeRecord, ...] = ()
    executor: str = ""
    origin: Origin | None = None
    cluster: Cluster | None = None
    smoke_options: SmokeOptions = field(default_factory=SmokeOptions)

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
