"""Defines a recording, which contains everything that a verdict depends on, and its nodes and their properties."""

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

#: The version of the recording format.
SCHEMA_VERSION: Literal[4] = 4


@dataclass(frozen=True, slots=True)
class StageRecord:
    """The start and end of a stage, or the reason why it did not run.

    Args:
        name: `gather`, `open`, `node`, `link` or `smoke`.
        started_s, finished_s: the start and the end, in seconds since the run began.
        skipped: the reason why the stage did not run, or did not finish; empty if it finished.
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
        created: the wall time, in ISO 8601 with offset.
        interrupted: the exit code of a run that was interrupted; otherwise 0.
        smoke_options: the user's options for the smoke run, which the job does not state.
        left_out: the files in folders that were not read, with the reasons.
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


#: The kind of a node's problem if a pause of the head's own process ended the agent on the node.
HEAD_PAUSED = "head-paused"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the job.

    Args:
        name: the name of the node in the report.
        index: the position of the node in rank order, from 0.
        address: the address to which the executor connects, as the user wrote it.
        slots: the number of ranks in a host file; null if it states none.
    """

    name: str
    index: int
    address: str = ""
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The result of connecting to a node.

    Args:
        node: the node.
        problem: a description of the problem; empty if the agent of the node answered.
        problem_kind: the kind of problem, as `timeout` or `unreachable`. `HEAD_PAUSED` means that a pause of the head's
            own process ended the agent, which does not indicate a fault of the node.
        host: the node's own host name.
        python: the version of the agent's Python.
        user: the user of the agent's process.
        boot_id: an identifier of the machine, equal under all of its names, that changes when it reboots.
        clock_offset_s: the time by which the clock of the node is ahead of the head's clock.
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
        source: `hosts` or `hostfile` if the user listed the nodes, `executor` for an allocation or a cluster, or `job`.
        words: the source as the user wrote it, or as it is shown: `--hosts node[1-4]`, `Slurm job 71
            (SLURM_JOB_NODELIST)`.
        because: the reason for the choice of the executor: `--on slurm`, `SLURM_JOB_ID=71 is set`.
        problem: why there are no nodes; empty if there are some.
        problem_kind: the kind of the problem, as for a node.
        detail: the raw evidence of the problem.
        notes: the executor's messages about all nodes.
        named: the nodes that the user named, if none of them is available.
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
        name: the name of the node.
        has: its capacity by resource, in base units (cores, bytes, pieces).
        free: its unallocated capacity by resource; null if it is unknown.
        labels: its labels.
        closed: the reason why it accepts no new work; empty if it accepts work.
    """

    name: str
    has: Mapping[str, float]
    free: Mapping[str, float] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    closed: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """A scheduler partition and its limits; null or an empty text means that there is no limit.

    `max_time` is in the scheduler's format. If a list of accounts or qualities of service is empty, all are allowed.
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

    Args:
        kind: the scheduler: `kubernetes`, `ray` or `slurm`.
        nodes: the data about its nodes.
        unknown: messages about data that could not be queried, with the reasons.
        partitions: the data about its partitions.
        refusal: the reason why the scheduler would not accept the job's own request into its queue; empty if it would.
    """

    kind: str
    nodes: tuple[ClusterNode, ...] = ()
    unknown: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()
    refusal: str = ""


@dataclass(frozen=True)
class Fleet:
    """The expected nodes of the job, with the results of connecting to them.

    Args:
        records: the result for each expected node, in rank order.
        executor: the name of the transport to the nodes.
        origin: the source of the list of nodes.
        cluster: the scheduler's data about all its nodes.
        smoke_options: the user's options for the smoke run.
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
        comparison: `>=` if the value is the lowest accepted value; `==` if the value must be the whole value of the
            property; `=` if it may be a part: the first numbers of a version, or any part of a text.
        value: the value as the user wrote it.
    """

    name: str
    comparison: Literal["=", "==", ">="]
    value: str

    @property
    def text(self) -> str:
        """Return the requirement as on the command line: `driver>=535`."""
        return f"{self.name}{self.comparison}{self.value}"


def parse_requirement(text: str) -> Requirement:
    """Return the requirement in a text like `gpus=8` or `driver>=535`. Raises ValueError with the known names."""
    match = _REQUIREMENT.fullmatch(text)
    if match is None:
        raise ValueError("expected NAME=VALUE, NAME==VALUE or NAME>=VALUE, as in gpus=8 or driver>=535")
    name, comparison, value = match.groups()
    name = name.lower().replace("_", "-")
    if name not in PROPERTIES:
        nearest_name = nearest(name, PROPERTIES)
        hint = f"did you mean {nearest_name!r}? " if nearest_name else ""
        raise ValueError(f"unknown property {name!r}; {hint}known: {', '.join(PROPERTIES)}")
    if name in NUMBERS and not _NUMBER.fullmatch(value):
        raise ValueError(f"{name} is a number ({PROPERTIES[name]}), not {value!r}")
    if comparison == ">=" and name not in (*NUMBERS, *VERSIONS):
        raise ValueError(f"{name} is a text, which has no order; use {name}={value}")
    if name in VERSIONS and not value[0].isdigit() and value != NONE:
        raise ValueError(f"{name} is a version, which begins with a digit, or {NONE!r}, not {value!r}")
    return Requirement(name, comparison, value)  # type: ignore[arg-type]


def job_of_nodes(requirements: Sequence[Requirement], golden: str = "", profile: Sequence[Claim] = ()) -> Job:
    """Return the job of a run that examines only nodes. The job states the user's requirements on the nodes.

    Args:
        requirements: the requirements on the command line.
        golden: the node whose properties all other nodes must have; empty if there is none.
        profile: the claims of the requirements that a file states, from `requirement_claim`.
    """
    quantities = [
        ("node_requirement", requirement.text, f"--expect {requirement.text}") for requirement in requirements
    ]
    quantities += [("golden_node", golden, f"--golden {golden}")] if golden else []
    line = " ".join(("preflight nodes", *(spelling for _, _, spelling in quantities)))
    claims = [*claims_of_command(line, [("examines_nodes", True, line), *quantities]), *profile]
    # Checks of GPUs compare a node's GPUs with the number that the job uses.
    for claim, requirement in zip(claims[1:], requirements, strict=False):
        if requirement.name == "gpus" and float(requirement.value).is_integer():
            claims.append(
                Claim("gpus_per_node", Known(int(float(requirement.value))), claim.span, claim.spelling, claim.source)
            )
    return Job("nodes", claims=tuple(claims))


def requirement_claim(requirement: Requirement, span: Span) -> Claim:
    """Return the claim that a file requires something of every node."""
    return Claim("node_requirement", Known(requirement.text), span, requirement.text, "profile")
