"""The shape of a plan, for reporters and for programs that read its JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from preflight._util.json_output import schema_of
from preflight._util.validation import type_adapter

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a value.

    Args:
        path: relative to the root.
        line: counted from 1.
    """

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class OverriddenValue:
    """A value that another value overrides.

    Args:
        spelling: as written.
        place: its location.
    """

    spelling: str
    place: Place


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a launch.

    Args:
        name: of the quantity, variable or argument.
        value: formatted; all of them if there are several.
        known: whether the files determine it.
        spelling: as written.
        place: its location.
        overrides: the values that it overrides.
        unit: of the quantity; empty if it has none.
    """

    name: str
    value: str
    known: bool
    spelling: str
    place: Place
    overrides: tuple[OverriddenValue, ...] = ()
    unit: str = ""


@dataclass(frozen=True, slots=True)
class RankRow:
    """Ranks of one role on one node, or on several nodes that differ only in their index.

    Args:
        role: `rank`, `server`, `worker` or `trainer`.
        node: the node's index, as `0`, `1-3`, or `i` where the number of nodes is unknown.
        host: its name or address; empty where the files do not give it.
        ranks: global indices, as `0-7`; `8i to 8i+7` where the node's index is unknown.
        local_ranks: indices on the node, as `0-7`.
        devices: as the ranks see them, `GPU 0-7`; empty if they are unknown to use any.
    """

    role: str
    node: str
    host: str
    ranks: str
    local_ranks: str
    devices: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of the parallel grid.

    Args:
        name: `DP`, `PP`, `CP`, `TP` or `EP`.
        size: ranks along it.
        place: where the size is set; null for one derived from others.
    """

    name: str
    size: int
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """How the ranks are divided among the kinds of parallelism.

    Args:
        axes: outermost first. Expert parallelism takes its ranks from the data-parallel ones.
        equation: the axes as a product.
        cells: for frameworks whose order is known, the ranks of each pipeline stage (row) and replica (column).
    """

    axes: tuple[Axis, ...]
    equation: str
    cells: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one optimizer step.

    Args:
        equation: global batch = micro batch x accumulation x data-parallel ranks, with names instead of unknown
        numbers.
        holds: whether both sides are equal; null if a number is unknown.
        places: where its numbers are set.
    """

    equation: str
    holds: bool | None
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of the memory used on a GPU.

    Args:
        name: `weights`, `gradients`, `optimizer states` or `activations`.
        size_bytes: a lower bound in bytes.
        formula: its computation, with numbers.
    """

    name: str
    size_bytes: int
    formula: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address at which processes of the job connect.

    Args:
        purpose: its use.
        address: `host:port`; unknown parts are described.
        dialled_by: who connects to it.
        place: where it is set.
    """

    purpose: str
    address: str
    dialled_by: str
    place: Place


@dataclass(frozen=True, slots=True)
class OpenQuantity:
    """A quantity that the files do not determine.

    Args:
        name: of the quantity.
        reason: why it is undetermined.
        place: its location.
        decided_by: the option that sets it for this plan; empty if there is none.
    """

    name: str
    reason: str
    place: Place
    decided_by: str = ""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One command that starts ranks.

    Args:
        id: unique in the job.
        launcher: `torchrun`, `deepspeed`, ...
        program: what the ranks run, relative to the root; empty where it is unknown.
        place: of the command.
        started_at: where the script that holds it is started, outermost first.
        inside: programs around it, outermost first: `srun`, `apptainer`.
        condition: under which it runs; empty for always.
        concurrent: later commands run at the same time.
        starts_one: it starts one process of the job; other launches start the others.
        nodes, processes_per_node, world_size: null if unknown.
        ranks: their nodes and devices.
        rank_arguments: arguments that the launcher puts before them, with `{local_rank}` for the number of each rank.
        arguments: of the program; null for a word that is unknown.
        variables: the environment of the ranks.
        kept_variables: names of variables that the launcher does not pass to other hosts; only ranks on its own machine
            get them.
        settings: every other value that was read.
        grid, batch: null if unknown.
        memory: parts of the lower bound of each GPU's memory; empty where the model's size is unknown.
        endpoints: addresses, and which process dials which.
        interfaces: variables that choose network interfaces.
        paths: data, checkpoints and other folders.
        servers: the part of each table that a parameter server holds; empty if there are none or nothing is known.
        open: quantities that the files do not determine.
    """

    id: str
    launcher: str
    program: str
    place: Place
    started_at: tuple[Place, ...] = ()
    inside: tuple[str, ...] = ()
    condition: str = ""
    concurrent: bool = False
    starts_one: bool = False
    nodes: Setting | None = None
    processes_per_node: Setting | None = None
    world_size: Setting | None = None
    ranks: tuple[RankRow, ...] = ()
    rank_arguments: tuple[str, ...] = ()
    arguments: tuple[str | None, ...] = ()
    variables: tuple[Setting, ...] = ()
    kept_variables: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    grid: Grid | None = None
    batch: Batch | None = None
    memory: tuple[MemoryPart, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    interfaces: tuple[Setting, ...] = ()
    paths: tuple[Setting, ...] = ()
    servers: str = ""
    open: tuple[OpenQuantity, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """The resources that the job requests from the scheduler, and their cost if it runs until its time limit.

    Args:
        nodes, gpus_per_node: null if unknown.
        time_limit_s: seconds; null if unknown.
        gpu_hours: nodes x GPUs x time limit.
        cost: GPU-hours times the price; null without a price.
        places: where the numbers are set.
    """

    nodes: int | None = None
    gpus_per_node: int | None = None
    time_limit_s: int | None = None
    gpu_hours: float | None = None
    cost: float | None = None
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job.

    Args:
        name: of the job.
        files: read, relative to the root.
        launches: in the order of the files.
        request: of the scheduler.
        unread: files that the job refers to but that were not read, each with the reason.
        incomplete: whether a selected file was not read to its end, so that the plan may lack launches and values.
    """

    name: str
    files: tuple[str, ...]
    launches: tuple[LaunchPlan, ...]
    request: ResourceRequest = field(default_factory=ResourceRequest)
    unread: tuple[str, ...] = ()
    incomplete: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """All jobs of the given paths.

    Args:
        version: of preflight.
        jobs: by name.
        given: variables that were set for this plan, as `NAME=VALUE`.
        assumed: variables that this plan assumes to be unset, each with the default from the files.
        schema_version: the version of this document's schema.
    """

    version: str
    jobs: tuple[JobPlan, ...]
    given: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION


def schema() -> dict[str, Any]:
    return schema_of(type_adapter(Plan), "preflight plan")
