"""What the header of a batch script asks Slurm for, and what Slurm says that it has."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Known
from preflight.lazy.dataclasses import dataclass
from preflight.recording import Cluster, Facts, Fleet, Partition
from preflight.request import Request

COST = "nothing on nodes; the controller is asked once"
NOT_SLURM = "Slurm did not say what it has"


def nothing(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """The plan of a check that needs no node."""
    yield from ()


@dataclass(frozen=True, slots=True)
class Asked:
    """One option of the header: the value as written, and where it stands."""

    value: str
    claim: Claim


def asked_of(job: Job) -> dict[str, Asked]:
    """What the header asks for, by the long name of the option; an open value is left out."""
    found: dict[str, Asked] = {}
    for claim in job.about("batch_option"):
        if isinstance(claim.value, Known):
            name, _, value = str(claim.value.value).partition("=")
            found[name] = Asked(value, claim)
    return found


def slurm_of(fleet: Fleet) -> Cluster | None:
    return fleet.cluster if fleet.cluster is not None and fleet.cluster.kind == "slurm" else None


def partitions_of(cluster: Cluster, asked: dict[str, Asked]) -> tuple[Partition, ...]:
    """Those the job may run in; Slurm starts it in whichever of several comes first."""
    if "--partition" in asked:
        names = asked["--partition"].value.split(",")
        return tuple(item for item in cluster.partitions if item.name in names)
    return tuple(item for item in cluster.partitions if item.is_default)


def least_nodes(asked: dict[str, Asked]) -> int | None:
    text = asked["--nodes"].value.partition("-")[0] if "--nodes" in asked else ""
    return int(text) if text.isdigit() else None
