"""Whether the kernel's network has room for the job: ports, waiting connections, tracked connections, neighbours."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import endpoints, fold, largest, unseen
from preflight_checks.network.nic_choice import apart
from preflight_checks.probes.kernel_network import KernelNetwork, kernel_network

_COST = "reads a few files of /proc/sys/net; milliseconds"
#: Ports that a rank takes beside one for each other rank: store, bootstrap, listeners of NCCL's channels and proxies.
PORTS_EACH = 64
#: From this share on connection tracking is about to drop new connections.
NEARLY_FULL = 0.9


def _ranks(job: Job) -> tuple[int, tuple[Claim, ...]]:
    """Ranks on one node, and the claims that say so."""
    return largest(job, "processes_per_node") or largest(job, "tasks_per_node") or (1, ())


def _world(job: Job, fleet: Fleet) -> int:
    said = largest(job, "world_size")
    return said[0] if said is not None else _ranks(job)[0] * max(1, len(fleet.nodes))


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if apart(fleet):
        for node in fleet.reached:
            yield Request(probe_name(kernel_network), node.name, because=_ranks(job)[1])


def _start(fleet: Fleet, facts: Facts, what: str) -> Iterator[Verdict]:
    if not apart(fleet):
        yield not_applicable(what, "one machine")
        return
    yield from unseen(facts, kernel_network, what)


@check(
    "NET001",
    "ephemeral-ports-few",
    plan=_plan,
    severity=Severity.ERROR,
    evidence=("https://github.com/AMD-AGI/Primus", "ai4d-iasc/trixie#77"),
    probes=(kernel_network,),
    cost=_COST,
)
def few_ports(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The range of local ports is large enough for the connections of all ranks of a node.

    What it checks: ip_local_port_range without ip_local_reserved_ports, against an estimate: for each rank of the node
    64 ports, and one for every rank of the world.

    Why it matters: connections then fail with "Cannot assign requested address", on the fullest node first.

    Example: `net.ipv4.ip_local_port_range = 50000 50099`, set for a firewall, and eight ranks a node.

    Fix: `sysctl -w net.ipv4.ip_local_port_range="32768 60999"`, or a range as large in the firewall.

    Known limits: an estimate, and a warning; below two ports for each rank it is an error. What a firewall lets through
    is not known here; the links are tried on real ports.

    Evidence: Primus guide (large clusters); ai4d-iasc/trixie#77.
    """
    yield from _start(fleet, facts, "local ports")
    ranks, claims = _ranks(job)
    needed = ranks * (PORTS_EACH + _world(job, fleet))
    have = {node: fact for node, fact in facts.observed(kernel_network).items() if fact.ports is not None}
    short = {node: fact for node, fact in have.items() if (fact.ports or 0) < needed}
    for hard in (True, False):
        group = {node: fact for node, fact in short.items() if ((fact.ports or 0) < 2 * ranks) is hard}
        if not group:
            continue
        node, fact = next(iter(group.items()))
        yield failed(
            f"local ports: {'certain' if hard else 'estimate'}",
            f"{fold(group)} {'has' if len(group) == 1 else 'have'} {fact.ports} local ports "
            f"({fact.first_port} to {fact.last_port}) for {ranks} {'rank' if ranks == 1 else 'ranks'} of "
            f"{_world(job, fleet)}, which need about {needed}",
            at=Evidence("ip_local_port_range", f"{fact.ports} ports", f"about {needed}", _RANGE, node),
            also=claims,
            nodes=tuple(group),
            remedy=f'`sysctl -w net.ipv4.ip_local_port_range="32768 60999"` on {fold(group)}.',
            run=(root_command("sysctl", "-w", "net.ipv4.ip_local_port_range=32768 60999", on=group),),
            severity=None if hard else Severity.WARNING,
            confidence=None if hard else Confidence.MEDIUM,
        )
    if have and not short:
        yield passed(f"local ports of {len(have)} nodes")
    elif facts.observed(kernel_network) and not have:
        yield unknown("local ports", "the kernel does not show ip_local_port_range")


_RANGE = "sysctl net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports"


def _plan_fixed(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if any(endpoint.port for endpoint in endpoints(job)):
        yield from _plan(job, fleet, facts)


@check(
    "NET002",
    "fixed-port-given-out-by-kernel",
    plan=_plan_fixed,
    severity=Severity.INFO,
    evidence=("pytorch/pytorch#126510", "https://docs.kernel.org/networking/ip-sysctl.html"),
    probes=(kernel_network,),
    cost=_COST,
)
def fixed_port(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ports that the job fixes are none that the kernel of a node gives to outgoing connections.

    What it checks: every port that the files fix, against ip_local_port_range and ip_local_reserved_ports of the nodes.

    Why it matters: now and then a connection of some other program has just the port when the job wants to bind it.

    Example: `--master_port=45000` on nodes with the usual range 32768 to 60999.

    Fix: a port below the range, or `sysctl -w net.ipv4.ip_local_reserved_ports=45000`.

    Known limits: it goes well nearly always; this is for information.

    Evidence: pytorch/pytorch#126510; Linux, ip-sysctl (ip_local_reserved_ports).
    """
    fixed = {endpoint.port: endpoint for endpoint in endpoints(job) if endpoint.port}
    if not fixed:
        yield not_applicable("fixed ports", "the job fixes none")
        return
    yield from _start(fleet, facts, "fixed ports")
    seen = facts.observed(kernel_network)
    some = False
    for port, endpoint in fixed.items():
        nodes = [node for node, fact in seen.items() if fact.gives_out(port)]
        if nodes:
            some = True
            fact = seen[nodes[0]]
            yield failed(
                f"port {port}",
                f"{endpoint.what} {port} lies among the ports {fact.first_port} to {fact.last_port} that the kernel of "
                f"{fold(nodes)} gives to outgoing connections",
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


@check(
    "NET003",
    "connection-tracking-full",
    plan=_plan,
    severity=Severity.ERROR,
    evidence=("https://docs.kernel.org/networking/nf_conntrack-sysctl.html", "kubernetes/kubernetes#71261"),
    probes=(kernel_network,),
    cost=_COST,
)
def tracking_full(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernel's table of tracked connections has room.

    What it checks: nf_conntrack_count against nf_conntrack_max, where a firewall or container network tracks
    connections.

    Why it matters: with a full table new connections are dropped in silence ("nf_conntrack: table full" in the
    kernel's log), and nodes look dead at random.

    Example: 262144 of 262144 entries on node2, left by a busy service.

    Fix: `sysctl -w net.netfilter.nf_conntrack_max=1048576`, or find what opens so many connections.

    Known limits: the count is that of this moment; from nine tenths on it is a warning.

    Evidence: Linux, nf_conntrack-sysctl; kubernetes/kubernetes#71261.
    """
    yield from _start(fleet, facts, "connection tracking")
    seen = facts.observed(kernel_network)
    shares = {node: share for node, fact in seen.items() if (share := _tracked(fact)) is not None}
    if seen and not shares:
        yield not_applicable("connection tracking", "no node tracks connections, or shows it")
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
                f"{fold(group)}, or end what opens so many connections (`conntrack -L`).",
                run=(root_command("sysctl", "-w", f"net.netfilter.nf_conntrack_max={room}", on=group),),
                severity=None if hard else Severity.WARNING,
                confidence=None if hard else Confidence.MEDIUM,
            )
    if shares and not full:
        yield passed(f"connection tracking on {len(shares)} nodes")


_TRACKED = "sysctl net.netfilter.nf_conntrack_count net.netfilter.nf_conntrack_max"


def _tracked(fact: KernelNetwork) -> float | None:
    if fact.connections is None or not fact.most_connections:
        return None
    return fact.connections / fact.most_connections


@check(
    "NET004",
    "neighbour-table-small",
    plan=_plan,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://man7.org/linux/man-pages/man7/arp.7.html", "kubernetes/kops#4533"),
    probes=(kernel_network,),
    cost=_COST,
)
def few_neighbours(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernel remembers the addresses of as many neighbours as the job has nodes.

    What it checks: gc_thresh3 of the IPv4 neighbour table against the number of nodes.

    Why it matters: with more peers than places the kernel forgets one for each new one ("neighbour: arp_cache: neighbor
    table overflow!"); connections fail at random, and only in the largest jobs.

    Example: gc_thresh3 = 1024 and 1200 nodes in one network.

    Fix: `sysctl -w net.ipv4.neigh.default.gc_thresh3=16384` (and gc_thresh2, gc_thresh1 below it).

    Known limits: nodes behind a router need no place each; other hosts of the network need some too.

    Evidence: arp(7); kubernetes/kops#4533.
    """
    yield from _start(fleet, facts, "neighbours")
    seen = {n: f.most_neighbours for n, f in facts.observed(kernel_network).items() if f.most_neighbours is not None}
    small = {node: most for node, most in seen.items() if most < len(fleet.nodes) - 1}
    if small:
        node, most = next(iter(small.items()))
        yield failed(
            "neighbours",
            f"{fold(small)} {'remembers' if len(small) == 1 else 'remember'} {most} neighbours at most, and the job "
            f"has {len(fleet.nodes)} nodes",
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
    "NET005",
    "listen-backlog-small",
    plan=_plan,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("pytorch/pytorch#76913", "pytorch/pytorch#107878", "pytorch/pytorch#128739"),
    probes=(kernel_network,),
    cost=_COST,
)
def small_backlog(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """As many connections may wait at the store of rank 0 as there are ranks.

    What it checks: somaxconn of the node of rank 0 against the number of ranks.

    Why it matters: all ranks dial rank 0 in the same second; what finds no place in the queue is dropped and tried
    again after 1, 3, 7 seconds, or reset where the kernel is told so, and some give up.

    Example: somaxconn = 128, as kernels before 5.4 have it, and 512 ranks.

    Fix: `sysctl -w net.core.somaxconn=4096`.

    Known limits: a store that accepts quickly gets by with less.

    Evidence: pytorch/pytorch#76913, pytorch/pytorch#107878, pytorch/pytorch#128739.
    """
    yield from _start(fleet, facts, "listen backlog")
    master = fleet.master.name if fleet.master else ""
    fact = facts.observed(kernel_network).get(master)
    if fact is None or fact.listen_backlog is None:
        if facts.observed(kernel_network):
            yield unknown("listen backlog", f"somaxconn of {master} is not known")
        return
    world = _world(job, fleet)
    if fact.listen_backlog >= world:
        yield passed(f"listen backlog of {master}")
        return
    yield failed(
        "listen backlog",
        f"{fact.listen_backlog} connections may wait on {master}, the node of rank 0, and {world} ranks dial it at "
        "once",
        at=Evidence("somaxconn", str(fact.listen_backlog), f"{world}", "sysctl net.core.somaxconn", master),
        also=_ranks(job)[1],
        nodes=(master,),
        remedy=f"`sysctl -w net.core.somaxconn=4096` on {master}.",
        run=(root_command("sysctl", "-w", "net.core.somaxconn=4096", on=(master,)),),
    )
