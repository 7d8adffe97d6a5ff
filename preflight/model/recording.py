"""A recording: everything that a verdict depends on, so that `judge` needs no cluster.

A live `check` makes a recording and then judges it; the verdict depends on nothing else. The parts of a recording have
their own modules; rules, checks and plugins import all of them from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from preflight.model.configuration import Configuration as Configuration
from preflight.model.configuration import InjectedFault as InjectedFault
from preflight.model.configuration import SmokeOptions as SmokeOptions
from preflight.model.job import Job, LeftOut
from preflight.model.nodes import Cluster as Cluster
from preflight.model.nodes import ClusterNode as ClusterNode
from preflight.model.nodes import Fleet as Fleet
from preflight.model.nodes import Node as Node
from preflight.model.nodes import NodeRecord as NodeRecord
from preflight.model.nodes import Origin as Origin
from preflight.model.nodes import Partition as Partition
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
    """When a stage ran, or why it did not.

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
        interrupted: the exit code of a run that was interrupted; else 0.
        smoke_options: what the user requested of the smoke run beyond what the job states.
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
