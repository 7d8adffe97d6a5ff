"""The job's parameters for the smoke run of its servers, cut to what the nodes have room for (`--profile-model`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from preflight.model.job import Claim, Job
from preflight.model.recording import Facts
from preflight_checks.probes.server_place import server_place
from preflight_checks.servers.layout import parameters_of
from reference_trainer.ps.partition import FLOAT_BYTES, product

#: The model of a run takes at most this much: a step over 10 Gbit/s takes 30 ms then. A worker compares all of it with
#: known values of every worker, which takes 0.2 s of processor time for each of them.
MAX_BYTES = 16 << 20
#: Each process of a node may hold the model this often in the memory that is available there: weights, gradients, what
#: is sent and what arrives make four, and as much again is left for others.
COPIES = 8


@dataclass(frozen=True, slots=True)
class JobShape:
    """The job's parameters as the run has them: the first size of each is divided by `divisor`.

    `stated_bytes` is the size of the job's own dense parameters, all of which each step pushes and pulls.
    """

    dense: tuple[tuple[int, ...], ...]
    tables: tuple[tuple[int, int], ...]
    divisor: int
    stated_bytes: int
    claims: tuple[Claim, ...]

    @property
    def model(self) -> dict[str, object]:
        """The task of the reference trainer (`reference_trainer.ps.tasks.from_params`)."""
        return {
            "dense": [[f"parameter {number}", list(shape)] for number, shape in enumerate(self.dense)],
            "tables": [[f"table {number}", rows, width] for number, (rows, width) in enumerate(self.tables)],
        }


def job_shape(job: Job, facts: Facts, process_nodes: Iterable[str]) -> JobShape | None:
    """The shape of a run whose processes are on `process_nodes`; None if the files do not state all sizes."""
    stated = parameters_of(job)
    if stated is None:
        return None
    limit = min([MAX_BYTES, *(room // COPIES for room in _room(facts, process_nodes))])
    whole = sum(map(product, (*stated.dense, *stated.tables))) * FLOAT_BYTES
    divisor = max(1, -(-whole // max(1, limit)))
    return JobShape(
        tuple((-(-shape[0] // divisor), *shape[1:]) for shape in stated.dense),
        tuple((-(-rows // divisor), width) for rows, width in stated.tables),
        divisor,
        sum(map(product, stated.dense)) * FLOAT_BYTES,
        stated.claims,
    )


def _room(facts: Facts, process_nodes: Iterable[str]) -> list[int]:
    """The available memory of each node for one of its processes, in bytes; nodes that did not say are left out."""
    places = facts.observed(server_place)
    return [
        available // count
        for node, count in Counter(process_nodes).items()
        if node in places and (available := places[node].memory_free_bytes)
    ]
