"""The request in the header of a batch script, and Slurm's partitions."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.model.job import Claim, Job, Known, is_whole_number
from preflight.model.recording import Cluster, Fleet, Partition

COST = "nothing on nodes; one query to the controller"
NOT_SLURM = "Slurm did not report its partitions"


@dataclass(frozen=True, slots=True)
class RequestedOption:
    """One option of the header: the value as written, and its location."""

    value: str
    claim: Claim


def requested_options(job: Job) -> dict[str, RequestedOption]:
    """The request of the header, by the long name of the option; unresolved values are left out."""
    found: dict[str, RequestedOption] = {}
    for claim in job.about("batch_option"):
        if isinstance(claim.value, Known):
            name, _, value = str(claim.value.value).partition("=")
            found[name] = RequestedOption(value, claim)
    return found


def slurm_of(fleet: Fleet) -> Cluster | None:
    return fleet.cluster if fleet.cluster is not None and fleet.cluster.kind == "slurm" else None


def partitions_of(cluster: Cluster, requested: dict[str, RequestedOption]) -> tuple[Partition, ...]:
    """The partitions that the job may run in; Slurm starts it in the first available one."""
    if "--partition" in requested:
        names = requested["--partition"].value.split(",")
        return tuple(item for item in cluster.partitions if item.name in names)
    return tuple(item for item in cluster.partitions if item.is_default)


def min_nodes(requested: dict[str, RequestedOption]) -> int | None:
    text = requested["--nodes"].value.partition("-")[0] if "--nodes" in requested else ""
    return int(text) if is_whole_number(text) else None
