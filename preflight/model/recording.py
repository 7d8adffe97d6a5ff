"""A recording: everything that a verdict depends on, so that `judge` needs no cluster; its nodes and their properties.

A live `check` makes a recording and then judges it; the verdict depends on nothing else. Requests, facts and
the configuration have their own modules; rules, checks and plugins import all of them from here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from preflight._util import toml
from preflight._util.spans import Span
from preflight._util.usage_error import nearest
from preflight.model.configuration import Configuration as Configuration
from preflight.model.configuration import InjectedFault as InjectedFault
from preflight.model.configuration import SmokeOptions as SmokeOptions
from preflight.model.configuration import claims_of_command
from preflight.model.job import Claim, Job, Known, LeftOut
from preflight.model.requests import EventRecord as EventRecord
from preflight.model.requests import FactRecord as FactRecord
from preflight.model.requests import FactRow as FactRow
from preflight.model.requests import Facts as Facts
from preflight.model.requests import Observed as Observed
from preflight.model.requests import Unavailable as Unavailable

#: The version of the recording format; earlier ones can be read as well.
SCHEMA_VERSION: Literal[4] = 4


@dataclass(frozen=True, slots=True)
class StageRecord:
    """The start and end of a stage, or the reason why it did not run.

    Args:
        name: `gather`, `open`, `node`, `link` or `smoke`.
        started_s, finished_s: seconds since the run began.
        skipped: why it did not run or finish; empty if it did.
    """

    name: str
    started_s: float
    finished_s: float
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class UnplannedCheck:
    """A check that crashed while planning for a job, so that its facts were never requested."""

    id: str
    job: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Recording:
    """Claims, configuration, time, versions, requests, facts and events of one run.

    Args:
        created: the wall time, ISO 8601 with offset.
        interrupted: the exit code of a run that was interrupted; otherwise 0.
        smoke_options: the user's options for the smoke run that the job does not state.
        left_out: the files of folders that were not read, and why.
    """

    jobs: tuple[Job, ...]
    created: str
    tool_version: str
    configuration: Configuration = field(default_factory=Configuration)
    verb: str = "lint"
    executor: str = ""
    context_provenance: str = ""
    origin: Origin | None = None
    cluster: Cluster | None = None
    nodes: tuple[NodeRecord, ...] = ()
    stages: tuple[StageRecord, ...] = ()
    facts: Sequence[FactRecord] = ()
    events: tuple[EventRecord, ...] = ()
    unplanned: tuple[UnplannedCheck, ...] = ()
    interrupted: int = 0
    smoke_options: SmokeOptions = field(default_factory=SmokeOptions)
    left_out: tuple[LeftOut, ...] = ()
    schema_version: Literal[4] = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.interrupted not in (0, 130, 143):
            raise ValueError(f"interrupted must be 130, 143, or 0 for a complete run, not {self.interrupted}")


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
        problem_kind: the kind of problem: `timeout`, `unreachable` and the like; `HEAD_PAUSED` if the head's own
            pause ended the agent, which does not indicate a fault of the node.
        host: the node's own host name.
        python: version of the agent's Python.
        user: the agent's user.
        boot_id: identifies a machine under all of its names, until it reboots.
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
    """The source of the list of nodes, and the reason for the choice of executor.

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
    """A scheduler's data about one of its nodes, even if the job does not run there.

    Args:
        has: its capacity by resource, in base units (cores, bytes, pieces).
        free: its unallocated capacity; None if unknown.
        closed: why it does not accept new work; empty if it does.
    """

    name: str
    has: Mapping[str, float]
    free: Mapping[str, float] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    closed: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """A scheduler partition and its limits; None or empty means no limit.

    `max_time` is in the scheduler's format. Without a list of accounts or qualities of service, all are allowed.
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
        """Return every expected node, in rank order."""
        return tuple(record.node for record in self.records)

    @functools.cached_property
    def reached(self) -> tuple[Node, ...]:
        """Return the nodes whose agent answered."""
        return tuple(record.node for record in self.records if not record.problem)

    @property
    def master(self) -> Node | None:
        """Return the node of rank 0."""
        return self.records[0].node if self.records else None


_PROPERTIES = toml.beside(__file__, "properties.toml")
#: Properties that may be required of a node, and the meaning of their values.
PROPERTIES: dict[str, str] = {name: row["meaning"] for name, row in _PROPERTIES.items()}
VERSIONS, NUMBERS = (
    tuple(name for name, row in _PROPERTIES.items() if row["kind"] == kind) for kind in ("version", "number")
)

#: The value of a property of a component that a node does not have.
NONE = "none"

_REQUIREMENT = re.compile(r"\s*([A-Za-z][\w-]{0,40})\s*(>=|==|=)\s*(\S.{0,200}?)\s*", re.ASCII)
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement on every node.

    Args:
        name: one of `PROPERTIES`.
        comparison: `>=` if the value is the least that is accepted; `=` if it may be a part: of a version its first
            numbers, of a text any part; `==` if it must be the whole value.
        value: as the user wrote it.
    """

    name: str
    comparison: Literal["=", "==", ">="]
    value: str

    @property
    def text(self) -> str:
        """Return the requirement as on the command line: `driver>=535`."""
        return f"{self.name}{self.comparison}{self.value}"


def parse_requirement(text: str) -> Requirement:
    """Parse `gpus=8` or `driver>=535`. Raises ValueError with the reason and the known names."""
    found = _REQUIREMENT.fullmatch(text)
    if found is None:
        raise ValueError("expected NAME=VALUE, NAME==VALUE or NAME>=VALUE, as in gpus=8 or driver>=535")
    name, comparison, value = found.groups()
    name = name.lower().replace("_", "-")
    if name not in PROPERTIES:
        near = nearest(name, PROPERTIES)
        hint = f"did you mean {near!r}? " if near else ""
        raise ValueError(f"unknown property {name!r}; {hint}known: {', '.join(PROPERTIES)}")
    if name in NUMBERS and not _NUMBER.fullmatch(value):
        raise ValueError(f"{name} is a number ({PROPERTIES[name]}), not {value!r}")
    if comparison == ">=" and name not in (*NUMBERS, *VERSIONS):
        raise ValueError(f"{name} is a text and has no order; use {name}={value}")
    if name in VERSIONS and not value[0].isdigit() and value != NONE:
        raise ValueError(f"{name} is a version, which begins with a digit, or {NONE!r}, not {value!r}")
    return Requirement(name, comparison, value)  # type: ignore[arg-type]


def job_of_nodes(requirements: Sequence[Requirement], golden: str = "", profile: Sequence[Claim] = ()) -> Job:
    """Return the job of a run that examines only nodes: it states the user's requirements on them.

    Args:
        golden: the node whose properties all others must have; empty for none.
        profile: requirements that a file states, as `requirement_claim` makes them.
    """
    words = [("node_requirement", item.text, f"--expect {item.text}") for item in requirements]
    words += [("golden_node", golden, f"--golden {golden}")] if golden else []
    line = " ".join(("preflight nodes", *(spelling for _, _, spelling in words)))
    claims = [*claims_of_command(line, [("examines_nodes", True, line), *words]), *profile]
    # Checks of GPUs compare a node's GPUs with the number that the job uses.
    for claim, item in zip(claims[1:], requirements, strict=False):
        if item.name == "gpus" and float(item.value).is_integer():
            claims.append(
                Claim("gpus_per_node", Known(int(float(item.value))), claim.span, claim.spelling, claim.source)
            )
    return Job("nodes", claims=tuple(claims))


def requirement_claim(requirement: Requirement, span: Span) -> Claim:
    """Return the claim that a file requires something of every node."""
    return Claim("node_requirement", Known(requirement.text), span, requirement.text, "profile")
