"""Who dials whom at which addresses and ports: the requests both link checks share, and what came of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.job import Claim, Job
from preflight.links import schedule
from preflight.recording import Facts, Fleet, Node, NodeRecord, Observed
from preflight.request import Request, probe_name
from preflight_checks.demands import Endpoint, backends, endpoints, fold, is_loopback, owner, stand_ins
from preflight_checks.interface_filter import chosen, dialled, nccl_default
from preflight_checks.matrix import Cell, Shape
from preflight_checks.names import lookups
from preflight_checks.probes.interfaces import Interface, interfaces
from preflight_checks.probes.links import dial, listen

#: Label of the port the kernel picks, as Gloo and NCCL let it do for their own connections.
FREE = "a free port"
#: The probe's own limits are 2 s for the greeting and 2.5 s for the payload; the rest is for starting it.
_DEADLINE_S = 6.0
#: A faulty node delays every round by the connect time-out. With more rounds it is made shorter, but stays above the
#: second after which the kernel sends a lost SYN again.
_CONNECT_S, _LEAST_CONNECT_S, _ALL_ROUNDS_S = 2.0, 1.5, 8.0


def bound_by(job: Job, fleet: Fleet) -> dict[str, list[Endpoint]]:
    """The endpoints with a port that each node binds, by node name."""
    found: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints(job):
        node = owner(fleet, endpoint)
        if node is None and endpoint.kind in ("store", "rendezvous"):
            node = fleet.master
        if node is not None and 0 < endpoint.port < 65536:
            found.setdefault(node.name, []).append(endpoint)
    return found


def label_of(endpoint: Endpoint) -> str:
    """How an endpoint is called in params and messages."""
    return f"{endpoint.what} {endpoint.port}"


def plan_links(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Each pair both ways, in the order of the rounds; both link checks share these requests."""
    if len(fleet.nodes) < 2:
        return
    nodes = {node.name: node for node in fleet.reached}
    together = stand_ins(fleet)
    binds = bound_by(job, fleet)
    addresses = addresses_of(job, fleet, facts)
    claims = tuple(dict.fromkeys(claim for found in binds.values() for item in found for claim in item.claims))
    rounds = schedule(tuple(nodes)).rounds
    connect_s = min(_CONNECT_S, max(_LEAST_CONNECT_S, _ALL_ROUNDS_S / max(1, len(rounds))))
    for pairs in rounds:
        for a, b in pairs:
            for source, peer in ((a, b), (b, a)):
                found = binds.get(peer, [])
                targets: list[dict[str, object]] = [{"label": FREE, "host": addresses[peer], "port": 0}]
                for item in found:
                    named = item.host and not is_loopback(item.host) and not together
                    host = item.host if named else addresses[peer]
                    targets.append({"label": label_of(item), "host": host, "port": item.port})
                yield Request(
                    probe_name(dial),
                    source,
                    {"targets": targets, "connect_s": round(connect_s, 2)},
                    peer=peer,
                    listen=probe_name(listen),
                    listen_params={"ports": sorted({item.port for item in found})},
                    because=claims,
                    required=True,
                    deadline_s=_DEADLINE_S,
                )


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


def cells(facts: Facts) -> list[Cell]:
    """Every dialled port of every pair."""
    return [
        Cell(seen.node, seen.peer, target.label, target, seen.finished_s)
        for seen in facts.each(dial)
        if isinstance(seen.fact, Observed)
        for target in seen.fact.value.targets
    ]


def claims_of(job: Job, fleet: Fleet, shape: Shape) -> tuple[Claim, ...]:
    """The claims that spell the ports of a shape."""
    labels = {cell.label for cell in shape.cells}
    found = [item for items in bound_by(job, fleet).values() for item in items if label_of(item) in labels]
    return tuple(dict.fromkeys(claim for item in found for claim in item.claims))


def coverage(fleet: Fleet) -> str:
    """What was tried, for the outcome of a check that found nothing."""
    return f"links: {schedule([node.name for node in fleet.reached]).statement}, both ways"


def subject(shape: Shape) -> str:
    """What a verdict about this shape speaks of."""
    if shape.kind == "pair":
        return f"{shape.node} {'and' if shape.mutual else 'to'} {shape.other}"
    return f"{shape.kind} {shape.node}".strip()


def pair_list(shape: Shape) -> str:
    """The pairs of a shape, the first four by name."""
    return fold((f"{source} to {peer}" for source, peer in sorted({cell.pair for cell in shape.cells})), 4)
