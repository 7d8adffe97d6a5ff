"""The variables of the job that choose network interfaces."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.model.job import Claim, Job, Scope, Unresolved
from preflight.plugins.memo import memoize
from preflight_checks.requirements.claims import scopes


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
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "HOROVOD_GLOO_IFACE",
    "FI_TCP_IFACE",
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_btl_tcp_if_exclude",
    "OMPI_MCA_oob_tcp_if_include",
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
