"""Checks that the ports that a job binds are free on the nodes that bind them.

On the job's own nodes the default port is right, because nothing else may use it. On one machine, two such runs would
collide on it and each would report the other. Free ports are observed, so that a recording plans and judges the same
run again.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import FactRow, Facts, Fleet, Node, Observed, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.probes.ports import OTHER_RUN, PortState, bindable, free_ports
from preflight_checks.requirements import (
    Endpoint,
    endpoints_on,
    fold,
    is_literal,
    is_ps,
    is_single_machine,
    owner,
    store_endpoints,
    unreached,
)


def _bound_endpoints(job: Job, fleet: Fleet) -> Iterator[tuple[Endpoint, Node, dict[str, object]]]:
    """Each endpoint with the node that binds it, and the probe's parameters.

    A parameter server whose address belongs to no known node is tried on every node; the node with the address counts.
    """
    reached = set(fleet.reached)
    for endpoint in endpoints_on(job, fleet):
        if not endpoint.port:
            continue
        node = owner(fleet, endpoint)
        host = endpoint.host if endpoint.kind in ("server", "trainer") and is_literal(endpoint.host) else ""
        if node is None and endpoint.kind in ("store", "rendezvous"):
            node = fleet.master
        if node is not None:
            if node in reached:
                yield endpoint, node, _params(endpoint, host)
        elif host:
            for candidate in fleet.reached:
                yield endpoint, candidate, _params(endpoint, host)


def _params(endpoint: Endpoint, host: str) -> dict[str, object]:
    return {"port": endpoint.port, "host": host} if host else {"port": endpoint.port}


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for endpoint, node, params in _bound_endpoints(job, fleet):
        yield Request(probe_name(bindable), node.name, params, because=endpoint.claims, required=True)
    yield from plan_free_ports(job, fleet)


@check(
    "PRT011",
    "port-in-use",
    plan=_plan,
    probes=(bindable, free_ports),
    cost="binds each port of the job for an instant",
    without_root="the owner of a port, except for the user's own processes",
    severity=Severity.ERROR,
    evidence=("pytorch/pytorch#126510", "pytorch/pytorch#85604", "NVIDIA/Megatron-LM#343"),
)
def port_in_use(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ports that rank 0 and the parameter servers bind are free.

    What it checks: each port is bound on its node as the launcher does it, and released at once.

    Why it matters: the node that binds stops with EADDRINUSE, often buried in other output, and all others hang.

    Example: a job that was cancelled left a process on port 29500 of node0.

    Fix: end the process that holds the port, or choose another port.

    Known limits: a port may be taken between this check and the launch; the process is shown only if /proc reveals it.
    If several nodes are one machine, only ports that the job's files name are tried.
    """
    bindings = list(_bound_endpoints(job, fleet))
    silent = unreached(fleet)
    if silent and any(endpoint.port for endpoint in endpoints_on(job, fleet)):
        yield unknown(f"ports on {fold(silent)}", "blocked by NOD001")
    elif not bindings:
        yield not_applicable("ports", "no reachable node binds a port of the job's files")
        return
    seen = {(s.node, s.params.get("port"), s.params.get("host", "")): s for s in facts.each(bindable)}
    elsewhere: dict[Endpoint, list[str]] = {}
    decided: set[Endpoint] = set()
    for endpoint, node, params in bindings:
        fact = seen.get((node.name, endpoint.port, str(params.get("host", ""))))
        if fact is None:
            continue
        subject = f"{endpoint.what} {endpoint.port} on {node.name}"
        if isinstance(fact.fact, Unavailable):
            decided.add(endpoint)
            reason = f"it could not be tested: {fact.fact.reason}"
            yield unknown(subject, reason, nodes=(node.name,), required=fact.asked.required)
        elif fact.fact.value.problem == "not-local":
            elsewhere.setdefault(endpoint, []).append(node.name)
        else:
            decided.add(endpoint)
            yield _judge(endpoint, subject, fact, fact.fact.value)
    for endpoint, nodes in elsewhere.items():
        if endpoint not in decided:
            yield _no_holder(endpoint, nodes)


def _judge(endpoint: Endpoint, subject: str, seen: FactRow[PortState], state: PortState) -> Verdict:
    if not state.problem:
        return passed(subject)
    node = seen.node
    evidence = Evidence("bind", state.detail, "free", f"ss -ltnp 'sport = :{state.port}'", node, at_s=seen.finished_s)
    if state.problem != "in-use":
        denied = state.problem == "denied"
        reason = "this user may not bind it (ports below 1024 are reserved)" if denied else state.detail
        remedy = "Choose a port above 1024." if denied else "Choose another port."
        return failed(
            subject,
            f"{endpoint.what} {state.port} cannot be bound on {node}: {reason}",
            at=evidence,
            also=endpoint.claims,
            nodes=(node,),
            remedy=remedy,
        )
    if any(item.command == OTHER_RUN for item in state.holders):
        return unknown(
            subject,
            f"{OTHER_RUN} holds {endpoint.what} {state.port} on {node}; wait for its end and run this one again",
            nodes=(node,),
            required=True,
        )
    holder = _holder(state)
    return failed(
        subject,
        f"{endpoint.what} {state.port} is in use on {node}{holder}, where the job must bind it",
        at=evidence,
        also=endpoint.claims,
        nodes=(node,),
        remedy=f"End that process on {node}, or choose another port in the job instead of "
        f"{_as_written(endpoint) or state.port}.",
    )


def _as_written(endpoint: Endpoint) -> str:
    """The place where the job states the port, as the user wrote it."""
    ports = [claim.spelling for claim in endpoint.claims if not claim.quantity.endswith("addr")]
    return ", ".join(dict.fromkeys(spelling for spelling in ports if spelling))


def _holder(state: PortState) -> str:
    for item in state.holders:
        if item.pid:
            return f" by process {item.pid} ({item.command or 'command not shown'}), bound to {item.local}"
    for item in state.holders:
        what = "a process" if item.listening else "a connection that is being closed, or a process"
        return f" by {what} of user {item.uid}, bound to {item.local}"
    return ""


def _no_holder(endpoint: Endpoint, nodes: list[str]) -> Verdict:
    return failed(
        f"{endpoint.what} {endpoint.host}",
        f"{endpoint.what} must bind {endpoint.host}:{endpoint.port}, but {endpoint.host} is not an address of any of "
        f"the {len(nodes)} nodes",
        at=Evidence("bind", "Cannot assign requested address", "an address of the node", "ip -br addr", nodes[0]),
        also=endpoint.claims,
        nodes=nodes,
        remedy=f"Give {endpoint.what} an address that one of the nodes has.",
    )


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
