"""The requests that all link checks share (which node dials which address and port), and their results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address

from preflight._util.hostnames import is_loopback
from preflight.analysis.link_matrix import Cell
from preflight.analysis.node_groups import schedule
from preflight.model.job import Claim, Job
from preflight.model.recording import FactRow, Facts, Fleet, Node, NodeRecord, Observed
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import memoize
from preflight_checks.network.interface_filter import chosen, dialled_address, nccl_default
from preflight_checks.network.names import lookups
from preflight_checks.plans import requests_for
from preflight_checks.probes.interfaces import Interface, interfaces
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.links import Dialled, Target, dial
from preflight_checks.probes.server_place import server_place
from preflight_checks.requirements import Endpoint, backends, endpoints_on, literal, nodes_share_machine, owner
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
    """The endpoints with a port that each node binds, by node name."""
    found: dict[str, list[Endpoint]] = {}
    for endpoint in _endpoints(job, fleet, facts):
        node = _binder(job, fleet, facts, endpoint)
        if node is not None and 0 < endpoint.port < 65536:
            found.setdefault(node, []).append(endpoint)
    return found


def _endpoints(job: Job, fleet: Fleet, facts: Facts) -> tuple[Endpoint, ...]:
    """The endpoints in the job's files, and servers and trainers that only the nodes' environment lists."""
    listed, stated = endpoints_of(job, facts)
    return (*endpoints_on(job, fleet), *(() if stated else listed))


def undialled(job: Job, fleet: Fleet, facts: Facts) -> Iterator[tuple[Endpoint, str]]:
    """The endpoints that no node dialled, each with the reason.

    There are none if the nodes are one machine: the hosts in the job then mean nothing.
    """
    labels = {cell.label for cell in cells(facts)}
    reached = {node.name for node in fleet.reached}
    if nodes_share_machine(fleet) or not labels:
        return
    for endpoint in _endpoints(job, fleet, facts):
        node = _binder(job, fleet, facts, endpoint)
        if not 0 < endpoint.port < 65536 or label_of(endpoint) in labels:
            continue
        if node is None:
            yield endpoint, f"no node is known to have the address {endpoint.host}, so its port was not dialled"
        elif node in reached and endpoint.kind == "server":
            yield endpoint, f"no node dialled it on {node}"


def _binder(job: Job, fleet: Fleet, facts: Facts, endpoint: Endpoint) -> str | None:
    """The node that binds `endpoint`: by its name, else by the addresses that the nodes have themselves."""
    node = owner(fleet, endpoint)
    if node is None and endpoint.kind in ("store", "rendezvous"):
        node = fleet.master
    if node is not None:
        return node.name
    holders = set(_holders(facts).get(literal(endpoint.host), ()))
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
    """The nodes that have each address on an interface that is not loopback."""
    found: dict[IPv4Address | IPv6Address | None, list[str]] = {}
    for node, fact in facts.observed(interfaces).items():
        for item in fact.interfaces:
            for address in item.addresses if not item.loopback else ():
                parsed = literal(address.address)
                if parsed is not None:
                    found.setdefault(parsed, []).append(node)
    return found


def label_of(endpoint: Endpoint) -> str:
    """The name of an endpoint in params and messages."""
    return f"{endpoint.what} {endpoint.port}"


def partners(fleet: Fleet) -> dict[str, list[str]]:
    """The peers that each reached node dials, in the order of the rounds."""
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
    """Request one listener and one dialler per node, for all its partners; every link check shares them.

    Even if only a sample of pairs is tried, every node dials the rendezvous ports and every parameter server.
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
    """Request transient failures once more: a busy node is not a closed port."""
    for seen in facts.each(dial):
        if not isinstance(seen.fact, Observed) or seen.params.get("look"):
            continue
        failed = {
            (target.peer, target.label) for target in seen.fact.value.targets if target.status in _TRANSIENT_STATUSES
        }
        wanted = seen.params.get("targets", ())
        again = [
            {**{k: v for k, v in target.items() if k != "after_s"}, "knock": knock_id(seen.node, str(target["peer"]))}
            for target in wanted
            if (target["peer"], target["label"]) in failed
        ]
        if again:
            peers = tuple(dict.fromkeys(str(target["peer"]) for target in again))
            yield _dialling(seen.node, peers, {"targets": again, **_SECOND}, seen.asked.because)


def knock_id(source: str, peer: str) -> str:
    """The id by which `peer` recognizes datagrams of `source`."""
    return hashlib.sha256(f"{source} {peer}".encode()).hexdigest()[:16]


@memoize
def received_ids(facts: Facts) -> frozenset[str]:
    """The ids of all datagrams that arrived."""
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
    """The address at which the job's processes will be dialled, for each node name.

    It is the address of the interface that a filter chooses; for Gloo, the address of the node's own name; else that
    of NCCL's default interface; or the node's name if nothing else is known.
    """
    observed = {node: fact.interfaces for node, fact in facts.observed(interfaces).items()}
    by_name = "nccl" not in backends(job)[0]
    own = {
        seen.node: [text for text in seen.fact.value.addresses if not is_loopback(text)]
        for seen in lookups(facts, own=True)
        if by_name and isinstance(seen.fact, Observed)
    }
    return {node.name: _address(job, node, observed.get(node.name, ()), own.get(node.name)) for node in fleet.reached}


def address_of(job: Job, node: Node, facts: Facts) -> str:
    """The address of one node, as `addresses_of` chooses it."""
    return addresses_of(job, Fleet((NodeRecord(node),)), facts)[node.name]


def _address(job: Job, node: Node, observed: Sequence[Interface], own: Sequence[str] | None) -> str:
    choice = chosen(job, node.name, observed)
    if choice is not None and not choice.interface.loopback:
        return choice.address.address
    if own:
        return own[0]
    for item in nccl_default(observed).interfaces:
        address = dialled_address(item)
        if address is not None and item.up and not item.loopback:
            return address.address
    # A node that is a process of this machine has a name that does not resolve.
    return "127.0.0.1" if is_loopback(node.address or "-") else node.name


@memoize
def cells(facts: Facts) -> tuple[Cell[Target], ...]:
    """The latest result for every dialled port of every pair."""
    results: dict[str, list[tuple[FactRow[Dialled], Dialled]]] = {}
    for seen in facts.each(dial):
        if isinstance(seen.fact, Observed):
            results.setdefault(seen.node, []).append((seen, seen.fact.value))
    found: list[Cell[Target]] = []
    for node, several in results.items():
        if len(several) > 1:
            several.sort(key=lambda look: bool(look[0].params.get("look")))
        of_node: dict[tuple[str, str], Cell[Target]] = {}
        for seen, dialled_by in several:
            for target in dialled_by.targets:
                if target.label == SPREAD and not target.ports and target.status == "ok":
                    # The peer's range is too small to be divided.
                    continue
                key = (target.peer, target.label)
                if target.status != "untried" or key not in of_node:
                    of_node[key] = Cell(node, target.peer, target.label, target, seen.finished_s)
        found.extend(of_node.values())
    return tuple(found)


@memoize
def failed_at_first(facts: Facts) -> list[Cell[Target]]:
    """The results that failed on the first try and worked on the second."""
    failed = [
        Cell(seen.node, target.peer, target.label, target, seen.finished_s)
        for seen in facts.each(dial)
        if isinstance(seen.fact, Observed)
        for target in seen.fact.value.targets
        if target.status in _TRANSIENT_STATUSES and not seen.params.get("look")
    ]
    if not failed:
        return []
    now = {(cell.source, cell.peer, cell.label) for cell in cells(facts) if cell.result.status == "ok"}
    return [cell for cell in failed if (cell.source, cell.peer, cell.label) in now]


def claims_of(job: Job, fleet: Fleet, facts: Facts, labels: set[str]) -> tuple[Claim, ...]:
    """The claims that state the ports of these labels."""
    found = [item for items in bound_by(job, fleet, facts).values() for item in items if label_of(item) in labels]
    return tuple(dict.fromkeys(claim for item in found for claim in item.claims))


def coverage(fleet: Fleet, facts: Facts) -> str:
    """The note of a passing check: which pairs and ports were tried, also on nodes that were lost afterwards."""
    dialled_from = {seen.node for seen in facts.each(dial) if isinstance(seen.fact, Observed)}
    names = [record.node.name for record in fleet.records if not record.problem or record.node.name in dialled_from]
    plan = schedule(names)
    rendezvous_note = ", and from every node the rendezvous ports" if plan.is_sample else ""
    return (
        f"links: {plan.statement}, in both directions{rendezvous_note}; {_spread_note(facts)}TCP only, UDP and RDMA "
        "are not tried"
    )


def _spread_note(facts: Facts) -> str:
    """Which part of the ephemeral range was dialled."""
    ports: dict[str, set[int]] = {}
    for cell in cells(facts):
        if cell.label == SPREAD:
            ports.setdefault(cell.peer, set()).update(cell.result.ports)
    if not ports:
        return ""
    every = {port for found in ports.values() for port in found}
    fewest, most = (pick(len(found) for found in ports.values()) for pick in (min, max))
    count = str(most) if fewest == most else f"{fewest} to {most}"
    return f"{count} ports of each node from {min(every)} to {max(every)}, not those between; "
