"""The requests that all link checks share (which node connects to which address and port), and their results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from preflight._util.hostnames import is_loopback
from preflight._util.sequences import grouped
from preflight.analysis.link_matrix import Cell, schedule
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Node, NodeRecord, Observed
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, memoize, passed, unknown
from preflight_checks.network.interface_filter import chosen, dialled_address, nccl_default
from preflight_checks.network.names import lookups
from preflight_checks.plans import (
    has_several_nodes,
    known_facts,
    no_requests,
    only_if,
    requests_for,
    runs_on_several_machines,
)
from preflight_checks.probes.environment import server_place
from preflight_checks.probes.interfaces import Interface, interfaces
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.links import Target, dial
from preflight_checks.probes.neighbours import Card, Neighbours, neighbours
from preflight_checks.requirements import (
    Endpoint,
    backends,
    endpoints_on,
    fold,
    is_literal,
    nodes_share_machine,
    owner,
    parse_address,
)
from preflight_checks.servers import endpoints_of

#: Label of a port that the kernel picks, as for the connections of Gloo and NCCL.
FREE = "a free port"
#: Label of ports across the whole range from which the kernel picks: a filter may cover a part of it only.
SPREAD = "ports across the ephemeral range"
#: Each node listens on this number of them, and dials them on this number of its peers.
_SPREAD_PORTS, _SPREAD_PEERS = 8, 8
#: Parameters of the first try of everything, and of the second try of failures; a lost SYN is sent again after a
#: second.
_FIRST = {"connect_s": 2.0, "budget_s": 4.5}
_SECOND = {"connect_s": 1.5, "budget_s": 3.0, "look": 2}
#: Time that the probe may need beyond its budget, to start and to answer.
_MARGIN_S = 1.5
#: Failures that can be transient, so that they are tried a second time before they are reported.
_TRANSIENT_STATUSES = ("filtered", "silent", "reset", "refused", "prohibited", "no-route", "slow")
#: Endpoints that every node dials, even in a sample; this many at a time, the next ones a little later.
_DIALLED_BY_ALL = ("store", "rendezvous", "server")
_AT_ONCE, _STAGGER_S = 64, 0.05


@memoize
def bound_by(job: Job, fleet: Fleet, facts: Facts) -> dict[str, list[Endpoint]]:
    """Return the endpoints with a port that each node binds, by node name."""
    return grouped(
        (node, endpoint)
        for endpoint in _endpoints(job, fleet, facts)
        if (node := _binder(job, fleet, facts, endpoint)) is not None and 0 < endpoint.port < 65536
    )


def _endpoints(job: Job, fleet: Fleet, facts: Facts) -> tuple[Endpoint, ...]:
    """Return the endpoints in the job's files, or the servers and trainers that only the nodes' environment lists."""
    listed, stated = endpoints_of(job, facts)
    return (*endpoints_on(job, fleet), *(() if stated else listed))


def undialled(job: Job, fleet: Fleet, facts: Facts) -> Iterator[tuple[Endpoint, str]]:
    """Yield the endpoints that no node tried, with the reason; none on one machine, where names are meaningless."""
    labels = {cell.label for cell in cells(facts)}
    reached = {node.name for node in fleet.reached}
    if nodes_share_machine(fleet) or not labels:
        return
    for endpoint in _endpoints(job, fleet, facts):
        node = _binder(job, fleet, facts, endpoint)
        if not 0 < endpoint.port < 65536 or label_of(endpoint) in labels:
            continue
        if node is None:
            yield endpoint, f"no node is known to have the address {endpoint.host}, so its port was not tested"
        elif node in reached and endpoint.kind == "server":
            yield endpoint, f"no node tried to connect to it on {node}"


def _binder(job: Job, fleet: Fleet, facts: Facts, endpoint: Endpoint) -> str | None:
    """Return the node that binds `endpoint`, by its name or else by the nodes' own addresses; None if unknown."""
    node = owner(fleet, endpoint)
    if node is None and endpoint.kind in ("store", "rendezvous"):
        node = fleet.master
    if node is not None:
        return node.name
    holders = set(_holders(facts).get(parse_address(endpoint.host), ()))
    if not holders:
        holders = {
            name
            for name, place in facts.observed(server_place).items()
            if any(host.host == endpoint.host and host.local for host in place.hosts)
        }
    known = holders & {node.name for node in fleet.nodes}
    return known.pop() if len(known) == 1 else None


@memoize
def _holders(facts: Facts) -> dict[IPv4Address | IPv6Address | None, list[str]]:
    """Return the nodes that have each address on an interface that is not loopback."""
    return grouped(
        (parsed, node)
        for node, fact in facts.observed(interfaces).items()
        for item in fact.interfaces
        if not item.loopback
        for address in item.addresses
        if (parsed := parse_address(address.address)) is not None
    )


def label_of(endpoint: Endpoint) -> str:
    """Return the name of an endpoint in params and messages."""
    return f"{endpoint.what} {endpoint.port}"


def partners(fleet: Fleet) -> dict[str, list[str]]:
    """Return the peers to which each reached node connects, in the order of the rounds."""
    found: dict[str, list[str]] = {node.name: [] for node in fleet.reached}
    for pairs in schedule(tuple(found)).rounds:
        for a, b in pairs:
            found[a].append(b)
            found[b].append(a)
    return found


def listeners(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Request a listener on every reached node, on the ports that the job binds there."""
    binds = bound_by(job, fleet, facts)
    for node in fleet.reached:
        ports = sorted({item.port for item in binds.get(node.name, ())})
        yield Request(probe_name(listen), node.name, {"ports": ports, "spread": _SPREAD_PORTS})


@requests_for(dial, listen)
def plan_links(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Request one listener and one connecting probe per node for all link checks; all nodes try the job's own
    endpoints.
    """
    if len(fleet.nodes) < 2 or len(fleet.reached) < 2:
        return
    yield from listeners(job, fleet, facts)
    together = nodes_share_machine(fleet)
    binds = bound_by(job, fleet, facts)
    addresses = addresses_of(job, fleet, facts)
    claims = tuple(dict.fromkeys(claim for found in binds.values() for item in found for claim in item.claims))
    star = {
        name: [item for item in found if item.kind in _DIALLED_BY_ALL]
        for name, found in binds.items()
        if name in addresses
    }

    def as_written(item: Endpoint, peer: str) -> str:
        return item.host if item.host and not is_loopback(item.host) and not together else addresses[peer]

    for index, (source, peers) in enumerate(partners(fleet).items()):
        targets: list[dict[str, object]] = []
        for turn, peer in enumerate(peers):
            targets.append({"peer": peer, "label": FREE, "host": addresses[peer], "port": 0})
            for item in binds.get(peer, ()):
                targets.append(
                    {"peer": peer, "label": label_of(item), "host": as_written(item, peer), "port": item.port}
                )
            if not together and turn < _SPREAD_PEERS:
                targets.append({"peer": peer, "label": SPREAD, "host": addresses[peer], "port": 0, "spread": True})
        visited = {source, *peers}
        wait_s = round(index // _AT_ONCE * _STAGGER_S, 3)
        for peer in star:
            for item in star[peer] if peer not in visited else ():
                where = {"peer": peer, "label": label_of(item), "host": as_written(item, peer), "port": item.port}
                targets.append({**where, "after_s": wait_s})
        every = tuple(dict.fromkeys(str(target["peer"]) for target in targets))
        yield _dialling(source, every, {"targets": targets, **_FIRST}, claims)


def plan_second_try(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Request transient failures once more, because a busy node is not a closed port."""
    for row in facts.each(dial):
        if not isinstance(row.fact, Observed) or row.params.get("look"):
            continue
        failed = {
            (target.peer, target.label) for target in row.fact.value.targets if target.status in _TRANSIENT_STATUSES
        }
        wanted = row.params.get("targets", ())
        again = [
            {**{k: v for k, v in target.items() if k != "after_s"}, "knock": knock_id(row.node, str(target["peer"]))}
            for target in wanted
            if (target["peer"], target["label"]) in failed
        ]
        if again:
            peers = tuple(dict.fromkeys(str(target["peer"]) for target in again))
            yield _dialling(row.node, peers, {"targets": again, **_SECOND}, row.asked.because)


def knock_id(source: str, peer: str) -> str:
    """Return the id by which `peer` recognizes datagrams of `source`."""
    return hashlib.sha256(f"{source} {peer}".encode()).hexdigest()[:16]


@memoize
def received_ids(facts: Facts) -> frozenset[str]:
    """Return the ids of all datagrams that arrived."""
    return frozenset(str(event.data["heard"]) for event in facts.events() if "heard" in event.data)


def _dialling(source: str, peers: tuple[str, ...], params: dict[str, object], claims: tuple[Claim, ...]) -> Request:
    budget_s = params["budget_s"]
    assert isinstance(budget_s, float)
    return Request(
        probe_name(dial),
        source,
        params,
        peers=peers,
        listen=probe_name(listen),
        because=claims,
        required=True,
        deadline_s=budget_s + _MARGIN_S,
    )


@memoize
def addresses_of(job: Job, fleet: Fleet, facts: Facts) -> dict[str, str]:
    """Return the address at which the job's processes will be contacted, by node name.

    It is that of the interface that a filter selects; otherwise, for Gloo, the address of the node's own name;
    otherwise NCCL's default interface; otherwise the node's name.
    """
    observed = {node: fact.interfaces for node, fact in facts.observed(interfaces).items()}
    by_name = "nccl" not in backends(job)[0]
    own = {
        row.node: [text for text in row.fact.value.addresses if not is_loopback(text)]
        for row in lookups(facts, own=True)
        if by_name and isinstance(row.fact, Observed)
    }
    return {node.name: _address(job, node, observed.get(node.name, ()), own.get(node.name)) for node in fleet.reached}


def address_of(job: Job, node: Node, facts: Facts) -> str:
    """Return the address of one node, as `addresses_of` chooses it."""
    return addresses_of(job, Fleet((NodeRecord(node),)), facts)[node.name]


def _address(job: Job, node: Node, observed: Sequence[Interface], own_addresses: Sequence[str] | None) -> str:
    choice = chosen(job, node.name, observed)
    if choice is not None and not choice.interface.loopback:
        return choice.address.address
    if own_addresses:
        return own_addresses[0]
    for item in nccl_default(observed).interfaces:
        address = dialled_address(item)
        if address is not None and item.up and not item.loopback:
            return address.address
    # A node that is a process of this machine has a name that does not resolve.
    return "127.0.0.1" if is_loopback(node.address or "-") else node.name


@memoize
def cells(facts: Facts) -> tuple[Cell[Target], ...]:
    """Return the latest result for every tried port of every pair."""
    results = grouped((row.node, (row, row.fact.value)) for row in facts.each(dial) if isinstance(row.fact, Observed))
    dial_cells: list[Cell[Target]] = []
    for node, several in results.items():
        if len(several) > 1:
            several.sort(key=lambda look: bool(look[0].params.get("look")))
        of_node: dict[tuple[str, str], Cell[Target]] = {}
        for row, dialled_by in several:
            for target in dialled_by.targets:
                if target.label == SPREAD and not target.ports and target.status == "ok":
                    # The peer's range is too small to be divided.
                    continue
                key = (target.peer, target.label)
                if target.status != "untried" or key not in of_node:
                    of_node[key] = Cell(node, target.peer, target.label, target, row.finished_s)
        dial_cells.extend(of_node.values())
    return tuple(dial_cells)


@memoize
def failed_at_first(facts: Facts) -> list[Cell[Target]]:
    """Return the results that failed on the first try and worked on the second."""
    failed = [
        Cell(row.node, target.peer, target.label, target, row.finished_s)
        for row in facts.each(dial)
        if isinstance(row.fact, Observed)
        for target in row.fact.value.targets
        if target.status in _TRANSIENT_STATUSES and not row.params.get("look")
    ]
    if not failed:
        return []
    now = {(cell.source, cell.peer, cell.label) for cell in cells(facts) if cell.result.status == "ok"}
    return [cell for cell in failed if (cell.source, cell.peer, cell.label) in now]


def claims_of(job: Job, fleet: Fleet, facts: Facts, labels: set[str]) -> tuple[Claim, ...]:
    """Return the claims that give the ports of these labels."""
    found = [item for items in bound_by(job, fleet, facts).values() for item in items if label_of(item) in labels]
    return tuple(dict.fromkeys(claim for item in found for claim in item.claims))


def coverage(fleet: Fleet, facts: Facts) -> str:
    """Return the note of a passing check: the tried pairs and ports, including those of nodes that were lost later."""
    dialled_from = {row.node for row in facts.each(dial) if isinstance(row.fact, Observed)}
    names = [record.node.name for record in fleet.records if not record.problem or record.node.name in dialled_from]
    plan = schedule(names)
    rendezvous_note = ", and the rendezvous ports from every node" if plan.is_sample else ""
    return (
        f"links: {plan.coverage_text}, in both directions{rendezvous_note}; {_spread_note(facts)}only TCP, not UDP "
        "or RDMA"
    )


def _spread_note(facts: Facts) -> str:
    """Return a description of the part of the ephemeral range that was tried."""
    ports: dict[str, set[int]] = {}
    for cell in cells(facts):
        if cell.label == SPREAD:
            ports.setdefault(cell.peer, set()).update(cell.result.ports)
    if not ports:
        return ""
    all_ports = {port for found in ports.values() for port in found}
    fewest, most = (pick(len(found) for found in ports.values()) for pick in (min, max))
    count = str(most) if fewest == most else f"{fewest} to {most}"
    return f"on each node, {count} sampled ports from {min(all_ports)} to {max(all_ports)}; "


#: Each node queries the addresses of this many others; every machine of a network receives every request.
_MAX_REQUESTED = 3


def plan_neighbours(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Request the nodes' tables of each other's hardware addresses, after the nodes have connected to each other."""
    if nodes_share_machine(fleet) or not any(True for _ in facts.each(dial)):
        return
    addresses = addresses_of(job, fleet, facts)
    for node, others in partners(fleet).items():
        requested = [addresses[other] for other in others[:_MAX_REQUESTED] if is_literal(addresses[other])]
        yield Request(probe_name(neighbours), node, {"ask": requested}, deadline_s=3.0)


#: Results other than a failed connection: the connection worked, was slow, or was not tried.
_NOT_FAILED = ("ok", "slow", "untried", "unbound")


@dataclass(frozen=True, slots=True)
class ArpConflict:
    """An address of `node` for which another machine, with these hardware addresses, also responds.

    `other_node` is that machine if it is a node of the job. `owner_answers`: whether `node` itself responds too.
    """

    node: str
    address: str
    other_node: str
    hardware: tuple[str, ...]
    seen_by: tuple[str, ...]
    owner_answers: bool


def arp_conflicts(facts: Facts) -> tuple[ArpConflict, ...]:
    """Return the conflicts: addresses of nodes for which another machine responds.

    A hardware address that responds for several addresses belongs to a router or cloud (proxy ARP) and is ignored. If
    an IP address has only one known hardware address, it counts only if connections fail: a bond, a virtual function or
    a container bridge may respond with an address other than the interface's own.
    """
    observed = facts.observed(neighbours)
    twins = set(shared_hardware(facts))
    owners = {address: node for node, seen in observed.items() for card in seen.cards for address in card.addresses}
    cards = {card.hardware: node for node, seen in observed.items() for card in seen.cards}
    answers: dict[str, dict[str, set[str]]] = {}
    for observer, seen in observed.items():
        for address, hardware in _answers(seen):
            if owners.get(address, observer) != observer:
                answers.setdefault(address, {}).setdefault(hardware, set()).add(observer)
    answering: dict[str, set[str]] = {}
    for address, known in answers.items():
        for hardware in known:
            if cards.get(hardware) != owners[address]:
                answering.setdefault(hardware, set()).add(address)
    unreached = {(cell.source, cell.result.address) for cell in cells(facts) if cell.result.status not in _NOT_FAILED}
    conflicts: list[ArpConflict] = []
    for address, known in sorted(answers.items()):
        node = owners[address]
        strangers = [h for h in sorted(known) if cards.get(h) != node and len(answering[h]) == 1 and h not in twins]
        both = any(cards.get(hardware) == node for hardware in known)
        observers = tuple(sorted({name for hardware in strangers for name in known[hardware]}))
        if strangers and (both or any((observer, address) in unreached for observer in observers)):
            named = next((cards[hardware] for hardware in strangers if hardware in cards), "")
            conflicts.append(ArpConflict(node, address, named, tuple(strangers), observers, both))
    return tuple(conflicts)


def shared_hardware(facts: Facts) -> dict[str, dict[str, Card]]:
    """Return the hardware addresses that several nodes' network cards share, each with its cards by node."""
    dialled = {cell.result.address for cell in cells(facts)}
    found: dict[str, dict[str, Card]] = {}
    for node, seen in facts.observed(neighbours).items():
        for card in seen.cards:
            if dialled.intersection(card.addresses):
                found.setdefault(card.hardware, {})[node] = card
    return {hardware: holders for hardware, holders in found.items() if len(holders) > 1}


def _answers(neighbours: Neighbours) -> Iterator[tuple[str, str]]:
    for entry in neighbours.table:
        yield entry.address, entry.hardware
    for address, answers in neighbours.answers.items():
        for hardware in answers:
            yield address, hardware


def disputed_pairs(facts: Facts) -> set[frozenset[str]]:
    """Return the pairs of nodes whose connections may have reached another machine, which LNK007 reports."""
    everyone = facts.observed(neighbours)
    contested = {item.node for item in arp_conflicts(facts)}.union(*shared_hardware(facts).values())
    return {frozenset((node, other)) for node in contested for other in everyone if other != node}


@check(
    "LNK007",
    "address-answered-twice",
    plan=no_requests,
    follow_up=plan_neighbours,
    probes=(neighbours,),
    when="link",
    severity=Severity.ERROR,
)
@only_if(has_several_nodes, "hardware addresses", "the job has one node")
@only_if(runs_on_several_machines, "hardware addresses", "all nodes are this machine")
def address_answered_twice(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No other machine responds for the address of a node.

    What it checks: the hardware addresses that the nodes have stored for each other, and get in response to a new
    request, compared with the owner's.

    Why it matters: the first response wins: some nodes reach the right machine, others the wrong one, and a minute
    later it may be the other way round.

    Example: two cards respond for node3's 10.0.0.13: 02:00:00:00:03:01, node3's own, and 02:00:00:00:09:99.

    Fix: find the machine with that hardware address in the switch's table, and assign it another address.

    Known limits: requests are sent for IPv4 only; a hardware address that responds for several nodes is assumed to be a
    router's.
    """
    found = arp_conflicts(facts)
    for item in found:
        yield _finding(item, facts)
    observed = yield from known_facts(facts, neighbours, "hardware addresses")
    refusals = dict.fromkeys(seen.not_asked for seen in observed.values() if seen.not_asked)
    if observed and not found:
        requested = f"; {fold(refusals, 1)}, so only the neighbour tables were compared" if refusals else ""
        yield passed(f"hardware addresses of {len(observed)} nodes{requested}")
    elif not any(True for _ in facts.each(neighbours)):
        yield unknown("hardware addresses", "no node connected to any other node")


def _finding(item: ArpConflict, facts: Facts) -> Verdict:
    own = [card for card in facts.observed(neighbours)[item.node].cards if item.address in card.addresses]
    hardware = fold(item.hardware, 3)
    who = f"{item.other_node} ({hardware})" if item.other_node else f"another machine ({hardware})"
    mine = f"{own[0].name}, {own[0].hardware}" if own else "its own network card"
    observers = fold(item.seen_by, 4)
    owner = f"{item.node} ({mine})"
    return failed(
        f"{item.address} of {item.node}",
        f"{who} and {owner} both answer ARP for {item.address}, according to {observers}"
        if item.owner_answers
        else f"{who} answers ARP for {item.address} instead of {owner}, according to {observers}",
        at=Evidence(
            f"hardware address of {item.address}",
            hardware,
            own[0].hardware if own else "",
            f"ip neigh show {item.address}; arping -c 3 {item.address}",
            item.seen_by[0],
        ),
        nodes=(item.node, item.other_node) if item.other_node else (item.node,),
        remedy=f"Find {hardware} in the switch's MAC address table and give that machine a different IP address; "
        f"then `ip neigh flush to {item.address}` on every node.",
    )


@check(
    "LNK010",
    "hardware-address-of-two-nodes",
    plan=no_requests,
    follow_up=plan_neighbours,
    probes=(neighbours,),
    when="link",
    severity=Severity.ERROR,
)
@only_if(runs_on_several_machines, "hardware addresses", "all nodes are one machine")
def hardware_address_twice(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No two nodes have the same hardware address on the job's network.

    What it checks: the hardware addresses of the network cards through which the nodes are reached. The finding is an
    error if a connection to or from one of these nodes also failed, otherwise a warning.

    Why it matters: a switch sends all frames for the address to the port that used it last, so the two nodes take the
    connection from each other every few milliseconds.

    Example: node3 is a copy of node2's virtual machine, and its image keeps 52:54:00:12:34:56.

    Fix: give one of the nodes another hardware address.

    Known limits: a node that cannot be reached because of this is not compared. Containers of one machine may share an
    address on purpose (ipvlan).
    """
    observed = yield from known_facts(facts, neighbours, "hardware addresses")
    failing = {name for cell in cells(facts) if cell.result.status not in _NOT_FAILED for name in cell.pair}
    twins = shared_hardware(facts)
    for hardware, holders in twins.items():
        node, card = next(iter(holders.items()))
        certain = bool(failing.intersection(holders))
        yield failed(
            f"hardware address {hardware}",
            f"{fold(f'{name} ({item.name})' for name, item in holders.items())} have one hardware address, {hardware}",
            at=Evidence(
                "hardware address", hardware, "a different one on each node", f"ip link show {card.name}", node
            ),
            nodes=tuple(holders),
            remedy=f"Give all of {fold(holders)} but one a different hardware address: `ip link set {card.name} "
            "address`.",
            certain=certain,
        )
    if observed and not twins:
        yield passed(f"hardware addresses of {len(observed)} nodes differ")
    elif not observed:
        yield unknown("hardware addresses", "no node reported its cards")
