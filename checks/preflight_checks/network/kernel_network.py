"""Checks of ports and of the kernel's network settings: what is taken, reserved or too small for so many nodes.

On the job's own nodes the default port is right, because nothing else may use it. On one machine, two such runs would
collide on it and each would report the other. Free ports are observed, so that a recording plans and judges the same
run again.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import FactRow, Facts, Fleet, Node, Observed, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight_checks.comparison import ranks_of_node, world_of
from preflight_checks.plans import combined, known_facts, missing_facts, multi_node, on_every_node, only_if
from preflight_checks.probes.kernel_network import KernelNetwork, kernel_network
from preflight_checks.probes.ports import OTHER_RUN, PortState, bindable, free_ports
from preflight_checks.requirements import (
    Endpoint,
    endpoints,
    endpoints_on,
    fold,
    is_literal,
    is_ps,
    is_single_machine,
    owner,
    store_endpoints,
    unreached,
)

_COST = "reads a few files of /proc/sys/net; milliseconds"
#: Ports that a rank uses besides one per other rank: store, bootstrap, listeners of NCCL's channels and proxies.
PORTS_PER_RANK = 64
#: Above this share, connection tracking is about to drop new connections.
NEARLY_FULL = 0.9


_plan = on_every_node(kernel_network, when=multi_node, because=lambda job: ranks_of_node(job)[1])


@check("NET001", "ephemeral-ports-few", plan=_plan, severity=Severity.ERROR, cost=_COST)
@only_if(multi_node, "local ports", "the job runs on one machine")
def ephemeral_ports_few(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The range of local ports is large enough for the connections of all ranks of a node.

    What it checks: ip_local_port_range without ip_local_reserved_ports, compared with an estimate: 64 ports for each
    rank of the node, plus one for every rank of the world.

    Why it matters: connections then fail with "Cannot assign requested address", on the fullest node first.

    Example: `net.ipv4.ip_local_port_range = 50000 50099`, set for a firewall, and eight ranks a node.

    Fix: `sysctl -w net.ipv4.ip_local_port_range="32768 60999"`, or an equally large range in the firewall.

    Known limits: an estimate, and a warning; below two ports for each rank it is an error. Firewall rules are not
    known here; the link checks try real ports.
    """
    yield from missing_facts(facts, kernel_network, "local ports")
    ranks, claims = ranks_of_node(job)
    needed = ranks * (PORTS_PER_RANK + world_of(job, fleet)[0])
    observed = {node: fact for node, fact in facts.observed(kernel_network).items() if fact.ports is not None}
    short = {node: fact for node, fact in observed.items() if (fact.ports or 0) < needed}
    for hard in (True, False):
        group = {node: fact for node, fact in short.items() if ((fact.ports or 0) < 2 * ranks) is hard}
        if not group:
            continue
        node, fact = next(iter(group.items()))
        yield failed(
            f"local ports: {'certain' if hard else 'estimate'}",
            f"{fold(group)} {'has' if len(group) == 1 else 'have'} {fact.ports} local ports "
            f"({fact.first_port} to {fact.last_port}) for {ranks} {'rank' if ranks == 1 else 'ranks'} of "
            f"{world_of(job, fleet)[0]}, which need about {needed}",
            at=Evidence("ip_local_port_range", f"{fact.ports} ports", f"about {needed}", _RANGE, node),
            also=claims,
            nodes=tuple(group),
            remedy=f'`sysctl -w net.ipv4.ip_local_port_range="32768 60999"` on {fold(group)}.',
            run=(root_command("sysctl", "-w", "net.ipv4.ip_local_port_range=32768 60999", on=group),),
            certain=hard,
        )
    if observed and not short:
        yield passed(f"local ports of {len(observed)} nodes")
    elif facts.observed(kernel_network) and not observed:
        yield unknown("local ports", "the kernel does not show ip_local_port_range")


_RANGE = "sysctl net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports"


def _fixed_ports(job: Job) -> dict[int, Endpoint]:
    return {endpoint.port: endpoint for endpoint in endpoints(job) if endpoint.port}


def _has_fixed_port(job: Job, fleet: Fleet) -> bool:
    return bool(_fixed_ports(job))


@check(
    "NET002",
    "fixed-port-given-out-by-kernel",
    plan=combined(_plan, when=lambda job, fleet: any(endpoint.port for endpoint in endpoints(job))),
    severity=Severity.INFO,
    cost=_COST,
)
@only_if(_has_fixed_port, "fixed ports", "the job has no fixed port")
@only_if(multi_node, "fixed ports", "the job runs on one machine")
def fixed_port_taken_by_kernel(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernel does not give the job's fixed ports to outgoing connections.

    What it checks: every port that the files fix, against ip_local_port_range and ip_local_reserved_ports of the nodes.

    Why it matters: occasionally a connection of another program holds the port when the job binds it.

    Example: `--master_port=45000` on nodes with the usual range 32768 to 60999.

    Fix: a port below the range, or `sysctl -w net.ipv4.ip_local_reserved_ports=45000`.

    Known limits: collisions are rare, so this is only information.
    """
    fixed = _fixed_ports(job)
    seen = yield from known_facts(facts, kernel_network, "fixed ports")
    some = False
    for port, endpoint in fixed.items():
        nodes = [node for node, fact in seen.items() if fact.may_assign(port)]
        if nodes:
            some = True
            fact = seen[nodes[0]]
            yield failed(
                f"port {port}",
                f"{endpoint.what} {port} is among the ports {fact.first_port} to {fact.last_port} that the kernel of "
                f"{fold(nodes)} uses for outgoing connections",
                at=Evidence(
                    "ip_local_port_range", f"{fact.first_port} {fact.last_port}", f"without {port}", _RANGE, nodes[0]
                ),
                also=endpoint.claims,
                nodes=nodes,
                remedy=f"Choose a port below {fact.first_port}, or "
                f"`sysctl -w net.ipv4.ip_local_reserved_ports={port}`.",
                run=(root_command("sysctl", "-w", f"net.ipv4.ip_local_reserved_ports={port}", on=nodes),),
            )
    if seen and not some:
        yield passed(f"{len(fixed)} ports on {len(seen)} nodes")


@check("NET003", "connection-tracking-full", plan=_plan, severity=Severity.ERROR, cost=_COST)
@only_if(multi_node, "connection tracking", "the job runs on one machine")
def connection_tracking_full(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernel's table of tracked connections has room.

    What it checks: nf_conntrack_count against nf_conntrack_max, where a firewall or container network tracks
    connections.

    Why it matters: with a full table new connections are silently dropped ("nf_conntrack: table full" in the
    kernel's log), and random nodes appear dead.

    Example: 262144 of 262144 entries on node2, left by a busy service.

    Fix: `sysctl -w net.netfilter.nf_conntrack_max=1048576`, or find what opens so many connections.

    Known limits: the count is that of this moment; from nine tenths on it is a warning.
    """
    seen = yield from known_facts(facts, kernel_network, "connection tracking")
    shares = {node: share for node, fact in seen.items() if (share := _tracked(fact)) is not None}
    if seen and not shares:
        yield not_applicable("connection tracking", "no node tracks connections, or reports it")
    full = {node: share for node, share in shares.items() if share >= NEARLY_FULL}
    for hard in (True, False):
        group = {node: share for node, share in full.items() if (share >= 1) is hard}
        if group:
            node = next(iter(group))
            fact = seen[node]
            room = 4 * (fact.most_connections or 65536)
            yield failed(
                f"connection tracking: {'full' if hard else 'nearly full'}",
                f"the table of tracked connections is {'full' if hard else 'nearly full'} on {fold(group)}: "
                f"{fact.connections} of {fact.most_connections} on {node}",
                at=Evidence(
                    "nf_conntrack_count", str(fact.connections), f"well below {fact.most_connections}", _TRACKED, node
                ),
                nodes=tuple(group),
                remedy=f"`sysctl -w net.netfilter.nf_conntrack_max={room}` on "
                f"{fold(group)}, or end the processes that open so many connections (`conntrack -L`).",
                run=(root_command("sysctl", "-w", f"net.netfilter.nf_conntrack_max={room}", on=group),),
                certain=hard,
            )
    if shares and not full:
        yield passed(f"connection tracking on {len(shares)} nodes")


_TRACKED = "sysctl net.netfilter.nf_conntrack_count net.netfilter.nf_conntrack_max"


def _tracked(fact: KernelNetwork) -> float | None:
    if fact.connections is None or not fact.most_connections:
        return None
    return fact.connections / fact.most_connections


@check(
    "NET004", "neighbour-table-small", plan=_plan, severity=Severity.WARNING, confidence=Confidence.MEDIUM, cost=_COST
)
@only_if(multi_node, "neighbours", "the job runs on one machine")
def neighbour_table_small(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernel's neighbour table has room for all nodes of the job.

    What it checks: gc_thresh3 of the IPv4 neighbour table compared with the number of nodes.

    Why it matters: with more peers than entries, the kernel evicts one for each new one ("neighbour: arp_cache:
    neighbor table overflow!"); connections fail at random, and only in the largest jobs.

    Example: gc_thresh3 = 1024 and 1200 nodes in one network.

    Fix: `sysctl -w net.ipv4.neigh.default.gc_thresh3=16384` (and gc_thresh2, gc_thresh1 below it).

    Known limits: nodes behind a router need no entry each; other hosts of the network need some, too.
    """
    yield from missing_facts(facts, kernel_network, "neighbours")
    seen = {n: f.most_neighbours for n, f in facts.observed(kernel_network).items() if f.most_neighbours is not None}
    small = {node: most for node, most in seen.items() if most < len(fleet.nodes) - 1}
    if small:
        node, most = next(iter(small.items()))
        yield failed(
            "neighbours",
            f"{fold(small)} can store at most {most} neighbours, and the job has {len(fleet.nodes)} nodes",
            at=Evidence("gc_thresh3", str(most), f"above {len(fleet.nodes)}", _NEIGHBOURS, node),
            nodes=tuple(small),
            remedy="`sysctl -w net.ipv4.neigh.default.gc_thresh1=4096 net.ipv4.neigh.default.gc_thresh2=8192 "
            f"net.ipv4.neigh.default.gc_thresh3=16384` on {fold(small)}.",
            run=(
                root_command(
                    "sysctl",
                    "-w",
                    "net.ipv4.neigh.default.gc_thresh1=4096",
                    "net.ipv4.neigh.default.gc_thresh2=8192",
                    "net.ipv4.neigh.default.gc_thresh3=16384",
                    on=small,
                ),
            ),
        )
    elif seen:
        yield passed(f"neighbours of {len(seen)} nodes")
    elif facts.observed(kernel_network):
        yield unknown("neighbours", "the kernel does not show gc_thresh3 here")


_NEIGHBOURS = "sysctl net.ipv4.neigh.default.gc_thresh3"


@check(
    "NET005", "listen-backlog-small", plan=_plan, severity=Severity.WARNING, confidence=Confidence.MEDIUM, cost=_COST
)
@only_if(multi_node, "listen backlog", "the job runs on one machine")
def listen_backlog_small(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The listen backlog of rank 0's store has room for all ranks.

    What it checks: somaxconn of the node of rank 0 compared with the number of ranks.

    Why it matters: all ranks dial rank 0 in the same second; connections beyond the queue are dropped and retried
    after 1, 3 and 7 seconds, or reset, and some give up.

    Example: somaxconn = 128, as kernels before 5.4 have it, and 512 ranks.

    Fix: `sysctl -w net.core.somaxconn=4096`.

    Known limits: a store that accepts quickly needs less.
    """
    yield from missing_facts(facts, kernel_network, "listen backlog")
    master = fleet.master.name if fleet.master else ""
    fact = facts.observed(kernel_network).get(master)
    if fact is None or fact.listen_backlog is None:
        if facts.observed(kernel_network):
            yield unknown("listen backlog", f"somaxconn of {master} is not known")
        return
    world = world_of(job, fleet)[0]
    if fact.listen_backlog >= world:
        yield passed(f"listen backlog of {master}")
        return
    yield failed(
        "listen backlog",
        f"{fact.listen_backlog} connections can be pending on {master}, the node of rank 0, and {world} ranks connect "
        "to it at once",
        at=Evidence("somaxconn", str(fact.listen_backlog), f"{world}", "sysctl net.core.somaxconn", master),
        also=ranks_of_node(job)[1],
        remedy=f"`sysctl -w net.core.somaxconn=4096` on {master}.",
        run=(root_command("sysctl", "-w", "net.core.somaxconn=4096", on=(master,)),),
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


def _port_plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for endpoint, node, params in _bound_endpoints(job, fleet):
        yield Request(probe_name(bindable), node.name, params, because=endpoint.claims, required=True)
    yield from plan_free_ports(job, fleet)


@check(
    "PRT011",
    "port-in-use",
    plan=_port_plan,
    probes=(bindable, free_ports),
    cost="binds each port of the job for an instant",
    without_root="the owner of a port, except for the user's own processes",
    severity=Severity.ERROR,
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
