"""Checks of ports and of the kernel's network settings, and that no proxy captures traffic between nodes.

On the job's own nodes, the default port is right, because nothing else may use it. On one machine, two runs would
collide on it, so free ports are determined there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from preflight._util.hostnames import is_loopback
from preflight.model.findings import Command, Evidence, Severity
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import FactRow, Facts, Fleet, Node, Observed, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight_checks.plans import (
    combine_plans,
    known_facts,
    missing_facts,
    on_every_node,
    only_if,
    ranks_of_node,
    runs_on_several_machines,
    warning_check,
    world_of,
)
from preflight_checks.probes.interfaces import Interfaces, KernelNetwork, interfaces, kernel_network
from preflight_checks.probes.ports import OTHER_RUN, PortState, Proxies, bindable, free_ports, proxies
from preflight_checks.requirements import (
    Endpoint,
    endpoints,
    endpoints_on,
    fold,
    has_parameter_servers,
    is_literal,
    is_multi_node,
    is_single_machine,
    owner,
    scopes,
    store_endpoints,
    unreached_nodes,
)

#: Ports that a rank uses besides one per other rank: store, bootstrap, listeners of NCCL's channels and proxies.
PORTS_PER_RANK = 64
#: Above this share, connection tracking is about to drop new connections.
NEARLY_FULL = 0.9


_plan = on_every_node(kernel_network, when=runs_on_several_machines, because=lambda job: ranks_of_node(job)[1])


@check("NET001", "ephemeral-ports-few", plan=_plan, severity=Severity.ERROR)
@only_if(runs_on_several_machines, "local ports", "the job runs on one machine")
def ephemeral_ports_few(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The range of local ports is large enough for the connections of all ranks on a node.

    What it checks: ip_local_port_range without ip_local_reserved_ports, compared with an estimate: 64 ports per rank on
    the node, plus one per rank of the job.

    Why it matters: connections then fail with "Cannot assign requested address", on the fullest node first.

    Example: `net.ipv4.ip_local_port_range = 50000 50099`, set for a firewall, and eight ranks per node.

    Fix: `sysctl -w net.ipv4.ip_local_port_range="32768 60999"`, or an equally large range in the firewall.

    Known limits: this is an estimate, so the finding is a warning; below two ports per rank it is an error. Firewall
    rules are not considered; the link checks try real ports.
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
            f"{fold(group)} {'has' if len(group) == 1 else 'have'} {fact.ports} local ports ({fact.first_port} to "
            f"{fact.last_port}), but {ranks} {'rank' if ranks == 1 else 'ranks'} of {world_of(job, fleet)[0]} need "
            f"about {needed}",
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
    plan=combine_plans(_plan, when=lambda job, fleet: any(endpoint.port for endpoint in endpoints(job))),
    severity=Severity.INFO,
)
@only_if(_has_fixed_port, "fixed ports", "the job has no fixed port")
@only_if(runs_on_several_machines, "fixed ports", "the job runs on one machine")
def fixed_port_taken_by_kernel(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernel does not use the job's fixed ports for outgoing connections.

    What it checks: every fixed port in the files, compared with ip_local_port_range and ip_local_reserved_ports of the
    nodes.

    Why it matters: occasionally, a connection of another program uses the port when the job binds it.

    Example: `--master_port=45000` on nodes with the usual range 32768 to 60999.

    Fix: a port below the range, or `sysctl -w net.ipv4.ip_local_reserved_ports=45000`.

    Known limits: collisions are rare, so this is only informational.
    """
    fixed = _fixed_ports(job)
    settings = yield from known_facts(facts, kernel_network, "fixed ports")
    some = False
    for port, endpoint in fixed.items():
        nodes = [node for node, fact in settings.items() if fact.may_assign(port)]
        if nodes:
            some = True
            fact = settings[nodes[0]]
            yield failed(
                f"port {port}",
                f"{endpoint.what} {port} is in the range {fact.first_port} to {fact.last_port}, which the kernel of "
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
    if settings and not some:
        yield passed(f"{len(fixed)} ports on {len(settings)} nodes")


@check("NET003", "connection-tracking-full", plan=_plan, severity=Severity.ERROR)
@only_if(runs_on_several_machines, "connection tracking", "the job runs on one machine")
def connection_tracking_full(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernel's table of tracked connections has room.

    What it checks: nf_conntrack_count compared with nf_conntrack_max, if a firewall or container network tracks
    connections.

    Why it matters: with a full table, new connections are silently dropped ("nf_conntrack: table full" in the kernel's
    log), and random nodes appear dead.

    Example: 262144 of 262144 entries on node2, left by a busy service.

    Fix: `sysctl -w net.netfilter.nf_conntrack_max=1048576`, or find the source of the connections.

    Known limits: the count is measured at this moment; nine tenths or more is a warning.
    """
    settings = yield from known_facts(facts, kernel_network, "connection tracking")
    shares = {node: share for node, fact in settings.items() if (share := _tracked(fact)) is not None}
    if settings and not shares:
        yield not_applicable("connection tracking", "no node reports connection tracking")
    full = {node: share for node, share in shares.items() if share >= NEARLY_FULL}
    for hard in (True, False):
        group = {node: share for node, share in full.items() if (share >= 1) is hard}
        if group:
            node = next(iter(group))
            fact = settings[node]
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


@warning_check("NET004", "neighbour-table-small", plan=_plan)
@only_if(runs_on_several_machines, "neighbours", "the job runs on one machine")
def neighbour_table_small(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernel's neighbour table has room for all nodes of the job.

    What it checks: gc_thresh3 of the IPv4 neighbour table compared with the number of nodes.

    Why it matters: with more peers than entries, the kernel evicts one for each new one ("neighbour: arp_cache:
    neighbor table overflow!"); connections fail at random, and only in the largest jobs.

    Example: gc_thresh3 = 1024 and 1200 nodes in one network.

    Fix: `sysctl -w net.ipv4.neigh.default.gc_thresh3=16384` (and gc_thresh2, gc_thresh1 below it).

    Known limits: nodes behind a router do not each need an entry; other hosts in the network also need some.
    """
    yield from missing_facts(facts, kernel_network, "neighbours")
    neighbour_counts = {
        n: f.most_neighbours for n, f in facts.observed(kernel_network).items() if f.most_neighbours is not None
    }
    small = {node: most for node, most in neighbour_counts.items() if most < len(fleet.nodes) - 1}
    if small:
        node, most = next(iter(small.items()))
        yield failed(
            "neighbours",
            f"{fold(small)} can store at most {most} neighbours, but the job has {len(fleet.nodes)} nodes",
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
    elif neighbour_counts:
        yield passed(f"neighbour tables of {len(neighbour_counts)} nodes")
    elif facts.observed(kernel_network):
        yield unknown("neighbours", "the kernel does not show gc_thresh3")


_NEIGHBOURS = "sysctl net.ipv4.neigh.default.gc_thresh3"


@warning_check("NET005", "listen-backlog-small", plan=_plan)
@only_if(runs_on_several_machines, "listen backlog", "the job runs on one machine")
def listen_backlog_small(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The listen backlog of rank 0's store has room for all ranks.

    What it checks: somaxconn of the node of rank 0 compared with the number of ranks.

    Why it matters: all ranks connect to rank 0 in the same second; connections beyond the queue are dropped and retried
    after 1, 3 and 7 seconds, or reset, and some give up.

    Example: somaxconn = 128, the default of kernels before 5.4, and 512 ranks.

    Fix: `sysctl -w net.core.somaxconn=4096`.

    Known limits: a store that accepts quickly needs less.
    """
    yield from missing_facts(facts, kernel_network, "listen backlog")
    master = fleet.master.name if fleet.master else ""
    fact = facts.observed(kernel_network).get(master)
    if fact is None or fact.listen_backlog is None:
        if facts.observed(kernel_network):
            yield unknown("listen backlog", f"somaxconn of {master} is unknown")
        return
    world = world_of(job, fleet)[0]
    if fact.listen_backlog >= world:
        yield passed(f"listen backlog of {master}")
        return
    yield failed(
        "listen backlog",
        f"only {fact.listen_backlog} connections can be pending on {master}, the node of rank 0, but {world} ranks "
        "connect to it at the same time",
        at=Evidence("somaxconn", str(fact.listen_backlog), f"{world}", "sysctl net.core.somaxconn", master),
        also=ranks_of_node(job)[1],
        remedy=f"`sysctl -w net.core.somaxconn=4096` on {master}.",
        run=(root_command("sysctl", "-w", "net.core.somaxconn=4096", on=(master,)),),
    )


def _bound_endpoints(job: Job, fleet: Fleet) -> Iterator[tuple[Endpoint, Node, dict[str, object]]]:
    """Yield each endpoint with its node and parameters; a server with an unknown address is tried on every node."""
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


@check("PRT011", "port-in-use", plan=_port_plan, probes=(bindable, free_ports), severity=Severity.ERROR)
def port_in_use(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ports that rank 0 and the parameter servers bind are free.

    What it checks: each port is bound on its node as the launcher does it, and released immediately.

    Why it matters: the node that binds stops with EADDRINUSE, often buried in other output, and all others hang.

    Example: a job that was cancelled left a process on port 29500 of node0.

    Fix: end the process that uses the port, or choose another port.

    Known limits: a port may be taken between this check and the launch; the process is shown only if /proc reveals it.
    If several nodes are one machine, only ports that the job's files name are tried.
    """
    bindings = list(_bound_endpoints(job, fleet))
    silent = unreached_nodes(fleet)
    if silent and any(endpoint.port for endpoint in endpoints_on(job, fleet)):
        yield unknown(f"ports on {fold(silent)}", "blocked by NOD001")
    elif not bindings:
        yield not_applicable("ports", "no reachable node must bind a port from the job's files")
        return
    rows = {(r.node, r.params.get("port"), r.params.get("host", "")): r for r in facts.each(bindable)}
    elsewhere: dict[Endpoint, list[str]] = {}
    decided: set[Endpoint] = set()
    for endpoint, node, params in bindings:
        row = rows.get((node.name, endpoint.port, str(params.get("host", ""))))
        if row is None:
            continue
        subject = f"{endpoint.what} {endpoint.port} on {node.name}"
        if isinstance(row.fact, Unavailable):
            decided.add(endpoint)
            reason = f"it could not be tested: {row.fact.reason}"
            yield unknown(subject, reason, nodes=(node.name,), required=row.asked.required)
        elif row.fact.value.problem == "not-local":
            elsewhere.setdefault(endpoint, []).append(node.name)
        else:
            decided.add(endpoint)
            yield _judge(endpoint, subject, row, row.fact.value)
    for endpoint, nodes in elsewhere.items():
        if endpoint not in decided:
            yield _no_holder_finding(endpoint, nodes)


def _judge(endpoint: Endpoint, subject: str, row: FactRow[PortState], state: PortState) -> Verdict:
    if not state.problem:
        return passed(subject)
    node = row.node
    evidence = Evidence("bind", state.detail, "free", f"ss -ltnp 'sport = :{state.port}'", node, at_s=row.finished_s)
    if state.problem != "in-use":
        denied = state.problem == "denied"
        reason = "this user may not bind it (ports below 1024 are privileged)" if denied else state.detail
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
            f"{OTHER_RUN} uses {endpoint.what} {state.port} on {node}; wait until that run ends, then repeat this one",
            nodes=(node,),
            required=True,
        )
    holder = _holder_text(state)
    return failed(
        subject,
        f"{endpoint.what} {state.port}, which the job must bind on {node}, is in use{holder}",
        at=evidence,
        also=endpoint.claims,
        nodes=(node,),
        remedy=f"End that process on {node}, or use another port than {_as_written(endpoint) or state.port} in the "
        "job.",
    )


def _as_written(endpoint: Endpoint) -> str:
    """Return the port of the endpoint's claim as the user wrote it."""
    ports = [claim.spelling for claim in endpoint.claims if not claim.quantity.endswith("addr")]
    return ", ".join(dict.fromkeys(spelling for spelling in ports if spelling))


def _holder_text(state: PortState) -> str:
    for item in state.holders:
        if item.pid:
            return f" by process {item.pid} ({item.command or 'command not shown'}), bound to {item.local}"
    for item in state.holders:
        what = "a process" if item.listening else "a connection that is being closed, or a process"
        return f" by {what} of user {item.uid}, bound to {item.local}"
    return ""


def _no_holder_finding(endpoint: Endpoint, nodes: list[str]) -> Verdict:
    return failed(
        f"{endpoint.what} {endpoint.host}",
        f"{endpoint.what} must bind {endpoint.host}:{endpoint.port}, but {endpoint.host} is not an address of any of "
        f"the {len(nodes)} nodes",
        at=Evidence("bind", "Cannot assign requested address", "an address of the node", "ip -br addr", nodes[0]),
        also=endpoint.claims,
        nodes=nodes,
        remedy=f"Set {endpoint.what} to an address of one of the nodes.",
    )


#: One port for the store or each parameter server; no run on one machine has more servers.
_MAX_PORTS = 32


def plan_free_ports(job: Job, fleet: Fleet) -> Iterator[Request]:
    """Request free ports, if all nodes are on one machine and the job's files leave a port unset."""
    if not is_single_machine(fleet) or not fleet.reached:
        return
    endpoints = store_endpoints(job)
    if has_parameter_servers(job) or not endpoints or not endpoints[0].named:
        yield Request(probe_name(free_ports), fleet.reached[0].name, {"count": _MAX_PORTS, "job": job.name})


def free_ports_of(job: Job, fleet: Fleet, facts: Facts) -> tuple[int, ...]:
    """Return the free ports for this job's smoke run; empty if the nodes are separate machines."""
    if not is_single_machine(fleet):
        return ()
    return tuple(
        port
        for row in facts.each(free_ports)
        if isinstance(row.fact, Observed) and row.params.get("job") == job.name
        for port in row.fact.value.ports
    )


#: Variables that gRPC core reads, in order; it ignores upper-case names (grpc, doc/environment_variables.md).
GRPC = ("grpc_proxy", "https_proxy", "http_proxy")


@dataclass(frozen=True, slots=True)
class _ProxyReader:
    """Software in the job that may use proxies between nodes, and whether it certainly reads the variables."""

    name: str
    reads: tuple[str, ...]
    certain: bool
    claims: tuple[Claim, ...]


def _proxy_reader(job: Job) -> _ProxyReader | None:
    for scope in scopes(job):
        config = job.setting("env.TF_CONFIG", scope) or job.setting("tf_config", scope)
        if config:
            return _ProxyReader("TensorFlow's servers (gRPC)", GRPC, True, config)
    rays = [launch for launch in job.launches if launch.launcher == "ray"]
    if rays:
        claims = tuple(claim for launch in rays for claim in job.setting("ray_role", launch.scope))
        # Ray switches proxies off for its own gRPC; its dashboard and job submission keep them (ray#14350).
        both = (*GRPC, *(name.upper() for name in GRPC[1:]))
        return _ProxyReader("Ray (dashboard, job submission)", both, False, claims)
    for scope in scopes(job):
        if job.value("controller", scope) == Known("gloo") or job.setting("host_discovery", scope):
            claims = job.setting("controller", scope) or job.setting("host_discovery", scope)
            return _ProxyReader("Horovod's rendezvous (HTTP)", ("http_proxy", "all_proxy"), False, claims)
    return None


def _plan_proxies(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    reader = _proxy_reader(job)
    if reader is None or not is_multi_node(fleet):
        return
    for node in fleet.reached:
        yield Request(probe_name(proxies), node.name, context=True, because=reader.claims)
        yield Request(probe_name(interfaces), node.name, because=reader.claims)


#: The names of more nodes than this are too long to paste.
_MAX_EXCLUDED = 64


@check("PRX001", "proxy-captures-peers", plan=_plan_proxies, severity=Severity.ERROR, probes=(proxies, interfaces))
def proxy_captures_peers(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks' proxy settings exclude the other nodes.

    What it checks: http_proxy, https_proxy and grpc_proxy inside the job context, compared with no_proxy and
    no_grpc_proxy, for jobs whose nodes use gRPC or HTTP between each other: TensorFlow's servers, Ray, Horovod.

    Why it matters: the proxy cannot connect the workers, so the job reports "Socket closed", "UNAVAILABLE", or nothing.

    Example: only node3 has https_proxy in /etc/environment, and its no_proxy contains only localhost.

    Fix: add the nodes' names and network to no_proxy on every node, or unset the proxies in the job script.

    Known limits: readers of no_proxy differ (a leading dot, address ranges, `*`): a node counts as excluded if any of
    them excludes it. torch's store, NCCL and Gloo use no proxy.
    """
    reader = _proxy_reader(job)
    if reader is None or not is_multi_node(fleet):
        yield not_applicable("proxies", "nothing in the job uses HTTP or gRPC between machines")
        return
    proxies_by_node = yield from known_facts(facts, proxies, "proxies")
    addresses = {node: _addresses(found) for node, found in facts.observed(interfaces).items()}
    captured: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    fine = 0
    for node, fact in proxies_by_node.items():
        variable = next((name for name in reader.reads if name in fact.proxies), "")
        peers = [other.name for other in fleet.nodes if other.name != node]
        hit = [p for p in peers if not _is_excluded([p, *addresses.get(p, ())], _exclusions(fact))] if variable else []
        if hit:
            key = (variable, fact.proxies[variable], tuple(hit) if len(hit) < len(peers) else ())
            captured.setdefault(key, []).append(node)
        else:
            fine += 1
    for (variable, proxy, some), nodes in captured.items():
        exceptions = _exclusions(proxies_by_node[nodes[0]])
        yield failed(
            f"{variable}={proxy}",
            f"{variable}={proxy} applies to {reader.name} on {fold(nodes)}, but no_proxy "
            f"({fold(exceptions, 4) or 'not set'}) does not exclude {fold(some) or 'the other nodes'}",
            at=Evidence(
                "proxies", f"{variable}={proxy}", "no_proxy contains the nodes", "env | grep -i proxy", nodes[0]
            ),
            also=reader.claims,
            nodes=nodes,
            remedy="Export no_proxy with the nodes' names and network, such as "
            f"no_proxy=localhost,127.0.0.1,{','.join(node.name for node in fleet.nodes[:3])},10.0.0.0/8, or "
            f"`unset {variable}` in the job script.",
            run=(_export_line(fleet),) if len(fleet.nodes) <= _MAX_EXCLUDED else (),
            certain=reader.certain,
        )
    if fine and not captured:
        yield passed(f"proxies on {fine} nodes")
    elif not proxies_by_node and not any(True for _ in facts.each(proxies)):
        yield unknown("proxies", "not requested")


def _addresses(interfaces: Interfaces) -> tuple[str, ...]:
    return tuple(a.address for item in interfaces.interfaces for a in item.addresses if not is_loopback(a.address))


def _exclusions(fact: Proxies) -> list[str]:
    return list(dict.fromkeys(entry for listed in fact.exceptions.values() for entry in listed))


def _is_excluded(host: Sequence[str], exceptions: Iterable[str]) -> bool:
    """Return whether a reader of no_proxy would bypass the proxy for a host with these names and addresses."""
    return any(_excludes(text.rstrip(".").lower(), entry) for entry in exceptions for text in host)


def _excludes(host: str, entry: str) -> bool:
    entry = entry.lower()
    if entry == "*":
        return True
    try:
        network = ipaddress.ip_network(entry, strict=False)
        return ipaddress.ip_address(host) in network
    except ValueError:
        pass
    name = entry.rpartition(":")[0] if entry.count(":") == 1 else entry
    name = name.removeprefix("*").strip(".")
    # Some readers treat 10.0. as a prefix; all treat .cluster.local as a suffix.
    return bool(name) and (
        host == name or host.endswith(f".{name}") or (entry[0].isdecimal() and host.startswith(name))
    )


def _export_line(fleet: Fleet) -> Command:
    """Return the line for the job script that exempts the nodes from the proxy, in addition to existing exemptions."""
    names = ",".join(node.name for node in fleet.nodes)
    return Command(f'export no_proxy="${{no_proxy:+$no_proxy,}}localhost,127.0.0.1,{names}"')
