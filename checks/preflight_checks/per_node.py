"""How much of one node the job uses: ranks, loader workers, processes; and how many ranks there are in all."""

from __future__ import annotations

from preflight.job import Claim, Job
from preflight.recording import Fleet
from preflight_checks.demands import largest

MIB, GIB = 2**20, 2**30


def ranks_of_node(job: Job) -> tuple[int, tuple[Claim, ...]]:
    """Ranks on each node, and the claims that say so; one where nothing does."""
    return largest(job, "processes_per_node") or largest(job, "tasks_per_node") or (1, ())


def workers_of_rank(job: Job) -> tuple[int, tuple[Claim, ...]]:
    """Loader workers of each rank, and the claims that say so."""
    return largest(job, "dataloader_workers") or (0, ())


def processes_of_node(job: Job) -> tuple[int, tuple[Claim, ...]]:
    """Ranks of a node together with their loader workers."""
    ranks, claims = ranks_of_node(job)
    workers, more = workers_of_rank(job)
    return ranks * (1 + workers), (*claims, *more)


def world_of(job: Job, fleet: Fleet) -> tuple[int, tuple[Claim, ...]]:
    """Ranks of the whole job: as said, or as many as its nodes hold."""
    said = largest(job, "world_size")
    if said is not None:
        return said
    ranks, claims = ranks_of_node(job)
    return ranks * max(1, len(fleet.nodes)), claims


def known(value: int | None) -> float:
    """A limit for comparison, where None stands for none."""
    return float("inf") if value is None else value


def size(value: float | None) -> str:
    """`64 MiB`, `1.5 GiB`, `unlimited`."""
    if value is None or value == float("inf"):
        return "unlimited"
    if value >= GIB:
        return f"{value / GIB:.1f} GiB"
    return f"{value / MIB:.0f} MiB" if value >= MIB or not value else f"{value / 1024:.0f} KiB"
