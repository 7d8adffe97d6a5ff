"""Signs of unequal work in the job's files and the nodes' data: steps then differ on equal machines.

The smoke run gives every rank the same work, so anything slow is the machine. A job that gives its ranks batches or
shards of different sizes has stragglers without any slow machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Severity, Status
from preflight.model.job import Job, Scope
from preflight.model.recording import Facts, Fleet
from preflight_checks.comparison import split
from preflight_checks.context.copies import odd_sizes
from preflight_checks.requirements.claims import known_int, scopes
from preflight_checks.storage.shards import too_few_data_files

#: Sizes that determine the work of one rank in a step.
_OF_A_STEP = re.compile(r"batch|accumulat|seq.*len", re.IGNORECASE)
_QUANTITIES = ("micro_batch_size_per_gpu", "gradient_accumulation_steps")


def unequal_work(job: Job, fleet: Fleet, facts: Facts) -> tuple[str, ...]:
    """One sentence (without a full stop) per cause of unequal work."""
    return tuple(
        dict.fromkeys((*_unequal_claims(job, fleet), *_unequal_copies(job, facts), *_unequal_data(job, fleet, facts)))
    )


def _unequal_claims(job: Job, fleet: Fleet) -> Iterator[str]:
    """Sizes of a step that the linted files set differently for different nodes."""
    for quantity in _QUANTITIES:
        for scope in scopes(job):
            stated = {
                node.name: value
                for node in fleet.nodes
                if node.name in job.named_nodes
                and (value := known_int(job, quantity, Scope(scope.launch, scope.role, node.name))) is not None
            }
            who = split(stated)
            if who is not None and who.odd:
                yield f"the job's files set {quantity} to {who.description}"


def _unequal_copies(job: Job, facts: Facts) -> Iterator[str]:
    for file, name, who in odd_sizes(job, facts):
        if _OF_A_STEP.search(name.rpartition(".")[2]):
            yield f"{name} in the nodes' own copies of {file} is {who.description} (BAT030)"


def _unequal_data(job: Job, fleet: Fleet, facts: Facts) -> Iterator[str]:
    for verdict in too_few_data_files.judge(job, fleet, facts):
        if verdict.status is Status.FAIL and verdict.severity is not Severity.INFO:
            yield f"{verdict.message} (DAT014)"
