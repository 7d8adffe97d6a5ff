"""The communication backends that the job uses, and the claims that make GPUs necessary."""

from __future__ import annotations

from preflight.analysis import job_backend
from preflight.model.job import Claim, Job, Known
from preflight.plugins.memo import memoize
from preflight_checks.requirements.claims import claims_in_force, scopes


@memoize
def backends(job: Job) -> tuple[frozenset[str], tuple[Claim, ...]]:
    """The process-group backends that the job may use (`gloo`, `nccl`, `ps` ...), with the claims that state them.

    Empty if nothing states one: torch then uses gloo for tensors on the CPU and nccl for those on GPUs.
    """
    stated, found = job_backend.stated_backends(job, scopes(job))
    names, claims = set(stated), list(found)
    for scope in scopes(job):
        if job.value("ps_mode", scope) == Known(True):
            names.add("ps")
            claims.extend(claims_in_force(job, "ps_mode", scope))
    return frozenset(names), tuple(dict.fromkeys(claims))


def backend_claims(job: Job) -> tuple[Claim, ...]:
    """The claims that name the process-group backends."""
    return backends(job)[1]


@memoize
def asked_backend(job: Job) -> tuple[str, tuple[Claim, ...]]:
    """The backend that the job certainly uses (`nccl`, `gloo`, or empty), with the claims that say so."""
    return job_backend.asked_backend(job, scopes(job))


@memoize
def gpu_claims(job: Job) -> tuple[Claim, ...]:
    """The claims that make GPUs necessary; empty if the job can run without them."""
    names, claims = backends(job)
    found = (claim for claim in claims if "nccl" in names and claim.quantity == "backend")
    return tuple(dict.fromkeys((*found, *job_backend.gpu_requests(job, scopes(job)))))
