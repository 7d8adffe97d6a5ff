"""What the job's own files and the nodes' data say of unequal work: steps then differ on machines that are alike.

The smoke run gives every rank the same work, so that what it finds slow is the machine. A job that gives its ranks
batches or shards of different size has stragglers all the same, and no machine is to blame.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Job, Scope
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Severity, Status
from preflight.recording import Facts, Fleet
from preflight_checks.context.copies import odd_sizes
from preflight_checks.demands import known_int, scopes
from preflight_checks.majority import split
from preflight_checks.storage.shards import too_few_data_files

#: Sizes that decide how much one rank computes in a step.
_OF_A_STEP = lazy_pattern(r"batch|accumulat|seq.*len", re.IGNORECASE)
_QUANTITIES = ("micro_batch_size_per_gpu", "gradient_accumulation_steps")


def unequal_work(job: Job, fleet: Fleet, facts: Facts) -> tuple[str, ...]:
    """One sentence without its full stop for each thing that makes ranks work unequally."""
    return tuple(dict.fromkeys((*_of_claims(job, fleet), *_of_copies(job, facts), *_of_data(job, fleet, facts))))


def _of_claims(job: Job, fleet: Fleet) -> Iterator[str]:
    """Sizes of a step that the linted files state differently for different nodes."""
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
                yield f"the job's files set {quantity} to {who.spoken}"


def _of_copies(job: Job, facts: Facts) -> Iterator[str]:
    for file, name, who in odd_sizes(job, facts):
        if _OF_A_STEP.search(name.rpartition(".")[2]):
            yield f"{name} in the nodes' own copies of {file} is {who.spoken} (BAT030)"


def _of_data(job: Job, fleet: Fleet, facts: Facts) -> Iterator[str]:
    for verdict in too_few_data_files.judge(job, fleet, facts):
        if verdict.status is Status.FAIL and verdict.severity is not Severity.INFO:
            yield f"{verdict.message} (DAT014)"
