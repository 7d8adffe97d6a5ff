"""The backend that the ranks of a job communicate over, as far as its claims state it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.model.job import Claim, Job, Scope
from preflight.model.job.value import known_number

#: Branches that a rank takes by the devices it finds, or by an option about them.
_BY_DEVICE = re.compile(r"(?i)cuda|gpu|cpu|device|accelerator|platform|backend|nccl|gloo|except")


def stated_backends(job: Job, scopes: Sequence[Scope]) -> tuple[frozenset[str], tuple[Claim, ...]]:
    """The backends that the job may use (`gloo`, `nccl`, `mpi` ...), with the claims that state them."""
    names: set[str] = set()
    claims: list[Claim] = []
    for scope in scopes:
        for claim in job.value_claims("backend", scope):
            for alternative in claim.alternatives:
                # `cpu:gloo,cuda:nccl` names one backend per kind of device.
                names.update(part.split(":")[-1].strip().lower() for part in str(alternative).split(","))
            claims.append(claim)
    return frozenset(names), tuple(dict.fromkeys(claims))


def asked_backend(job: Job, scopes: Sequence[Scope]) -> tuple[str, tuple[Claim, ...]]:
    """`nccl` or `gloo` if every rank of the job certainly uses it, with the claims that state it; otherwise empty.

    A job that requests GPUs and names no backend asks for NCCL, which torch takes for tensors on GPUs; so does one that
    falls back to another only without them (`nccl if torch.cuda.is_available() else gloo`).
    """
    names, stated = stated_backends(job, scopes)
    if any(not claim.alternatives for claim in stated):
        return "", stated
    sure = any(len(claim.alternatives) == 1 and not _BY_DEVICE.search(claim.condition) for claim in stated)
    for name in ("gloo", "nccl"):
        if names == {name} and sure:
            return name, stated
    requested = gpu_requests(job, scopes)
    if requested and (not stated or "nccl" in names):
        return "nccl", tuple(dict.fromkeys((*stated, *requested)))
    return "", stated


def gpu_requests(job: Job, scopes: Sequence[Scope]) -> tuple[Claim, ...]:
    """The claims that request GPUs from a scheduler or launcher."""
    found: list[Claim] = []
    for quantity in ("gpus_per_node", "gpus_per_task"):
        for scope in scopes:
            if (known_number(job.value(quantity, scope)) or 0) > 0:
                found.extend(job.value_claims(quantity, scope))
    return tuple(dict.fromkeys(found))
