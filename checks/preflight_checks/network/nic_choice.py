"""Checks that the interfaces in use fit together: usable defaults, unique addresses, one network, routes to peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from preflight._util.sequences import grouped
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, command, failed, not_applicable, passed, unknown
from preflight_checks.comparison import split
from preflight_checks.network.interface_filter import (
    NO_CARRIER,
    environment_filters,
    has_filter,
    is_container_interface,
    is_tunnel,
    subnet,
    unusable_reason,
)
from preflight_checks.network.nics import UsedInterface, usable_interfaces, used_interfaces
from preflight_checks.plans import combined, missing_facts, multi_node, multi_node_facts, on_every_node
from preflight_checks.probes.interfaces import Interface, Route, interfaces, routes
from preflight_checks.probes.machine import identity
from preflight_checks.requirements import backend_claims, backends, fold, is_multi_node

#: Each node is asked for its route to this many peers, the next ones in rank order. In very large fleets there are
#: fewer, so that the number of requests grows no faster than the fleet.
PEERS, FEWER, MANY = 16, 4, 1024
Pair = tuple[str, str]


_plan = on_every_node(interfaces, when=multi_node, because=backend_claims)


def _chooses_by_default(job: Job, fleet: Fleet) -> bool:
    return is_multi_node(fleet) and "nccl" in backends(job)[0] and not has_filter(job)


def _nodes_with_own_filter(job: Job, facts: Facts) -> set[str]:
    """The nodes whose own environment sets an NCCL filter."""
    found = environment_filters(job, facts)
    return {node for node, items in found.items() if any(item.variable == "NCCL_SOCKET_IFNAME" for item in items)}


@check(
    "NIC004",
    "nccl-default-interface-unsuitable",
    plan=combined(_plan, when=_chooses_by_default),
    severity=Severity.ERROR,
    evidence=("uccl-project/uccl#1034", "NVIDIA/nccl#913", "NVIDIA/nccl#1053", "NCCL, ncclFindInterfaces"),
    cost="queries the kernel for its interfaces; milliseconds",
)
def default_interface(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Without NCCL_SOCKET_IFNAME, NCCL's default interface reaches the other nodes.

    What it checks: NCCL's own search (ib*, then all but docker, lo and virbr, then these) on each node's interfaces;
    the first match must not be loopback, link-local (the USB port of a management controller), a container bridge or
    pair, or a tunnel.

    Why it matters: the bootstrap listens at that address; the others are refused, connect to themselves, or hang.

    Example: enx0 with 169.254.3.1, the port of a management controller, comes before ens1f0.

    Fix: export NCCL_SOCKET_IFNAME with the interface of the network between the nodes.

    Known limits: NCCL's choice also depends on the order in which the kernel lists interfaces; NCCL before 2.28 takes
    an interface without a carrier, later versions do not.
    """
    if not _chooses_by_default(job, fleet):
        yield not_applicable("NCCL's own choice", "one machine, no NCCL, or a filter chooses the interface")
        return
    yield from missing_facts(facts, interfaces, "NCCL's own choice")
    filtered = _nodes_with_own_filter(job, facts)
    observed = {node: fact for node, fact in facts.observed(interfaces).items() if node not in filtered}
    uses = {node: use for node, use in used_interfaces(job, facts).items() if node not in filtered}
    if filtered and not observed:
        yield not_applicable("NCCL's own choice", "the nodes' environment holds a filter")
    wrong: dict[tuple[str, str, bool], list[str]] = {}
    none = [node for node in observed if node not in uses]
    for node, use in uses.items():
        reason = unusable_reason(use.interface, several=True)
        if reason:
            wrong.setdefault((use.interface.name, reason, reason != NO_CARRIER), []).append(node)
        elif is_container_interface(use.interface) or is_tunnel(use.interface):
            kind = "is a tunnel" if is_tunnel(use.interface) else "connects containers of that machine"
            wrong.setdefault((use.interface.name, kind, False), []).append(node)
        else:
            yield passed(node)
    if none:
        yield failed(
            "NCCL's own choice: none",
            f"NCCL finds no interface with an IP address on {fold(none)}",
            at=Evidence("interfaces", "no address", "an interface with an IP address", "ip -br addr", none[0]),
            also=backends(job)[1],
            nodes=none,
            remedy=f"Give an interface of {fold(none)} an address on the network between the nodes.",
        )
    for (name, reason, certain), nodes in wrong.items():
        better = _best_interface(observed[nodes[0]].interfaces)
        # A second equals sign makes NCCL take the name as a whole; with one it is a prefix.
        setting = f"NCCL_SOCKET_IFNAME=={better.name}" if better else "NCCL_SOCKET_IFNAME=<interface>"
        yield failed(
            f"NCCL's own choice: {name}",
            f"NCCL uses {name} on {fold(nodes)} by default, and it {reason}"
            + (f"; {better.name} ({better.addresses[0].address}) would be suitable" if better else ""),
            at=Evidence(
                "interfaces", f"{name} {reason}", "an interface that reaches the nodes", "ip -br addr", nodes[0]
            ),
            also=backends(job)[1],
            nodes=nodes,
            remedy=f"Export {setting} for all ranks.",
            run=(command("export", setting),) if better else (),
            certain=certain,
        )


def _best_interface(observed: Sequence[Interface]) -> Interface | None:
    good = [item for item in observed if item.addresses and not unusable_reason(item, several=True)]
    good = [item for item in good if not (is_container_interface(item) or is_tunnel(item) or item.loopback)]
    return good[0] if good else None


@check(
    "NIC005",
    "address-on-several-nodes",
    plan=combined(_plan, on_every_node(identity, when=multi_node)),
    severity=Severity.ERROR,
    evidence=("uccl-project/uccl#1034", "NVIDIA/nccl#913"),
    cost="queries the kernel for its interfaces; milliseconds",
)
def address_on_several_nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No two nodes use the same address.

    What it checks: the address that each node's processes publish to their peers, compared between nodes.

    Why it matters: the peers connect to themselves, or whichever of the two answers first.

    Example: docker0 with 172.17.0.1 on every node; two machines configured with one address.

    Fix: choose the interface of the network between the nodes; give each node an address of its own.

    Known limits: only the interface in use is compared, if it is known.
    """
    if not (yield from multi_node_facts(fleet, facts, interfaces, "addresses")):
        return
    uses = usable_interfaces(job, facts)
    # Two names of one machine share its address, which NAM004 reports.
    places = {node: who.place for node, who in facts.observed(identity).items() if who.place}
    holders: dict[str, list[str]] = {}
    for node, use in uses.items():
        others = holders.setdefault(use.address.address, [])
        if node not in places or places[node] not in [places.get(other) for other in others]:
            others.append(node)
    shared = {address: nodes for address, nodes in holders.items() if len(nodes) > 1}
    if len(uses) > 1 and not shared:
        yield passed(f"addresses of {len(uses)} nodes")
    elif not shared and facts.observed(interfaces):
        yield unknown("addresses", "which interface the job will use is known on fewer than two nodes")
    for address, nodes in shared.items():
        use = uses[nodes[0]]
        yield failed(
            f"address {address}",
            f"{fold(nodes)} all use {address} on {use.interface.name} ({use.reason}); each connects to itself",
            at=Evidence("interfaces", address, "a unique address on each node", "ip -br addr", nodes[0]),
            also=use.claims,
            nodes=nodes,
            remedy="Choose an interface of the network between the nodes (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), or "
            "give each node a unique address.",
        )


@check(
    "NIC006",
    "interface-in-another-network",
    plan=_plan,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("horovod/horovod#1969", "horovod/horovod#2421", "marin-community/marin#7018"),
    cost="queries the kernel for its interfaces; milliseconds",
)
def interface_in_another_network(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The interfaces in use are in one network, if all nodes have an interface in it.

    What it checks: the network of each node's interface in use; a node is reported if it uses another network than
    most although it has an interface in theirs.

    Why it matters: its traffic runs over the management network, or no peer can dial the address it publishes; no
    library reports it.

    Example: three nodes use 10.77.0.0/16, and node3 uses eth1 in 10.78.0.0/16 although its eth0 is in 10.77.0.0/16.

    Fix: name the interface of the common network, per node where the names differ.

    Known limits: nodes of routed fabrics are in different networks by design; without a clear majority nothing is
    reported, and the routes decide (NIC007).
    """
    if not (yield from multi_node_facts(fleet, facts, interfaces, "networks")):
        return
    uses = usable_interfaces(job, facts)
    observed = facts.observed(interfaces)
    found = split({node: use.network for node, use in uses.items()})
    if found is None or len(uses) < 2:
        if observed:
            yield unknown("networks", "which interface the job will use is known on fewer than two nodes")
        return
    off: dict[str, Interface] = {}
    for node in found.odd if found.has_majority and len(found.agreeing) > 1 else ():
        fit = [item for item in observed[node].interfaces if any(subnet(a) == found.common for a in item.addresses)]
        if fit:
            off[node] = fit[0]
    if not off:
        yield passed(f"networks of {len(uses)} nodes")
        return
    node, fit_item = next(iter(off.items()))
    use = uses[node]
    yield failed(
        "networks",
        f"{fold(off)} {'uses' if len(off) == 1 else 'use'} {use.description} in {use.network} ({use.reason}); "
        f"{len(found.agreeing)} nodes use {found.common}, where {node} has {fit_item.name}",
        at=Evidence("interfaces", use.network, found.common, "ip -br addr", node),
        also=use.claims,
        nodes=tuple(off),
        remedy=f"Make {fold(off)} use {fit_item.name}: set its name there, or use a prefix that matches only that "
        "network.",
    )


def _plan_routes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if not is_multi_node(fleet):
        return
    uses = usable_interfaces(job, facts)
    order = [node.name for node in fleet.reached if node.name in uses]
    reach = _reach(len(order))
    for place, name in enumerate(order):
        peers = [order[(place + step) % len(order)] for step in range(1, reach + 1)]
        # Every node dials the node of rank 0, whatever its position.
        peers.extend(order[:1] if place else ())
        addresses = list(dict.fromkeys(uses[peer].address.address for peer in peers))
        if addresses:
            yield Request(probe_name(routes), name, {"addresses": addresses}, because=_claims(job, uses[name]))


def _claims(job: Job, use: UsedInterface) -> tuple[Claim, ...]:
    return use.claims or backends(job)[1]


@check(
    "NIC007",
    "no-route-to-peer",
    plan=_plan_routes,
    when="link",
    severity=Severity.ERROR,
    evidence=("horovod/horovod#1969", "horovod/horovod#994", "NVIDIA/nccl#1105"),
    probes=(interfaces, routes),
    cost="queries the kernel for its interfaces and for up to 16 routes; milliseconds",
)
def no_route_to_peer(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernel of every node has a route to the addresses that the other nodes publish, over the interface in use.

    What it checks: each node's routes to the interfaces in use of the next 16 nodes in rank order.

    Why it matters: libraries bind their listening side to the interface and leave the dialling side to the kernel;
    without a route they fail, and over another interface they are slow, or dropped by a strict rp_filter.

    Example: node3 uses ib0 in 10.9.0.0/24, the others eth0 in 10.0.0.0/24, and nothing routes between them.

    Fix: choose interfaces of one network, or add the route.

    Known limits: a route is not a connection; the link stage tries those. Rails of one fabric may route through each
    other, so another interface is at most a warning.
    """
    if not (yield from multi_node_facts(fleet, facts, routes, "routes between nodes")):
        return
    uses = usable_interfaces(job, facts)
    if not uses:
        yield unknown("routes between nodes", "which interface the job will use is not known on any node")
        return
    peers: dict[str, str] = {}
    for node, use in uses.items():
        peers.setdefault(use.address.address, node)
    lost: dict[Pair, Route] = {}
    requested: set[Pair] = set()
    aside: dict[tuple[str, str], dict[str, Route]] = {}
    for node, seen in facts.observed(routes).items():
        own = uses.get(node)
        for route in seen.routes if own is not None else ():
            pair = (node, peers.get(route.destination, route.destination))
            requested.add(pair)
            if route.problem == "no-route":
                lost[pair] = route
            elif own is not None and _uses_other_interface(route, own):
                aside.setdefault((own.interface.name, route.interface), {}).setdefault(node, route)
    yield from (_lost_finding(who, whom, lost, uses) for who, whom in _grouped(lost, requested))
    for (name, through), found in aside.items():
        node, route = next(iter(found.items()))
        yield failed(
            f"{name} aside",
            f"{fold(found)} {'uses' if len(found) == 1 else 'use'} {name}, but the kernel reaches "
            f"{peers.get(route.destination, route.destination)} ({route.destination}) through {through}",
            at=Evidence("route", f"dev {through}", f"dev {name}", f"ip route get {route.destination}", node),
            also=uses[node].claims,
            nodes=tuple(found),
            remedy=f"Choose {through} on {fold(found)}, or route the network of the peers through {name}.",
            certain=False,
        )
    if requested and not lost and not aside:
        yield passed(f"routes between {len(uses)} nodes, each to {_reach(len(uses))} others")


def _reach(count: int) -> int:
    return max(0, min(PEERS if count <= MANY else FEWER, count - 1))


def _uses_other_interface(route: Route, own: UsedInterface) -> bool:
    """Whether a route leaves through an interface that is not in use."""
    names = {item.name for item in own.candidates}
    return not route.problem and bool(route.interface) and route.interface not in names | {"lo"}


def _grouped(lost: Mapping[Pair, Route], requested: set[Pair]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Missing routes as (sources, destinations): first nodes that no other node has a route to, then node by node."""
    remaining = set(lost)
    columns: dict[str, set[Pair]] = {}
    of_node: dict[str, set[Pair]] = {}
    for pair in requested:
        columns.setdefault(pair[1], set()).add(pair)
    for pair in lost:
        for name in pair:
            of_node.setdefault(name, set()).add(pair)
    for whom in sorted({pair[1] for pair in lost}):
        column = columns.get(whom, set())
        if len(column) > 1 and column <= lost.keys() and column & remaining:
            yield tuple(sorted(who for who, _ in column)), (whom,)
            remaining -= of_node[whom]
    rows = grouped((who, whom) for who, whom in sorted(remaining))
    for who, whoms in rows.items():
        yield (who,), tuple(whoms)


def _lost_finding(
    sources: tuple[str, ...],
    destinations: tuple[str, ...],
    lost: Mapping[Pair, Route],
    uses: Mapping[str, UsedInterface],
) -> Verdict:
    route = lost[(sources[0], destinations[0])]
    problem = route.detail or route.problem
    culprit = destinations if len(sources) > 1 else sources
    where = (
        f"; {destinations[0]} uses {uses[destinations[0]].description} and {sources[0]} {uses[sources[0]].description}"
        if destinations[0] in uses
        else ""
    )
    return failed(
        f"routes of {fold(culprit, 3)}",
        f"{fold(sources)} {'has' if len(sources) == 1 else 'have'} no route to {fold(destinations, 4)} "
        f"({route.destination}): {problem}{where}",
        at=Evidence("route", problem, "a route", f"ip route get {route.destination}", sources[0]),
        also=uses[sources[0]].claims,
        nodes=culprit,
        remedy="Choose interfaces of one network on all nodes, or add the missing route: "
        f"`ip route add {route.destination} ...` on {fold(sources)}.",
    )
