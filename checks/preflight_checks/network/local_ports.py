"""Free ports for a smoke run that has all nodes on one machine, if the job's files name no port.

On the job's own nodes the default port is right, because nothing else may use it. On one machine, two such runs would
collide on it and each would report the other. Free ports are observed, so that a recording plans and judges the same
run again.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.model.requests import Request, probe_name
from preflight_checks.probes.free_ports import free_ports
from preflight_checks.requirements.endpoints import is_ps, store_endpoints
from preflight_checks.requirements.hosts import is_single_machine

#: One port for the store or each parameter server; no run on one machine has more servers.
_MAX_PORTS = 32


def plan_free_ports(job: Job, fleet: Fleet) -> Iterator[Request]:
    """Request free ports, if all nodes are on one machine and the job's files leave a port unset."""
    if not is_single_machine(fleet) or not fleet.reached:
        return
    endpoints = store_endpoints(job)
    if is_ps(job) or not endpoints or not endpoints[0].named:
        yield Request(probe_name(free_ports), fleet.reached[0].name, {"count": _MAX_PORTS, "job": job.name})


def free_ports_of(job: Job, fleet: Fleet, facts: Facts) -> tuple[int, ...]:
    """The ports that this job's smoke run may use freely; none if nodes are separate machines."""
    if not is_single_machine(fleet):
        return ()
    return tuple(
        port
        for seen in facts.each(free_ports)
        if isinstance(seen.fact, Observed) and seen.params.get("job") == job.name
        for port in seen.fact.value.ports
    )
