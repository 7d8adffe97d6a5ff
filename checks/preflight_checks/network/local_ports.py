"""The ports of a smoke run whose nodes are all played by one machine, where the job's files name none.

A default port is right where the job's own nodes are: nobody else is to use it there. On a machine that only plays them
two such runs would meet at one port, and each would blame the other. What is free there is observed, so that a
recording plans and judges the same run again.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.recording import Facts, Fleet, Observed
from preflight.request import Request, probe_name
from preflight_checks.demands import one_machine, store_endpoints
from preflight_checks.probes.free_ports import free_ports
from preflight_checks.servers.server_layout import is_ps

#: One for the store, or one for each parameter server; more servers than that are not played by one machine.
_MOST = 32


def plan_free_ports(job: Job, fleet: Fleet) -> Iterator[Request]:
    """The request for free ports, where one machine plays all nodes and the job leaves a port open."""
    if not one_machine(fleet) or not fleet.reached:
        return
    endpoints = store_endpoints(job)
    if is_ps(job) or not endpoints or not endpoints[0].named:
        yield Request(probe_name(free_ports), fleet.reached[0].name, {"count": _MOST, "job": job.name})


def free_on(job: Job, fleet: Fleet, facts: Facts) -> tuple[int, ...]:
    """The ports that this job's smoke run may take as it likes; none where nodes are machines of their own."""
    if not one_machine(fleet):
        return ()
    return tuple(
        port
        for seen in facts.each(free_ports)
        if isinstance(seen.fact, Observed) and seen.params.get("job") == job.name
        for port in seen.fact.value.ports
    )
