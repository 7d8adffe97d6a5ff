"""A recording: everything a verdict depends on, so that `judge` needs no cluster.

Live `check` makes a recording and then judges it; nothing reaches a verdict on another way. What a recording is made of
has its own modules; rules, checks and plugins find all of it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from preflight.configuration import Configuration as Configuration
from preflight.facts import Facts as Facts
from preflight.facts import Seen as Seen
from preflight.job import Job
from preflight.lazy.dataclasses import dataclass
from preflight.nodes import Cluster as Cluster
from preflight.nodes import ClusterNode as ClusterNode
from preflight.nodes import Fleet as Fleet
from preflight.nodes import Node as Node
from preflight.nodes import NodeRecord as NodeRecord
from preflight.nodes import Origin as Origin
from preflight.nodes import Partition as Partition
from preflight.observation import EventRecord as EventRecord
from preflight.observation import FactRecord as FactRecord
from preflight.observation import Observed as Observed
from preflight.observation import Unavailable as Unavailable
from preflight.wish import Drill as Drill
from preflight.wish import Wish as Wish

#: The form in which recordings are saved; the earlier ones are read as well.
SCHEMA_VERSION: Literal[3] = 3


@dataclass(frozen=True, slots=True)
class StageRecord:
    """When a stage ran, or why it did not.

    Args:
        name: `gather`, `open`, `node`, `link` or `smoke`.
        started_s, finished_s: seconds since the run began.
        skipped: why it did not run, or not to its end; empty where it did.
    """

    name: str
    started_s: float
    finished_s: float
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class UnplannedCheck:
    """A check that crashed while planning for a job, so that its facts were never asked for."""

    id: str
    job: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Recording:
    """Claims, configuration, time, versions, requests, facts and events of one run.

    `created` is the wall time in ISO 8601 with offset; `interrupted` the exit code of a run ended from outside;
    `wish` what the user asked of the smoke run beside what the job says.
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
    wish: Wish = field(default_factory=Wish)
    schema_version: Literal[1, 2, 3] = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.interrupted not in (0, 130, 143):
            raise ValueError(f"interrupted is 130 or 143, or 0 for a run to its end, not {self.interrupted}")
