"""Values of a job's claims, per launch scope: also its communication backends and its interface filters."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.analysis import job_backend
from preflight.model.job import WHOLE_JOB, Claim, Job, Known, Scope, Strength, Unresolved
from preflight.model.job.value import known_number
from preflight.model.job.value import known_text as text_of
from preflight.plugins.authoring import memoize


@memoize
def scopes(job: Job) -> tuple[Scope, ...]:
    """The scopes to read the job in: one per launch, or the whole job when no launch was found."""
    return tuple(launch.scope for launch in job.launches) or (WHOLE_JOB,)


def known_int(job: Job, quantity: str, scope: Scope = WHOLE_JOB) -> int | None:
    """The value of `quantity` in `scope` if it is one known whole number, else None."""
    return known_number(job.value(quantity, scope))


def known_text(job: Job, quantity: str, scope: Scope = WHOLE_JOB) -> str | None:
    """The value of `quantity` in `scope` if it is one known text, else None."""
    return text_of(job.value(quantity, scope))


def names_value(claim: Claim) -> bool:
    """Whether the files state the value of a claim, so that it is not merely its launcher's default."""
    return claim.strength > Strength.DEFAULT or any(str(value) in claim.spelling for value in claim.alternatives)


@memoize
def largest(job: Job, quantity: str) -> tuple[int, tuple[Claim, ...]] | None:
    """The largest known value of `quantity` in any launch, with the claims that state it."""
    best: tuple[int, tuple[Claim, ...]] | None = None
    for scope in scopes(job):
        value = known_int(job, quantity, scope)
        if value is not None and (best is None or value > best[0]):
            best = (value, job.value_claims(quantity, scope))
    return best


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
            claims.extend(job.value_claims("ps_mode", scope))
    return frozenset(names), tuple(dict.fromkeys(claims))


def backend_claims(job: Job) -> tuple[Claim, ...]:
    """The claims that name the process-group backends."""
    return backends(job)[1]


@memoize
def asked_backend(job: Job) -> tuple[str, tuple[Claim, ...]]:
    """The backend that the job certainly uses (`nccl`, `gloo`, or empty), with the claims that state it."""
    return job_backend.asked_backend(job, scopes(job))


@memoize
def gpu_claims(job: Job) -> tuple[Claim, ...]:
    """The claims that make GPUs necessary; empty if the job can run without them."""
    names, claims = backends(job)
    found = (claim for claim in claims if "nccl" in names and claim.quantity == "backend")
    return tuple(dict.fromkeys((*found, *job_backend.gpu_requests(job, scopes(job)))))


@dataclass(frozen=True, slots=True)
class Filter:
    """A variable that chooses interfaces, with its value on one node.

    `origin` is its source if not the job's files; `certain`: the ranks certainly see it.
    """

    variable: str
    value: str
    claims: tuple[Claim, ...]
    origin: str = ""
    certain: bool = True


FILTER_VARIABLES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "FI_TCP_IFACE"),
    *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_oob_tcp_if_include"),
)


def filters(job: Job, node: str = "") -> tuple[Filter, ...]:
    """The interface filters in force on `node`, each variable and value once."""
    return _filters(job, node if node in job.named_nodes else "")


@memoize
def _filters(job: Job, node: str) -> tuple[Filter, ...]:
    found: dict[tuple[str, str], Filter] = {}
    for variable in FILTER_VARIABLES:
        for scope in scopes(job):
            scope = Scope(scope.launch, scope.role, node)
            for claim in job.setting(f"env.{variable}", scope):
                for value in claim.alternatives:
                    if isinstance(value, str) and value:
                        found.setdefault((variable, value), Filter(variable, value, (claim,)))
    return tuple(found.values())


def filter_of(job: Job, variable: str, node: str = "") -> Filter | None:
    """The filter of `variable` on `node`; None if it has no value or several."""
    found = [item for item in filters(job, node) if item.variable == variable]
    return found[0] if len(found) == 1 else None


@memoize
def filter_unresolved(job: Job, variable: str) -> bool:
    """Whether the files set `variable` to a value that is only known at run time."""
    return any(
        isinstance(claim.value, Unresolved) for scope in scopes(job) for claim in job.setting(f"env.{variable}", scope)
    )
