"""Whether each node's address is answered for by that node alone."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, is_literal, stand_ins, unseen
from preflight_checks.links.dialling import addresses_of, cells, partners
from preflight_checks.probes.links import dial
from preflight_checks.probes.neighbours import Neighbours, neighbours

#: Each node asks for the addresses of so many others; every machine of a network hears every question.
_ASKED = 3


def plan_neighbours(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Once the nodes have dialled each other, what they know of each other's hardware addresses."""
    if stand_ins(fleet) or not any(True for _ in facts.each(dial)):
        return
    addresses = addresses_of(job, fleet, facts)
    for node, others in partners(fleet).items():
        asked = [addresses[other] for other in others[:_ASKED] if is_literal(addresses[other])]
        yield Request(probe_name(neighbours), node, {"ask": asked}, deadline_s=3.0)


@dataclass(frozen=True, slots=True)
class Contested:
    """An address of `node` that another machine answers for, with these hardware addresses.

    `stranger` is that machine where it is a node of the job; `both` whether the node itself answers, too.
    """

    node: str
    address: str
    stranger: str
    hardware: tuple[str, ...]
    seen_by: tuple[str, ...]
    both: bool


def contested(facts: Facts) -> tuple[Contested, ...]:
    """Addresses of nodes for which somebody else answers.

    A hardware address that answers for several addresses is a router's or a cloud's (proxy ARP), and is no stranger.
    One that alone is known for an address is one only where dialling leads to a stranger: a bond, a virtual function or
    a container's bridge may well answer with another hardware address than the interface's own.
    """
    have = facts.observed(neighbours)
    owners = {address: node for node, seen in have.items() for card in seen.cards for address in card.addresses}
    cards = {card.hardware: node for node, seen in have.items() for card in seen.cards}
    heard: dict[str, dict[str, set[str]]] = {}
    for observer, seen in have.items():
        for address, hardware in _said(seen):
            if owners.get(address, observer) != observer:
                heard.setdefault(address, {}).setdefault(hardware, set()).add(observer)
    answering: dict[str, set[str]] = {}
    for address, known in heard.items():
        for hardware in known:
            if cards.get(hardware) != owners[address]:
                answering.setdefault(hardware, set()).add(address)
    unreached = {(cell.source, cell.result.address) for cell in cells(facts) if cell.result.status != "ok"}
    found: list[Contested] = []
    for address, known in sorted(heard.items()):
        node = owners[address]
        strangers = [h for h in sorted(known) if cards.get(h) != node and len(answering[h]) == 1]
        both = any(cards.get(hardware) == node for hardware in known)
        observers = tuple(sorted({name for hardware in strangers for name in known[hardware]}))
        if strangers and (both or any((observer, address) in unreached for observer in observers)):
            named = next((cards[hardware] for hardware in strangers if hardware in cards), "")
            found.append(Contested(node, address, named, tuple(strangers), observers, both))
    return tuple(found)


def _said(seen: Neighbours) -> Iterator[tuple[str, str]]:
    for entry in seen.table:
        yield entry.address, entry.hardware
    for address, answers in seen.answers.items():
        for hardware in answers:
            yield address, hardware


def disputed_pairs(facts: Facts) -> set[frozenset[str]]:
    """Pairs of nodes whose connections a stranger may have taken; LNK007 says so already."""
    everybody = facts.observed(neighbours)
    return {frozenset((item.node, other)) for item in contested(facts) for other in everybody if other != item.node}


@check(
    "LNK007",
    "address-answered-twice",
    plan=lambda job, fleet, facts: (),
    follow_up=plan_neighbours,
    probes=(neighbours,),
    cost="reads the kernel's neighbour table when the nodes have dialled each other, sends three ARP requests; 0.3 s",
    without_root="a second machine that answers for an address is seen only by the nodes it answered first",
    when="link",
    severity=Severity.ERROR,
    evidence=("https://www.rfc-editor.org/rfc/rfc5227",),
)
def address_answered_twice(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No other machine answers for the address of a node.

    What it checks: the hardware addresses that the nodes know, and get when they ask, for each other's addresses,
    against those of the node that has it.

    Why it matters: whoever's answer came first gets the packets: some nodes reach the right machine, others
    a stranger, and after a minute it may be the other way round.

    Example: node3's 10.0.0.13 is answered for by 02:00:00:00:03:01, node3's own card, and by 02:00:00:00:09:99.

    Fix: find the machine with that hardware address in the switch's table, and give it another address.

    Known limits: IPv4 only where it is asked for; a hardware address that answers for several nodes is taken for a
    router's.

    Evidence: RFC 5227 (what becomes of hosts that share an address, and how such are found).
    """
    if len(fleet.nodes) < 2:
        yield not_applicable("hardware addresses", "the job has one node")
        return
    if stand_ins(fleet):
        yield not_applicable("hardware addresses", "all nodes are this machine")
        return
    found = contested(facts)
    for item in found:
        yield _finding(item, facts)
    yield from unseen(facts, neighbours, "hardware addresses")
    have = facts.observed(neighbours)
    shy = dict.fromkeys(seen.not_asked for seen in have.values() if seen.not_asked)
    if have and not found:
        asked = f"; {fold(shy, 1)}, so only the neighbour tables were compared" if shy else ""
        yield passed(f"hardware addresses of {len(have)} nodes{asked}")
    elif not any(True for _ in facts.each(neighbours)):
        yield unknown("hardware addresses", "nobody dialled anybody")


def _finding(item: Contested, facts: Facts) -> Verdict:
    own = [card for card in facts.observed(neighbours)[item.node].cards if item.address in card.addresses]
    hardware = fold(item.hardware, 3)
    who = f"{item.stranger} ({hardware})" if item.stranger else f"another machine ({hardware})"
    mine = f"{own[0].name}, {own[0].hardware}" if own else "its own card"
    seen = "besides" if item.both else "instead of"
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
        nodes=(item.node, item.stranger) if item.stranger else (item.node,),
        remedy=f"Find {hardware} in the switch's table of hardware addresses and give that machine another "
        f"address; then `ip neigh flush to {item.address}` on every node.",
    )
