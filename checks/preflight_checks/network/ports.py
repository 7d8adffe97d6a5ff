"""Whether the ports a job will bind are free on the nodes that bind them."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet, Node, Seen, Unavailable
from preflight.request import Request, probe_name
from preflight_checks.demands import Endpoint, endpoints_on, fold, is_literal, owner, unreached
from preflight_checks.network.local_ports import plan_free_ports
from preflight_checks.probes.free_ports import free_ports
from preflight_checks.probes.ports import PortState, bindable


def _binds(job: Job, fleet: Fleet) -> Iterator[tuple[Endpoint, Node, dict[str, object]]]:
    """Who binds what: each endpoint with its node, and the probe's parameters.

    A parameter server that is given as an address nobody is named after is asked of every node: the one that has
    the address answers for it.
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
    for endpoint, node, params in _binds(job, fleet):
        yield Request(probe_name(bindable), node.name, params, because=endpoint.claims, required=True)
    yield from plan_free_ports(job, fleet)


@check(
    "PRT011",
    "port-in-use",
    plan=_plan,
    probes=(bindable, free_ports),
    cost="binds each port of the job for an instant",
    without_root="who holds a port is told only for one's own processes",
    severity=Severity.ERROR,
    evidence=("pytorch/pytorch#126510", "pytorch/pytorch#85604", "NVIDIA/Megatron-LM#343"),
)
def port_in_use(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ports that rank 0 and the parameter servers bind are free.

    What it checks: each port is bound on its node the way the launcher does it, and let go at once.

    Why it matters: the node that binds stops with EADDRINUSE, often behind other output, and all others hang.

    Example: a job that was cancelled left a process on port 29500 of node0.

    Fix: end the process that holds the port, or choose another port.

    Known limits: a port may be taken between this check and the launch; the process is shown only where /proc
    lets us see it. Where one machine plays several nodes, only ports that the job's files name are tried.

    Evidence: pytorch/pytorch#126510, pytorch/pytorch#85604, NVIDIA/Megatron-LM#343.
    """
    asked = list(_binds(job, fleet))
    silent = unreached(fleet)
    if silent and any(endpoint.port for endpoint in endpoints_on(job, fleet)):
        yield unknown(f"ports on {fold(silent)}", "blocked by NOD001")
    elif not asked:
        yield not_applicable("ports", "the job's files name no port that a reachable node binds")
        return
    seen = {(s.node, s.params.get("port"), s.params.get("host", "")): s for s in facts.each(bindable)}
    elsewhere: dict[Endpoint, list[str]] = {}
    decided: set[Endpoint] = set()
    for endpoint, node, params in asked:
        fact = seen.get((node.name, endpoint.port, str(params.get("host", ""))))
        if fact is None:
            continue
        subject = f"{endpoint.what} {endpoint.port} on {node.name}"
        if isinstance(fact.fact, Unavailable):
            decided.add(endpoint)
            yield unknown(subject, f"it could not be tried: {fact.fact.reason}", required=fact.asked.required)
        elif fact.fact.value.problem == "not-local":
            elsewhere.setdefault(endpoint, []).append(node.name)
        else:
            decided.add(endpoint)
            yield _judge(endpoint, subject, fact, fact.fact.value)
    for endpoint, nodes in elsewhere.items():
        if endpoint not in decided:
            yield _nobody_has(endpoint, nodes)


def _judge(endpoint: Endpoint, subject: str, seen: Seen[PortState], state: PortState) -> Verdict:
    if not state.problem:
        return passed(subject)
    node = seen.node
    evidence = Evidence("bind", state.detail, "free", f"ss -ltnp 'sport = :{state.port}'", node, at_s=seen.finished_s)
    if state.problem != "in-use":
        denied = state.problem == "denied"
        why = "this user may not bind it (ports below 1024 are reserved)" if denied else state.detail
        remedy = "Choose a port above 1024." if denied else "Choose another port."
        return failed(
            subject,
            f"{endpoint.what} {state.port} cannot be bound on {node}: {why}",
            at=evidence,
            also=endpoint.claims,
            nodes=(node,),
            remedy=remedy,
        )
    holder = _holder(state)
    return failed(
        subject,
        f"{endpoint.what} {state.port} is in use on {node}{holder}, where the job must bind it",
        at=evidence,
        also=endpoint.claims,
        nodes=(node,),
        remedy=f"End that process on {node}, or choose another port in the job ({_spelled(endpoint) or state.port}).",
    )


def _spelled(endpoint: Endpoint) -> str:
    """Where the job spells the port, in the user's words."""
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


def _nobody_has(endpoint: Endpoint, nodes: list[str]) -> Verdict:
    return failed(
        f"{endpoint.what} {endpoint.host}",
        f"{endpoint.what} is to bind {endpoint.host}:{endpoint.port}, but {endpoint.host} is an address of none of "
        f"the {len(nodes)} nodes",
        at=Evidence("bind", "Cannot assign requested address", "an address of the node", "ip -br addr", nodes[0]),
        also=endpoint.claims,
        nodes=nodes,
        remedy=f"Give {endpoint.what} an address that one of the nodes has.",
    )
