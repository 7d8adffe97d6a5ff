"""Whether the interfaces that the nodes use fit together: no trap, no address twice, one network, routes to peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, command, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import backends, fold, stand_ins, unseen
from preflight_checks.majority import split
from preflight_checks.network.environment_filters import environment_filters
from preflight_checks.network.interface_filter import NO_CARRIER, has_filter, is_inner, is_tunnel, subnet, useless
from preflight_checks.network.interface_used import Used, sound_uses, used_interfaces
from preflight_checks.probes.identity import identity
from preflight_checks.probes.interfaces import Interface, Route, interfaces
from preflight_checks.probes.routes import routes

#: So many peers each node is asked the route to; with more nodes each asks for its next ones in rank order. Of very
#: many nodes fewer, so that what is asked grows with the nodes and no faster.
PEERS, FEWER, MANY = 16, 4, 1024
Pair = tuple[str, str]


def apart(fleet: Fleet) -> bool:
    """Whether the job runs on several machines, as far as known."""
    return len(fleet.nodes) > 1 and not stand_ins(fleet)


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if not apart(fleet):
        return
    _names, claims = backends(job)
    for node in fleet.reached:
        yield Request(probe_name(interfaces), node.name, because=claims)


def _chooses_by_default(job: Job, fleet: Fleet) -> bool:
    return apart(fleet) and "nccl" in backends(job)[0] and not has_filter(job)


def _filtered_around(job: Job, facts: Facts) -> set[str]:
    """The nodes whose own environment holds a filter of NCCL's."""
    found = environment_filters(job, facts)
    return {node for node, items in found.items() if any(item.variable == "NCCL_SOCKET_IFNAME" for item in items)}


def _plan_default(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if _chooses_by_default(job, fleet):
        yield from _plan(job, fleet, facts)


@check(
    "NIC004",
    "nccl-default-interface-unsuitable",
    plan=_plan_default,
    severity=Severity.ERROR,
    evidence=("uccl-project/uccl#1034", "NVIDIA/nccl#913", "NVIDIA/nccl#1053"),
    probes=(interfaces,),
    cost="asks the kernel for its interfaces; milliseconds",
)
def default_interface(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Without NCCL_SOCKET_IFNAME, the interface that NCCL takes by itself leads to the other nodes.

    What it checks: NCCL's own search (ib*, then all but docker, lo and virbr, then these) on each node's interfaces;
    what it finds first must not be loopback, link-local (the USB port of a management controller), a bridge or pair
    of containers, or a tunnel.

    Why it matters: the bootstrap listens at that address; the others are refused, dial themselves, or hang.

    Example: enx0 with 169.254.3.1, the port of a management controller, comes before ens1f0.

    Fix: export NCCL_SOCKET_IFNAME with the interface of the network between the nodes.

    Known limits: which of the interfaces left NCCL takes also depends on the order in which the kernel lists them;
    NCCL before 2.28 takes an interface without a carrier, later ones do not.

    Evidence: uccl-project/uccl#1034, NVIDIA/nccl#913, NVIDIA/nccl#1053; NCCL, ncclFindInterfaces.
    """
    if not _chooses_by_default(job, fleet):
        yield not_applicable("NCCL's own choice", "one machine, no NCCL, or a filter chooses the interface")
        return
    yield from unseen(facts, interfaces, "NCCL's own choice")
    filtered = _filtered_around(job, facts)
    have = {node: fact for node, fact in facts.observed(interfaces).items() if node not in filtered}
    uses = {node: use for node, use in used_interfaces(job, facts).items() if node not in filtered}
    if filtered and not have:
        yield not_applicable("NCCL's own choice", "the nodes' environment holds a filter")
    wrong: dict[tuple[str, str, bool], list[str]] = {}
    none = [node for node in have if node not in uses]
    for node, use in uses.items():
        why = useless(use.interface, several=True)
        if why:
            wrong.setdefault((use.interface.name, why, why != NO_CARRIER), []).append(node)
        elif is_inner(use.interface) or is_tunnel(use.interface):
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
    for (name, why, certain), nodes in wrong.items():
        better = _better(have[nodes[0]].interfaces)
        yield failed(
            f"NCCL's own choice: {name}",
            f"NCCL takes {name} on {fold(nodes)} by itself, and it {why}"
            + (f"; {better.name} ({better.addresses[0].address}) would do" if better else ""),
            at=Evidence("interfaces", f"{name} {why}", "an interface that reaches the nodes", "ip -br addr", nodes[0]),
            also=backends(job)[1],
            nodes=nodes,
            remedy="Export NCCL_SOCKET_IFNAME=" + (f"={better.name}" if better else "<interface>") + " for all ranks.",
            run=(command("export", f"NCCL_SOCKET_IFNAME=={better.name}"),) if better else (),
            severity=None if certain else Severity.WARNING,
            confidence=None if certain else Confidence.MEDIUM,
        )


def _better(have: Sequence[Interface]) -> Interface | None:
    good = [item for item in have if item.addresses and not useless(item, several=True)]
    good = [item for item in good if not (is_inner(item) or is_tunnel(item) or item.loopback)]
    return good[0] if good else None


def _plan_addresses(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from _plan(job, fleet, facts)
    for node in fleet.reached if apart(fleet) else ():
        yield Request(probe_name(identity), node.name)


@check(
    "NIC005",
    "address-on-several-nodes",
    plan=_plan_addresses,
    severity=Severity.ERROR,
    evidence=("uccl-project/uccl#1034", "NVIDIA/nccl#913"),
    probes=(interfaces, identity),
    cost="asks the kernel for its interfaces; milliseconds",
)
def address_twice(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No two nodes use one address.

    What it checks: the address that each node's processes will tell their peers, compared between nodes.

    Why it matters: the peers dial themselves, or whichever of the two answers first.

    Example: docker0 with 172.17.0.1 on every node; two machines configured with one address.

    Fix: choose the interface of the network between the nodes; give each node an address of its own.

    Known limits: only the interface in use is compared, and only where it can be told which that is.

    Evidence: uccl-project/uccl#1034, NVIDIA/nccl#913.
    """
    if not apart(fleet):
        yield not_applicable("addresses", "one machine")
        return
    yield from unseen(facts, interfaces, "addresses")
    uses = sound_uses(job, facts)
    # Two names of one machine share its address by right; NAM004 says what is wrong with them.
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
            f"{fold(nodes)} all use {address} on {use.interface.name} ({use.reason}); each dials itself",
            at=Evidence("interfaces", address, "an address of each node's own", "ip -br addr", nodes[0]),
            also=use.claims,
            nodes=nodes,
            remedy="Choose an interface of the network between the nodes (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), or "
            "give each node an address of its own.",
        )


@check(
    "NIC006",
    "interface-in-another-network",
    plan=_plan,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("horovod/horovod#1969", "horovod/horovod#2421", "marin-community/marin#7018"),
    probes=(interfaces,),
    cost="asks the kernel for its interfaces; milliseconds",
)
def other_network(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The interfaces that the nodes use lie in one network, where there is one that all have.

    What it checks: the network of each node's interface in use; a node that uses another than most, though it has an
    interface in theirs, is named.

    Why it matters: its traffic runs over the management network, or nobody can dial the address it publishes; no
    library says so.

    Example: three nodes use 10.77.0.0/16, and node3 uses eth1 in 10.78.0.0/16 although its eth0 is in 10.77.0.0/16.

    Fix: name the interface of the common network, per node where the names differ.

    Known limits: nodes of routed fabrics lie in different networks on purpose; without a clear majority nothing is
    said here, and the routes decide (NIC007).

    Evidence: horovod/horovod#1969, horovod/horovod#2421, marin-community/marin#7018.
    """
    if not apart(fleet):
        yield not_applicable("networks", "one machine")
        return
    yield from unseen(facts, interfaces, "networks")
    uses = sound_uses(job, facts)
    have = facts.observed(interfaces)
    found = split({node: use.network for node, use in uses.items()})
    if found is None or len(uses) < 2:
        if have:
            yield unknown("networks", "which interface the job will use is known on fewer than two nodes")
        return
    off: dict[str, Interface] = {}
    for node in found.odd if found.clear and len(found.agreeing) > 1 else ():
        fit = [item for item in have[node].interfaces if any(subnet(a) == found.common for a in item.addresses)]
        if fit:
            off[node] = fit[0]
    if not off:
        yield passed(f"networks of {len(uses)} nodes")
        return
    node, fit_item = next(iter(off.items()))
    use = uses[node]
    yield failed(
        "networks",
        f"{fold(off)} {'uses' if len(off) == 1 else 'use'} {use.spoken} in {use.network} ({use.reason}); "
        f"{len(found.agreeing)} nodes use {found.common}, where {node} has {fit_item.name}",
        at=Evidence("interfaces", use.network, found.common, "ip -br addr", node),
        also=use.claims,
        nodes=tuple(off),
        remedy=f"Let {fold(off)} use {fit_item.name}: name it there, or use a prefix that fits only that network.",
    )


def _plan_routes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if not apart(fleet):
        return
    uses = sound_uses(job, facts)
    order = [node.name for node in fleet.reached if node.name in uses]
    reach = _reach(len(order))
    for place, name in enumerate(order):
        peers = [order[(place + step) % len(order)] for step in range(1, reach + 1)]
        # Everybody dials the node of rank 0, whichever place it has.
        peers.extend(order[:1] if place else ())
        addresses = list(dict.fromkeys(uses[peer].address.address for peer in peers))
        if addresses:
            yield Request(probe_name(routes), name, {"addresses": addresses}, because=_claims(job, uses[name]))


def _claims(job: Job, use: Used) -> tuple[Claim, ...]:
    return use.claims or backends(job)[1]


@check(
    "NIC007",
    "no-route-to-peer",
    plan=_plan_routes,
    when="link",
    severity=Severity.ERROR,
    evidence=("horovod/horovod#1969", "horovod/horovod#994", "NVIDIA/nccl#1105"),
    probes=(interfaces, routes),
    cost="asks the kernel for its interfaces and for up to 16 routes; milliseconds",
)
def peer_route(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernel of every node has a route to the addresses that the other nodes publish, over the interface in use.

    What it checks: each node is asked how it would send to the interfaces in use of the next 16 nodes in rank order.

    Why it matters: libraries bind their listening side to the interface and leave the dialling side to the kernel;
    without a route they fail, and over another interface they are slow, or dropped by a strict rp_filter.

    Example: node3 uses ib0 in 10.9.0.0/24, the others eth0 in 10.0.0.0/24, and nothing routes between them.

    Fix: choose interfaces of one network, or add the route.

    Known limits: a route is no connection, which the link stage tries. Several rails on one fabric may well route
    through each other; another interface is a warning at most.

    Evidence: horovod/horovod#1969, horovod/horovod#994, NVIDIA/nccl#1105.
    """
    if not apart(fleet):
        yield not_applicable("routes between nodes", "one machine")
        return
    yield from unseen(facts, routes, "routes between nodes")
    uses = sound_uses(job, facts)
    if not uses:
        yield unknown("routes between nodes", "which interface the job will use is not known on any node")
        return
    peers: dict[str, str] = {}
    for node, use in uses.items():
        peers.setdefault(use.address.address, node)
    lost: dict[Pair, Route] = {}
    asked: set[Pair] = set()
    aside: dict[tuple[str, str], dict[str, Route]] = {}
    for node, seen in facts.observed(routes).items():
        mine = uses.get(node)
        for route in seen.routes if mine is not None else ():
            pair = (node, peers.get(route.destination, route.destination))
            asked.add(pair)
            if route.problem == "no-route":
                lost[pair] = route
            elif mine is not None and _turned(route, mine):
                aside.setdefault((mine.interface.name, route.interface), {}).setdefault(node, route)
    yield from (_lost_finding(who, whom, lost, uses) for who, whom in _grouped(lost, asked))
    for (name, through), found in aside.items():
        node, route = next(iter(found.items()))
        yield failed(
            f"{name} aside",
            f"{fold(found)} {'uses' if len(found) == 1 else 'use'} {name}, but the kernel reaches "
            f"{peers.get(route.destination, route.destination)} ({route.destination}) through {through}",
            at=Evidence("route", f"dev {through}", f"dev {name}", f"ip route get {route.destination}", node),
            also=uses[node].claims,
            nodes=tuple(found),
            remedy=f"Choose {through} on {fold(found)}, or let the network of the peers be routed through {name}.",
            severity=Severity.WARNING,
            confidence=Confidence.MEDIUM,
        )
    if asked and not lost and not aside:
        yield passed(f"routes between {len(uses)} nodes, each to {_reach(len(uses))} others")


def _reach(count: int) -> int:
    return max(0, min(PEERS if count <= MANY else FEWER, count - 1))


def _turned(route: Route, mine: Used) -> bool:
    """Whether a route leaves through none of the interfaces in use."""
    names = {item.name for item in mine.among}
    return not route.problem and bool(route.interface) and route.interface not in names | {"lo"}


def _grouped(lost: Mapping[Pair, Route], asked: set[Pair]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Who has no route to whom: a node that nobody has a route to explains all its pairs, then node by node."""
    left = set(lost)
    columns: dict[str, set[Pair]] = {}
    of_node: dict[str, set[Pair]] = {}
    for pair in asked:
        columns.setdefault(pair[1], set()).add(pair)
    for pair in lost:
        for name in pair:
            of_node.setdefault(name, set()).add(pair)
    for whom in sorted({pair[1] for pair in lost}):
        column = columns.get(whom, set())
        if len(column) > 1 and column <= lost.keys() and column & left:
            yield tuple(sorted(who for who, _ in column)), (whom,)
            left -= of_node[whom]
    rows: dict[str, list[str]] = {}
    for who, whom in sorted(left):
        rows.setdefault(who, []).append(whom)
    for who, whoms in rows.items():
        yield (who,), tuple(whoms)


def _lost_finding(
    who: tuple[str, ...], whom: tuple[str, ...], lost: Mapping[Pair, Route], uses: Mapping[str, Used]
) -> Verdict:
    route = lost[(who[0], whom[0])]
    said = route.detail or route.problem
    culprit = whom if len(who) > 1 else who
    where = f"; {whom[0]} uses {uses[whom[0]].spoken} and {who[0]} {uses[who[0]].spoken}" if whom[0] in uses else ""
    return failed(
        f"routes of {fold(culprit, 3)}",
        f"{fold(who)} {'has' if len(who) == 1 else 'have'} no route to {fold(whom, 4)} ({route.destination}): "
        f"{said}{where}",
        at=Evidence("route", said, "a route", f"ip route get {route.destination}", who[0]),
        also=uses[who[0]].claims,
        nodes=culprit,
        remedy="Choose interfaces of one network on all nodes, or add the missing route: "
        f"`ip route add {route.destination} ...` on {fold(who)}.",
    )
