"""Checks that only the node itself answers ARP requests for its address."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, passed, unknown
from preflight_checks.links.dial_requests import addresses_of, cells, partners
from preflight_checks.plans import known_facts, multi_node, no_requests, only_if, several_nodes
from preflight_checks.probes.links import dial
from preflight_checks.probes.neighbours import Card, Neighbours, neighbours
from preflight_checks.requirements import fold, is_literal, nodes_share_machine

#: Each node queries the addresses of this many others; every machine of a network receives every request.
_MAX_REQUESTED = 3


def plan_neighbours(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """After the nodes have dialled each other, request their tables of each other's hardware addresses."""
    if nodes_share_machine(fleet) or not any(True for _ in facts.each(dial)):
        return
    addresses = addresses_of(job, fleet, facts)
    for node, others in partners(fleet).items():
        requested = [addresses[other] for other in others[:_MAX_REQUESTED] if is_literal(addresses[other])]
        yield Request(probe_name(neighbours), node, {"ask": requested}, deadline_s=3.0)


#: Results that do not say that a connection failed: it worked, was slow, or was not tried.
_NOT_FAILED = ("ok", "slow", "untried", "unbound")


@dataclass(frozen=True, slots=True)
class ArpConflict:
    """An address of `node` that another machine, with these hardware addresses, answers for.

    `other_node` is that machine if it is a node of the job; `owner_answers`: the node itself answers, too.
    """

    node: str
    address: str
    other_node: str
    hardware: tuple[str, ...]
    seen_by: tuple[str, ...]
    owner_answers: bool


def arp_conflicts(facts: Facts) -> tuple[ArpConflict, ...]:
    """Addresses of nodes for which another machine answers.

    A hardware address that answers for several addresses belongs to a router or cloud (proxy ARP) and is ignored. The
    only known hardware address of an IP address counts only if connections to it fail: a bond, a virtual function or a
    container bridge may answer with another hardware address than the interface's own.
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
    found: list[ArpConflict] = []
    for address, known in sorted(answers.items()):
        node = owners[address]
        strangers = [h for h in sorted(known) if cards.get(h) != node and len(answering[h]) == 1 and h not in twins]
        both = any(cards.get(hardware) == node for hardware in known)
        observers = tuple(sorted({name for hardware in strangers for name in known[hardware]}))
        if strangers and (both or any((observer, address) in unreached for observer in observers)):
            named = next((cards[hardware] for hardware in strangers if hardware in cards), "")
            found.append(ArpConflict(node, address, named, tuple(strangers), observers, both))
    return tuple(found)


def shared_hardware(facts: Facts) -> dict[str, dict[str, Card]]:
    """Hardware addresses of several nodes' cards at which these nodes are dialled: for each, card by node."""
    dialled = {cell.result.address for cell in cells(facts)}
    found: dict[str, dict[str, Card]] = {}
    for node, seen in facts.observed(neighbours).items():
        for card in seen.cards:
            if dialled.intersection(card.addresses):
                found.setdefault(card.hardware, {})[node] = card
    return {hardware: holders for hardware, holders in found.items() if len(holders) > 1}


def _answers(seen: Neighbours) -> Iterator[tuple[str, str]]:
    for entry in seen.table:
        yield entry.address, entry.hardware
    for address, answers in seen.answers.items():
        for hardware in answers:
            yield address, hardware


def disputed_pairs(facts: Facts) -> set[frozenset[str]]:
    """Pairs of nodes whose connections may have gone to another machine, which LNK007 reports."""
    everyone = facts.observed(neighbours)
    contested = {item.node for item in arp_conflicts(facts)}.union(*shared_hardware(facts).values())
    return {frozenset((node, other)) for node in contested for other in everyone if other != node}


@check(
    "LNK007",
    "address-answered-twice",
    plan=no_requests,
    follow_up=plan_neighbours,
    probes=(neighbours,),
    cost="reads the kernel's neighbour table after the nodes have connected to each other and sends three ARP "
    "requests; 0.3 s",
    without_root="a second machine that answers for an address is seen only by the nodes it answered first",
    when="link",
    severity=Severity.ERROR,
)
@only_if(several_nodes, "hardware addresses", "the job has one node")
@only_if(multi_node, "hardware addresses", "all nodes are this machine")
def address_answered_twice(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No other machine answers for the address of a node.

    What it checks: the hardware addresses that the nodes have stored for each other, and get in answer to a new
    request, compared with those of the owner.

    Why it matters: the first answer gets the packets: some nodes reach the right machine, others the wrong one, and a
    minute later it may be reversed.

    Example: two cards answer for node3's 10.0.0.13: 02:00:00:00:03:01, node3's own, and 02:00:00:00:09:99.

    Fix: find the machine with that hardware address in the switch's table, and give it another address.

    Known limits: requests are sent for IPv4 only; a hardware address that answers for several nodes is assumed to be a
    router's.
    """
    found = arp_conflicts(facts)
    for item in found:
        yield _finding(item, facts)
    observed = yield from known_facts(facts, neighbours, "hardware addresses")
    shy = dict.fromkeys(seen.not_asked for seen in observed.values() if seen.not_asked)
    if observed and not found:
        requested = f"; {fold(shy, 1)}, so only the neighbour tables were compared" if shy else ""
        yield passed(f"hardware addresses of {len(observed)} nodes{requested}")
    elif not any(True for _ in facts.each(neighbours)):
        yield unknown("hardware addresses", "no node connected to another")


def _finding(item: ArpConflict, facts: Facts) -> Verdict:
    own = [card for card in facts.observed(neighbours)[item.node].cards if item.address in card.addresses]
    hardware = fold(item.hardware, 3)
    who = f"{item.other_node} ({hardware})" if item.other_node else f"another machine ({hardware})"
    mine = f"{own[0].name}, {own[0].hardware}" if own else "its own card"
    seen = "besides" if item.owner_answers else "instead of"
    return failed(
        f"{item.address} of {item.node}",
        f"{who} answers for {item.address} {seen} {item.node} ({mine}), as {fold(item.seen_by, 4)} "
        f"{'sees' if len(item.seen_by) == 1 else 'see'}",
        at=Evidence(
            f"hardware address of {item.address}",
            hardware,
            own[0].hardware if own else "",
            f"ip neigh show {item.address}; arping -c 3 {item.address}",
            item.seen_by[0],
        ),
        nodes=(item.node, item.other_node) if item.other_node else (item.node,),
        remedy=f"Find {hardware} in the switch's table of hardware addresses and give that machine another "
        f"address; then `ip neigh flush to {item.address}` on every node.",
    )


@check(
    "LNK010",
    "hardware-address-of-two-nodes",
    plan=no_requests,
    follow_up=plan_neighbours,
    probes=(neighbours,),
    cost="the same neighbour tables as LNK007",
    when="link",
    severity=Severity.ERROR,
)
@only_if(multi_node, "hardware addresses", "all nodes are one machine")
def hardware_address_twice(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No two nodes have one hardware address on the network of the job.

    What it checks: the hardware addresses of the cards at which the nodes are dialled. It is an error if a connection
    to or from one of these nodes failed, too, otherwise a warning.

    Why it matters: a switch sends all frames for the address to the port that used it last, so that the two nodes take
    the network from each other every few milliseconds.

    Example: node3 is a copy of node2's virtual machine, and its image keeps 52:54:00:12:34:56.

    Fix: give one of the nodes another hardware address.

    Known limits: a node that cannot be reached because of this is not among those compared. Containers of one machine
    may share an address on purpose (ipvlan).
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
            at=Evidence("hardware address", hardware, "another one on each node", f"ip link show {card.name}", node),
            nodes=tuple(holders),
            remedy=f"Give all of {fold(holders)} but one another hardware address: `ip link set {card.name} address`.",
            certain=certain,
        )
    if observed and not twins:
        yield passed(f"hardware addresses of {len(observed)} nodes differ")
    elif not observed:
        yield unknown("hardware addresses", "no node reported its cards")
