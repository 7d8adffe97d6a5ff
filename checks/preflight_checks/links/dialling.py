"""Who dials whom at which addresses and ports: the requests all link checks share, and what came of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from preflight.job import Claim, Job
from preflight.links import schedule
from preflight.matrix import Cell
from preflight.once import once
from preflight.recording import Facts, Fleet, Node, NodeRecord, Observed, Seen
from preflight.request import Request, probe_name
from preflight_checks.demands import Endpoint, backends, endpoints_on, is_loopback, owner, stand_ins
from preflight_checks.network.interface_filter import chosen, dialled, nccl_default
from preflight_checks.network.names import lookups
from preflight_checks.probes.interfaces import Interface, interfaces
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.links import Dialled, Target, dial

#: Label of the port the kernel picks, as Gloo and NCCL let it do for their own connections.
FREE = "a free port"
#: The first look at everything, and the second at what failed; a lost SYN is sent again after a second.
_FIRST = {"connect_s": 2.0, "budget_s": 4.5}
_SECOND = {"connect_s": 1.5, "budget_s": 3.0, "look": 2}
#: What the probe may take beyond its own budget to start and to answer.
_MARGIN_S = 1.5
#: Failures that a moment's trouble can cause, so that they are looked at a second time before anybody is blamed.
_MOMENTARY = ("filtered", "silent", "reset", "refused", "no-route", "slow")
#: Endpoints that every node dials, in a sample too; so many at the same time, and the next ones a little later.
_STAR = ("store", "rendezvous", "server")
_AT_ONCE, _STAGGER_S = 64, 0.05


def bound_by(job: Job, fleet: Fleet) -> dict[str, list[Endpoint]]:
    """The endpoints with a port that each node binds, by node name."""
    found: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints_on(job, fleet):
        node = owner(fleet, endpoint)
        if node is None and endpoint.kind in ("store", "rendezvous"):
            node = fleet.master
        if node is not None and 0 < endpoint.port < 65536:
            found.setdefault(node.name, []).append(endpoint)
    return found


def label_of(endpoint: Endpoint) -> str:
    """How an endpoint is called in params and messages."""
    return f"{endpoint.what} {endpoint.port}"


def partners(fleet: Fleet) -> dict[str, list[str]]:
    """Whom each reached node tries, in the order of the rounds."""
    found: dict[str, list[str]] = {node.name: [] for node in fleet.reached}
    for pairs in schedule(tuple(found)).rounds:
        for a, b in pairs:
            found[a].append(b)
            found[b].append(a)
    return found


def listeners(job: Job, fleet: Fleet) -> Iterator[Request]:
    """A listener on every reached node, on the ports that the job binds there."""
    binds = bound_by(job, fleet)
    for node in fleet.reached:
        ports = sorted({item.port for item in binds.get(node.name, ())})
        yield Request(probe_name(listen), node.name, {"ports": ports})


def plan_links(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """One listener a node, and one dialling request a node for all its partners; every link check shares them.

    Whatever sample of pairs is taken, every node dials the ports where all ranks meet, and every parameter server.
    """
    if len(fleet.nodes) < 2 or len(fleet.reached) < 2:
        return
    yield from listeners(job, fleet)
    together = stand_ins(fleet)
    binds = bound_by(job, fleet)
    addresses = addresses_of(job, fleet, facts)
    claims = tuple(dict.fromkeys(claim for found in binds.values() for item in found for claim in item.claims))
    star = {name: [item for item in found if item.kind in _STAR] for name, found in binds.items() if name in addresses}

    def spelled(item: Endpoint, peer: str) -> str:
        return item.host if item.host and not is_loopback(item.host) and not together else addresses[peer]

    for index, (source, peers) in enumerate(partners(fleet).items()):
        targets: list[dict[str, object]] = []
        for peer in peers:
            targets.append({"peer": peer, "label": FREE, "host": addresses[peer], "port": 0})
            for item in binds.get(peer, ()):
                targets.append({"peer": peer, "label": label_of(item), "host": spelled(item, peer), "port": item.port})
        met = {source, *peers}
        wait_s = round(index // _AT_ONCE * _STAGGER_S, 3)
        for peer in star:
            for item in star[peer] if peer not in met else ():
                where = {"peer": peer, "label": label_of(item), "host": spelled(item, peer), "port": item.port}
                targets.append({**where, "after_s": wait_s})
        every = tuple(dict.fromkeys(str(target["peer"]) for target in targets))
        yield _dialling(source, every, {"targets": targets, **_FIRST}, claims)


def plan_second_look(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """What failed in a way that a moment's trouble can cause, once more: a busy node is not a closed port."""
    for seen in facts.each(dial):
        if not isinstance(seen.fact, Observed) or seen.params.get("look"):
            continue
        failed = {(target.peer, target.label) for target in seen.fact.value.targets if target.status in _MOMENTARY}
        wanted = seen.params.get("targets", ())
        again = [
            {**{k: v for k, v in target.items() if k != "after_s"}, "knock": knock_of(seen.node, str(target["peer"]))}
            for target in wanted
            if (target["peer"], target["label"]) in failed
        ]
        if again:
            peers = tuple(dict.fromkeys(str(target["peer"]) for target in again))
            yield _dialling(seen.node, peers, {"targets": again, **_SECOND}, seen.asked.because)


def knock_of(source: str, peer: str) -> str:
    """The id by which `peer` knows that datagrams of `source` arrive."""
    return hashlib.sha256(f"{source} {peer}".encode()).hexdigest()[:16]


@once
def heard(facts: Facts) -> frozenset[str]:
    """The ids of all knocks that arrived."""
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


@once
def addresses_of(job: Job, fleet: Fleet, facts: Facts) -> dict[str, str]:
    """The address at which the job's processes will be dialled, by node name.

    That of the interface a filter chooses; for Gloo what the node's own name resolves to; else of the interface
    NCCL would take by itself; and the name of the node where nothing of it is known.
    """
    have = {node: fact.interfaces for node, fact in facts.observed(interfaces).items()}
    by_name = "nccl" not in backends(job)[0]
    own = {
        seen.node: [text for text in seen.fact.value.addresses if not is_loopback(text)]
        for seen in lookups(facts, own=True)
        if by_name and isinstance(seen.fact, Observed)
    }
    return {node.name: _address(job, node, have.get(node.name, ()), own.get(node.name)) for node in fleet.reached}


def address_of(job: Job, node: Node, facts: Facts) -> str:
    """The address of one node, as `addresses_of` chooses it."""
    return addresses_of(job, Fleet((NodeRecord(node),)), facts)[node.name]


def _address(job: Job, node: Node, have: Sequence[Interface], own: Sequence[str] | None) -> str:
    choice = chosen(job, node.name, have)
    if choice is not None and not choice.interface.loopback:
        return choice.address.address
    if own:
        return own[0]
    for item in nccl_default(have).interfaces:
        address = dialled(item)
        if address is not None and item.up and not item.loopback:
            return address.address
    # A process of this machine that plays a node has a name that nothing resolves.
    return "127.0.0.1" if is_loopback(node.address or "-") else node.name


@once
def cells(facts: Facts) -> tuple[Cell[Target], ...]:
    """Every dialled port of every pair, as it was seen last; what was no longer tried again stays as it was."""
    looks: dict[str, list[tuple[Seen[Dialled], Dialled]]] = {}
    for seen in facts.each(dial):
        if isinstance(seen.fact, Observed):
            looks.setdefault(seen.node, []).append((seen, seen.fact.value))
    found: list[Cell[Target]] = []
    for node, several in looks.items():
        if len(several) > 1:
            several.sort(key=lambda look: bool(look[0].params.get("look")))
        of_node: dict[tuple[str, str], Cell[Target]] = {}
        for seen, dialled_by in several:
            for target in dialled_by.targets:
                key = (target.peer, target.label)
                if target.status != "untried" or key not in of_node:
                    of_node[key] = Cell(node, target.peer, target.label, target, seen.finished_s)
        found.extend(of_node.values())
    return tuple(found)


@once
def only_at_first(facts: Facts) -> list[Cell[Target]]:
    """What failed at the first look and worked at the second."""
    failed = [
        Cell(seen.node, target.peer, target.label, target, seen.finished_s)
        for seen in facts.each(dial)
        if isinstance(seen.fact, Observed)
        for target in seen.fact.value.targets
        if target.status in _MOMENTARY and not seen.params.get("look")
    ]
    if not failed:
        return []
    now = {(cell.source, cell.peer, cell.label) for cell in cells(facts) if cell.result.status == "ok"}
    return [cell for cell in failed if (cell.source, cell.peer, cell.label) in now]


def claims_of(job: Job, fleet: Fleet, labels: set[str]) -> tuple[Claim, ...]:
    """The claims that spell the ports behind these labels."""
    found = [item for items in bound_by(job, fleet).values() for item in items if label_of(item) in labels]
    return tuple(dict.fromkeys(claim for item in found for claim in item.claims))


def coverage(fleet: Fleet) -> str:
    """What was tried, for the outcome of a check that found nothing."""
    names = [node.name for node in fleet.reached]
    plan = schedule(names)
    everybody = ", and every node to where the ranks meet" if plan.is_sample else ""
    return f"links: {plan.statement}, both ways{everybody}; TCP only, UDP and RDMA are not tried"
