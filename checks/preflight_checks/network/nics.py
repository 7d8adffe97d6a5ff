"""The network interface that the job uses on each node, and checks that these are in one network with routes and one
MTU.

Without a filter, NCCL uses the first interface in its search order; with NCCL_COMM_ID (bootstrapNetInit), the interface
in the network of that address, regardless of the filter. Without a filter, Gloo uses the address of the node's own
name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight._util.hostnames import is_loopback, split_endpoint
from preflight._util.sequences import grouped
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import Facts, Fleet, Observed, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import (
    Verdict,
    check,
    command,
    failed,
    memoize,
    not_applicable,
    passed,
    root_command,
    unknown,
)
from preflight_checks.context.environment import plan_both
from preflight_checks.network.interface_filter import (
    NO_CARRIER,
    Chosen,
    chosen,
    dialled_address,
    environment_filters,
    filter_findings,
    has_filter,
    is_container_interface,
    is_read_by_job,
    is_tunnel,
    nccl_default,
    published_address,
    select,
    socket_family,
    subnet,
    unusable_reason,
)
from preflight_checks.network.names import lookups
from preflight_checks.plans import (
    combine_plans,
    has_several_nodes,
    missing_facts,
    on_every_node,
    only_if,
    requests_for,
    runs_on_several_machines,
    split,
    warning_check,
)
from preflight_checks.probes.environment import environment
from preflight_checks.probes.interfaces import Address, Interface, Route, interfaces, route, routes
from preflight_checks.probes.machine import identity
from preflight_checks.requirements import (
    FILTER_VARIABLES,
    Filter,
    backend_claims,
    backends,
    filter_of,
    filter_unresolved,
    filters,
    fold,
    is_multi_node,
    owner,
    scopes,
    store_endpoints,
)


@dataclass(frozen=True, slots=True)
class UsedInterface:
    """The interface and address that a node uses first; `reason` completes "NAME is used: ..."."""

    interface: Interface
    address: Address
    candidates: tuple[Interface, ...]
    reason: str
    filter: Filter | None = None

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims that select the interface."""
        return self.filter.claims if self.filter else ()

    @property
    def network(self) -> str:
        """The network that contains its address."""
        return subnet(self.address)

    @property
    def description(self) -> str:
        """`eth0 (10.0.0.1)`."""
        return f"{self.interface.name} ({self.address.address})"


@memoize
def used_interfaces(job: Job, facts: Facts) -> dict[str, UsedInterface]:
    """Return the interface in use of each node for which it is known."""
    own: dict[str, list[str]] = {
        row.node: [text for text in row.fact.value.addresses if not is_loopback(text)]
        for row in lookups(facts, own=True)
        if isinstance(row.fact, Observed)
    }
    filters = environment_filters(job, facts)
    found: dict[str, UsedInterface] = {}
    for node, fact in facts.observed(interfaces).items():
        use = _interface_of_filter(job, node, fact.interfaces, filters.get(node, ()))
        use = use or interface_in_use(job, node, fact.interfaces, own.get(node, ()))
        if use is not None:
            found[node] = use
    return found


def _interface_of_filter(
    job: Job, node: str, observed: Sequence[Interface], filters: Sequence[Filter]
) -> UsedInterface | None:
    """Return the choice of a filter in the node's own environment, if the job's files have none."""
    if not filters or chosen(job, node, observed) is not None:
        return None
    for item in filters:
        remaining = select(item.variable, item.value, observed, socket_family(job, node)).interfaces
        address = dialled_address(remaining[0]) if remaining and is_read_by_job(job, item.variable) else None
        if address is not None:
            return UsedInterface(
                remaining[0], address, remaining, f"{item.variable}={item.value} ({item.origin}) chooses it", item
            )
    return None


@memoize
def usable_interfaces(job: Job, facts: Facts) -> dict[str, UsedInterface]:
    """Return `used_interfaces` without unusable ones, which other checks report."""
    uses = used_interfaces(job, facts)
    return {node: use for node, use in uses.items() if not unusable_reason(use.interface, several=True)}


def interface_in_use(
    job: Job, node: str, observed: Sequence[Interface], own_addresses: Sequence[str] = ()
) -> UsedInterface | None:
    """Return the interface in use on a node; None if unknown. `own_addresses` are those of the node's own name."""
    choice = chosen(job, node, observed)
    if choice is not None:
        reason = f"{choice.filter.variable}={choice.filter.value} chooses it"
        return UsedInterface(choice.interface, choice.address, choice.candidates, reason, choice.filter)
    if any(filter_of(job, name, node) for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")):
        return None
    names, _claims = backends(job)
    if "nccl" in names:
        return _interface_of_comm_id(job, observed) or by_nccl(job, node, observed)
    for text in own_addresses:
        for item in observed:
            for address in item.addresses:
                if address.address == text:
                    return UsedInterface(item, address, (item,), "the node's own name resolves to its address")
    return None


def by_nccl(job: Job, node: str, observed: Sequence[Interface]) -> UsedInterface | None:
    """Return the interface that NCCL uses by default."""
    family = socket_family(job, node)
    remaining = nccl_default(observed, family).interfaces
    address = published_address(remaining[0], family) if remaining else None
    return UsedInterface(remaining[0], address, remaining, "NCCL uses it by default") if address is not None else None


def _interface_of_comm_id(job: Job, observed: Sequence[Interface]) -> UsedInterface | None:
    for scope in scopes(job):
        value = job.value("env.NCCL_COMM_ID", scope)
        reason = str(value.value) if isinstance(value, Known) else ""
        host = split_endpoint(reason)
        if host is None:
            continue
        for item in observed:
            for address in item.addresses:
                if _is_in_network(host[0], address):
                    return UsedInterface(item, address, (item,), f"it is in the network of NCCL_COMM_ID={reason}")
    return None


def _is_in_network(text: str, address: Address) -> bool:
    try:
        return ipaddress.ip_address(text) in ipaddress.ip_network(subnet(address))
    except ValueError:
        return False


def _plan_filter(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for node in fleet.reached:
        found = filters(job, node.name)
        if found:
            claims = tuple(claim for item in found for claim in item.claims)
            yield Request(probe_name(interfaces), node.name, because=claims, required=True)
    names, claims = backends(job)
    if is_multi_node(fleet) and names & {"nccl", "gloo"}:
        # A node's own environment, or /etc/nccl.conf, may set a filter that is not in the job's files.
        yield from plan_both(job, fleet, facts)
        for node in fleet.reached:
            yield Request(probe_name(interfaces), node.name, because=claims)


@check(
    "NIC001",
    "interface-filter-leaves-nothing-usable",
    plan=_plan_filter,
    probes=(interfaces, environment),
    severity=Severity.ERROR,
)
def interface_filter(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The interface that the job's filter variables name exists and is usable on every node.

    What it checks: the filter (NCCL_SOCKET_IFNAME with NCCL_SOCKET_FAMILY, GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME,
    HOROVOD_GLOO_IFACE, FI_TCP_IFACE, Open MPI's btl_tcp_if_include and _exclude, oob_tcp_if_include) is applied to
    each node's interfaces exactly as the library does it; an interface must remain, be up with a carrier and a
    routable address, and not be loopback or a container bridge.

    Why it matters: a hard-coded name that one node lacks gives a clear error only on that node; all others hang.

    Example: NCCL_SOCKET_IFNAME=ib0 while node3 calls it ibp12s0.

    Fix: name an interface that every node has, use a prefix (`ib`), or exclude (`^docker,lo`).

    Known limits: of variables outside the job's files, only those of NCCL and Gloo are judged, as ranks find them in
    their environment or in /etc/nccl.conf.
    """
    for variable in FILTER_VARIABLES:
        if filter_unresolved(job, variable):
            yield unknown(variable, "its value is known only at run time")
    grouped: dict[tuple[str, str, str], dict[str, Filter]] = {}
    around = environment_filters(job, facts) if is_multi_node(fleet) else {}
    for node in fleet.reached:
        for item in (*filters(job, node.name), *around.get(node.name, ())):
            grouped.setdefault((item.variable, item.value, item.origin), {})[node.name] = item
    if not grouped:
        yield not_applicable("interface filters", "neither the job's files nor the nodes set a filter")
    for (variable, value, _origin), on in grouped.items():
        origin = next(iter(on.values())).origin
        spelled = f"{variable}={value}" + (f" ({origin})" if origin else "")
        yield from filter_findings(job, spelled, on, facts, several=len(fleet.nodes) > 1)


def _master_host(job: Job, fleet: Fleet) -> str:
    """Return the host at which other nodes reach rank 0, as written in the job, or else the node's name."""
    for endpoint in store_endpoints(job):
        if endpoint.host and not is_loopback(endpoint.host):
            return endpoint.host
    return fleet.master.name if fleet.master else ""


def _listeners(job: Job, fleet: Fleet) -> set[str]:
    """Return the nodes that others connect to. Their route to themselves is loopback, which shows nothing."""
    found = {node.name for endpoint in store_endpoints(job) if (node := owner(fleet, endpoint)) is not None}
    return found or ({fleet.master.name} if fleet.master else set())


@requests_for(interfaces, route)
def _plan_route(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if len(fleet.nodes) < 2:
        return
    listeners, host = _listeners(job, fleet), _master_host(job, fleet)
    for node in fleet.reached:
        claims = tuple(claim for item in filters(job, node.name) for claim in item.claims)
        # Requested even without a filter: the link stage dials the address of the interface found here.
        yield Request(probe_name(interfaces), node.name, because=claims)
        if claims and node.name not in listeners:
            yield Request(probe_name(route), node.name, {"destination": host}, because=claims)


def _routes(facts: Facts, host: str) -> dict[str, Observed[Route] | Unavailable]:
    return {row.node: row.fact for row in facts.each(route) if row.params.get("destination") == host}


def _choices(job: Job, facts: Facts) -> dict[str, Chosen]:
    return {
        node: choice
        for node, fact in facts.observed(interfaces).items()
        if (choice := chosen(job, node, fact.interfaces)) is not None
    }


@warning_check("NIC002", "chosen-interface-not-on-route-to-master", plan=_plan_route)
def interface_route(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The selected interface is the one that the kernel uses towards rank 0.

    What it checks: the kernel's route to the rendezvous host compared with the interfaces that the filter selects.

    Why it matters: the job then runs over a management network, or publishes an address that its peers cannot reach;
    this is slow or hangs, but is never reported.

    Example: NCCL_SOCKET_IFNAME=eth1 while the route to node0 leaves through eth0.

    Fix: select the interface in the network of the master address, or use the master's address in the selected network.

    Known limits: with several rails on one fabric, a difference is intended.
    """
    if len(fleet.nodes) < 2 or not has_filter(job):
        yield not_applicable("route to rank 0", "the job sets no interface filter, or has only one node")
        return
    host = _master_host(job, fleet)
    choices = _choices(job, facts)
    off: dict[str, tuple[Chosen, Route]] = {}
    for node, fact in _routes(facts, host).items():
        choice = choices.get(node)
        if isinstance(fact, Unavailable):
            yield unknown(node, f"its route to {host} is unknown: {fact.reason}", nodes=(node,))
        elif fact.value.problem or not fact.value.interface:
            yield unknown(node, f"no route to {host}: {fact.value.detail or fact.value.problem}", nodes=(node,))
        elif choice is None:
            yield unknown(node, "the filter selects no interface there", nodes=(node,))
        elif fact.value.interface in {item.name for item in choice.candidates} or fact.value.interface == "lo":
            yield passed(node)
        else:
            off[node] = (choice, fact.value)
    for name, through in sorted({(c.interface.name, r.interface) for c, r in off.values()}):
        nodes = [n for n, (c, r) in off.items() if (c.interface.name, r.interface) == (name, through)]
        choice, found = off[nodes[0]]
        yield failed(
            f"{name} against {through}",
            f"{choice.filter.variable}={choice.filter.value} selects {name} on {fold(nodes)}, but the kernel "
            f"reaches {host} ({found.address}) through {through}",
            at=Evidence(
                "route", f"dev {through} src {found.source}", f"dev {name}", f"ip route get {found.address}", nodes[0]
            ),
            also=choice.filter.claims,
            nodes=nodes,
            remedy=f"Set {choice.filter.variable}={through}, or use rank 0's address on the network of {name}.",
        )


@warning_check("NIC003", "mtu-differs", plan=_plan_route)
@only_if(has_several_nodes, "MTU", "the job has one node")
def interface_mtu(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The selected interfaces of all nodes have the same MTU.

    What it checks: the MTU of the interface that each node uses, selected by a filter or by the library.

    Why it matters: if one side sends larger frames than the other side or a switch accepts, small messages pass but
    bulk data is lost: the job initializes and then hangs.

    Example: three nodes have 9000 and one re-imaged node has 1500.

    Fix: set the same MTU on all nodes and switch ports.

    Known limits: TCP between two hosts negotiates the smaller MTU, so a difference alone can be harmless.
    """
    blind = tuple(missing_facts(facts, interfaces, "MTU"))
    yield from blind
    choices = used_interfaces(job, facts)
    division = split({node: c.interface.mtu for node, c in choices.items() if c.interface.mtu is not None})
    if division is None or len(division.agreeing) + len(division.odd) < 2:
        if not blind:
            yield unknown("MTU", "which interface the job will use is known on fewer than two nodes")
        return
    if not division.odd:
        yield passed(f"MTU {division.common} on {len(division.agreeing)} nodes")
        return
    node, _ = division.first_odd
    choice, common = choices[node], division.common
    yield failed(
        "MTU",
        f"the selected interfaces have different MTUs: {division.description}",
        at=Evidence(
            "interfaces", f"{choice.interface.name} mtu {choice.interface.mtu}", f"mtu {common}", "ip link", node
        ),
        also=choice.claims,
        nodes=tuple(division.odd),
        remedy=f"Set the same MTU everywhere: `ip link set {choice.interface.name} mtu {common}` on "
        f"{fold(division.odd)}, or correct the other nodes.",
        run=(root_command("ip", "link", "set", choice.interface.name, "mtu", str(common), on=division.odd),),
    )


#: Each node is asked for its route to this many peers, the next ones in rank order. In very large fleets there are
#: fewer, so that the number of requests grows no faster than the fleet.
PEERS, FEWER, MANY = 16, 4, 1024
Pair = tuple[str, str]


_plan = on_every_node(interfaces, when=runs_on_several_machines, because=backend_claims)


def _chooses_by_default(job: Job, fleet: Fleet) -> bool:
    return is_multi_node(fleet) and "nccl" in backends(job)[0] and not has_filter(job)


def _nodes_with_own_filter(job: Job, facts: Facts) -> set[str]:
    """Return the nodes whose own environment sets an NCCL filter."""
    found = environment_filters(job, facts)
    return {node for node, items in found.items() if any(item.variable == "NCCL_SOCKET_IFNAME" for item in items)}


@check(
    "NIC004",
    "nccl-default-interface-unsuitable",
    plan=combine_plans(_plan, when=_chooses_by_default),
    severity=Severity.ERROR,
)
@only_if(_chooses_by_default, "NCCL's own choice", "one machine, no NCCL, or a filter chooses the interface")
def default_interface(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Without NCCL_SOCKET_IFNAME, NCCL's default interface reaches the other nodes.

    What it checks: NCCL's own search (ib*, then all but docker, lo and virbr, then these) on each node's interfaces;
    the first match must not be loopback, link-local (the USB port of a management controller), a container bridge or
    veth pair, or a tunnel.

    Why it matters: the bootstrap listens at that address; the other nodes' connections are refused or hang, or the
    nodes connect to themselves.

    Example: enx0 with 169.254.3.1, the port of a management controller, comes before ens1f0.

    Fix: export NCCL_SOCKET_IFNAME with the interface of the network between the nodes.

    Known limits: NCCL's choice also depends on the order in which the kernel lists interfaces; NCCL before 2.28 uses an
    interface without a carrier, later versions do not.
    """
    yield from missing_facts(facts, interfaces, "NCCL's own choice")
    filtered = _nodes_with_own_filter(job, facts)
    observed = {node: fact for node, fact in facts.observed(interfaces).items() if node not in filtered}
    uses = {node: use for node, use in used_interfaces(job, facts).items() if node not in filtered}
    if filtered and not observed:
        yield not_applicable("NCCL's own choice", "the nodes' environment contains a filter")
    wrong: dict[tuple[str, str, bool], list[str]] = {}
    none = [node for node in observed if node not in uses]
    for node, use in uses.items():
        reason = unusable_reason(use.interface, several=True)
        if reason:
            wrong.setdefault((use.interface.name, reason, reason != NO_CARRIER), []).append(node)
        elif is_container_interface(use.interface) or is_tunnel(use.interface):
            kind = "is a tunnel" if is_tunnel(use.interface) else "connects only containers of that machine"
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
            remedy=f"Assign an address in the network between the nodes to an interface of {fold(none)}.",
        )
    for (name, reason, certain), nodes in wrong.items():
        better = _best_interface(observed[nodes[0]].interfaces)
        # A second equals sign makes NCCL take the name as a whole; with one it is a prefix.
        setting = f"NCCL_SOCKET_IFNAME=={better.name}" if better else "NCCL_SOCKET_IFNAME=<interface>"
        yield failed(
            f"NCCL's own choice: {name}",
            f"NCCL uses {name} on {fold(nodes)} by default, but {name} {reason}"
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
    plan=combine_plans(_plan, on_every_node(identity, when=runs_on_several_machines)),
    severity=Severity.ERROR,
)
@only_if(runs_on_several_machines, "addresses", "the job runs on one machine")
def address_on_several_nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No two nodes use the same address.

    What it checks: the address that each node's processes publish to their peers, compared between nodes.

    Why it matters: the peers connect to themselves, or to whichever of the two responds first.

    Example: docker0 with 172.17.0.1 on every node; two machines configured with the same address.

    Fix: select the interface of the network between the nodes; give each node its own address.

    Known limits: only the interface in use is compared, if it is known.
    """
    yield from missing_facts(facts, interfaces, "addresses")
    uses = usable_interfaces(job, facts)
    # Two names of one machine share its address, which NAM004 reports.
    places = {node: source.place for node, source in facts.observed(identity).items() if source.place}
    holders: dict[str, list[str]] = {}
    for node, use in uses.items():
        others = holders.setdefault(use.address.address, [])
        if node not in places or places[node] not in [places.get(other) for other in others]:
            others.append(node)
    shared = {address: nodes for address, nodes in holders.items() if len(nodes) > 1}
    if len(uses) > 1 and not shared:
        yield passed(f"addresses on {len(uses)} nodes")
    elif not shared and facts.observed(interfaces):
        yield unknown("addresses", "which interface the job will use is known on fewer than two nodes")
    for address, nodes in shared.items():
        use = uses[nodes[0]]
        yield failed(
            f"address {address}",
            f"{fold(nodes)} all use {address} on {use.interface.name} ({use.reason}); each would connect to itself",
            at=Evidence("interfaces", address, "a unique address on each node", "ip -br addr", nodes[0]),
            also=use.claims,
            nodes=nodes,
            remedy="Select an interface of the network between the nodes (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), "
            "or give each node a unique address.",
        )


@warning_check("NIC006", "interface-in-another-network", plan=_plan)
@only_if(runs_on_several_machines, "networks", "the job runs on one machine")
def interface_in_another_network(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The interfaces in use are in one network, if all nodes have an interface in it.

    What it checks: the network of each node's interface in use; a node is reported if it uses another network than most
    although it has an interface in the others' network.

    Why it matters: its traffic runs over the management network, or no peer can reach the address that it publishes; no
    library reports this.

    Example: three nodes use 10.77.0.0/16, and node3 uses eth1 in 10.78.0.0/16 although its eth0 is in 10.77.0.0/16.

    Fix: name the interface of the common network, per node if the names differ.

    Known limits: nodes of routed fabrics are in different networks by design; without a clear majority, nothing is
    reported, and the routes decide (NIC007).
    """
    yield from missing_facts(facts, interfaces, "networks")
    uses = usable_interfaces(job, facts)
    observed = facts.observed(interfaces)
    division = split({node: use.network for node, use in uses.items()})
    if division is None or len(uses) < 2:
        if observed:
            yield unknown("networks", "which interface the job will use is known on fewer than two nodes")
        return
    off: dict[str, Interface] = {}
    for node in division.odd if division.has_majority and len(division.agreeing) > 1 else ():
        fit = [item for item in observed[node].interfaces if any(subnet(a) == division.common for a in item.addresses)]
        if fit:
            off[node] = fit[0]
    if not off:
        yield passed(f"networks on {len(uses)} nodes")
        return
    node, fit_item = next(iter(off.items()))
    use = uses[node]
    yield failed(
        "networks",
        f"{fold(off)} {'uses' if len(off) == 1 else 'use'} {use.description} in {use.network} ({use.reason}); "
        f"{len(division.agreeing)} nodes use {division.common}, in which {node} has {fit_item.name}",
        at=Evidence("interfaces", use.network, division.common, "ip -br addr", node),
        also=use.claims,
        nodes=tuple(off),
        remedy=f"Make {fold(off)} use {fit_item.name}: set this name there, or use a prefix that matches only "
        "interfaces of that network.",
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
    "NIC007", "no-route-to-peer", plan=_plan_routes, when="link", severity=Severity.ERROR, probes=(interfaces, routes)
)
@only_if(runs_on_several_machines, "routes between nodes", "the job runs on one machine")
def no_route_to_peer(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernel of every node has a route to the addresses that the other nodes publish, over the interface in use.

    What it checks: each node's routes to the interfaces in use of the next 16 nodes in rank order.

    Why it matters: libraries bind the listening side to the interface, but the kernel chooses the route for the
    connecting side; without a route, connections fail, and over another interface they are slow, or a strict rp_filter
    drops them.

    Example: node3 uses ib0 in 10.9.0.0/24, the others eth0 in 10.0.0.0/24, and nothing routes between them.

    Fix: select interfaces in one network, or add the route.

    Known limits: a route is not a connection; the link stage tries connections. Rails of one fabric may route through
    each other, so another interface is at most a warning.
    """
    yield from missing_facts(facts, routes, "routes between nodes")
    uses = usable_interfaces(job, facts)
    if not uses:
        yield unknown("routes between nodes", "which interface the job will use is unknown on every node")
        return
    peers: dict[str, str] = {}
    for node, use in uses.items():
        peers.setdefault(use.address.address, node)
    lost: dict[Pair, Route] = {}
    requested: set[Pair] = set()
    aside: dict[tuple[str, str], dict[str, Route]] = {}
    for node, seen in facts.observed(routes).items():
        own = uses.get(node)
        for used_route in seen.routes if own is not None else ():
            pair = (node, peers.get(used_route.destination, used_route.destination))
            requested.add(pair)
            if used_route.problem == "no-route":
                lost[pair] = used_route
            elif own is not None and _uses_other_interface(used_route, own):
                aside.setdefault((own.interface.name, used_route.interface), {}).setdefault(node, used_route)
    yield from (
        _missing_route_finding(source, destination, lost, uses)
        for source, destination in _group_lost_routes(lost, requested)
    )
    for (name, through), node_routes in aside.items():
        node, route = next(iter(node_routes.items()))
        yield failed(
            f"{name} aside",
            f"{fold(node_routes)} {'uses' if len(node_routes) == 1 else 'use'} {name}, but the kernel reaches "
            f"{peers.get(route.destination, route.destination)} ({route.destination}) through {through}",
            at=Evidence("route", f"dev {through}", f"dev {name}", f"ip route get {route.destination}", node),
            also=uses[node].claims,
            nodes=tuple(node_routes),
            remedy=f"Select {through} on {fold(node_routes)}, or route the peers' network through {name}.",
            certain=False,
        )
    if requested and not lost and not aside:
        yield passed(f"routes between {len(uses)} nodes, each to {_reach(len(uses))} others")


def _reach(count: int) -> int:
    return max(0, min(PEERS if count <= MANY else FEWER, count - 1))


def _uses_other_interface(route: Route, used: UsedInterface) -> bool:
    names = {item.name for item in used.candidates}
    return not route.problem and bool(route.interface) and route.interface not in names | {"lo"}


def _group_lost_routes(
    lost: Mapping[Pair, Route], requested: set[Pair]
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the missing routes as (sources, destinations): first to nodes that no other node reaches, then by node."""
    remaining = set(lost)
    columns: dict[str, set[Pair]] = {}
    of_node: dict[str, set[Pair]] = {}
    for pair in requested:
        columns.setdefault(pair[1], set()).add(pair)
    for pair in lost:
        for name in pair:
            of_node.setdefault(name, set()).add(pair)
    for destination in sorted({pair[1] for pair in lost}):
        column = columns.get(destination, set())
        if len(column) > 1 and column <= lost.keys() and column & remaining:
            yield tuple(sorted(source for source, _ in column)), (destination,)
            remaining -= of_node[destination]
    rows = grouped((source, destination) for source, destination in sorted(remaining))
    for source, destinations in rows.items():
        yield (source,), tuple(destinations)


def _missing_route_finding(
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
        remedy="Select interfaces of the same network on all nodes, or add the missing route: `ip route add "
        f"{route.destination} ...` on {fold(sources)}.",
    )
