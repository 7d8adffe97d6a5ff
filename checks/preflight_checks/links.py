"""Whether every node can open the job's ports on every other, and whether large payloads get through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.links import schedule
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Node, NodeRecord, Observed
from preflight.request import Request, probe_name
from preflight_checks.demands import Endpoint, backends, endpoints, fold, is_loopback, owner, unreached
from preflight_checks.interface_filter import chosen, dialled, nccl_default, subnet
from preflight_checks.matrix import Cell, Shape, shapes
from preflight_checks.names import lookups, misnamed
from preflight_checks.probes.interfaces import Interface, Interfaces, interfaces
from preflight_checks.probes.links import dial, listen

#: Label of the port the kernel picks, as Gloo and NCCL let it do for their own connections.
FREE = "a free port"
#: The probe's own limits are 2 s for the greeting and 2.5 s for the payload; the rest is for starting it.
_DEADLINE_S = 6.0
#: A faulty node delays every round by the connect time-out. With more rounds it is made shorter, but stays above the
#: second after which the kernel sends a lost SYN again.
_CONNECT_S, _LEAST_CONNECT_S, _ALL_ROUNDS_S = 2.0, 1.5, 8.0

#: How a failed connection shows itself, for messages.
_WORDS = {
    "filtered": "get no answer (filtered: dropped on the way)",
    "refused": "are refused",
    "unresolved": "cannot be dialled: the name does not resolve",
    "no-route": "have no route",
    "silent": "are accepted, but then nobody answers",
    "reset": "are reset",
    "stranger": "are answered by another program",
}


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
    binds = bound_by(job, fleet)
    addresses = addresses_of(job, fleet, facts)
    claims = tuple(
        dict.fromkeys(claim for found in binds.values() for item in found for claim in item.claims)
    )
    rounds = schedule(tuple(nodes)).rounds
    connect_s = min(_CONNECT_S, max(_LEAST_CONNECT_S, _ALL_ROUNDS_S / max(1, len(rounds))))
    for pairs in rounds:
        for a, b in pairs:
            for source, peer in ((a, b), (b, a)):
                found = binds.get(peer, [])
                targets: list[dict[str, object]] = [{"label": FREE, "host": addresses[peer], "port": 0}]
                for item in found:
                    host = item.host if item.host and not is_loopback(item.host) else addresses[peer]
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
    return {
        node.name: _address(job, node, have.get(node.name, ()), own.get(node.name)) for node in fleet.reached
    }


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
    return node.name


def cells(facts: Facts) -> list[Cell]:
    """Every dialled port of every pair."""
    return [
        Cell(seen.node, seen.peer, target.label, target, seen.finished_s)
        for seen in facts.each(dial)
        if isinstance(seen.fact, Observed)
        for target in seen.fact.value.targets
    ]


def _claims(job: Job, fleet: Fleet, shape: Shape) -> tuple[Claim, ...]:
    """The claims that spell the ports of a shape."""
    labels = {cell.label for cell in shape.cells}
    found = [item for items in bound_by(job, fleet).values() for item in items if label_of(item) in labels]
    return tuple(dict.fromkeys(claim for item in found for claim in item.claims))


def _coverage(fleet: Fleet) -> str:
    return f"links: {schedule([node.name for node in fleet.reached]).statement}, both ways"


@check(
    "LNK001",
    "port-unreachable",
    plan=plan_links,
    when="link",
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#388", "NVIDIA/nccl#1956", "huggingface/trl#4737", "horovod/horovod#1408"),
)
def port_unreachable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node opens the job's ports, and freely chosen ones, on every other node.

    What it checks: each pair of nodes, both ways: the rendezvous and parameter-server ports where they are bound,
    and a port the kernel picks, because Gloo and NCCL connect all ranks over such ports. Our own program listens
    meanwhile and is recognised by a token.

    Why it matters: a dropped port leaves most or all nodes silent for minutes, and the one error that comes
    names the wrong node.

    Example: the firewall of node3 lets only port 22 in; all-reduce between the other three works, the job hangs.

    Fix: allow TCP between the nodes of the job, on its ports and on the range of
    net.ipv4.ip_local_port_range.

    Known limits: above 48 rounds a sample of pairs is tried; connections are made by this user outside
    the container; UDP and RDMA are not tried.

    Evidence: NVIDIA/nccl#388, NVIDIA/nccl#1956, huggingface/trl#4737, horovod/horovod#1408.
    """
    if len(fleet.nodes) < 2:
        yield not_applicable("links", "the job has one node")
        return
    every = cells(facts)
    wrong = misnamed(facts)
    nameless = [c for c in every if c.result.status in _WORDS and (c.source, c.result.host) in wrong]
    tried = [cell for cell in every if cell not in nameless and cell.result.status != "unbound"]
    yield from _untried(facts, every, nameless)
    found = shapes(tried, lambda cell: cell.result.status in _WORDS)
    for shape in found:
        yield _unreachable(shape, _claims(job, fleet, shape))
    silent = unreached(fleet)
    if silent:
        yield unknown(f"links of {fold(silent)}", "blocked by NOD001")
    if tried and not found:
        yield passed(_coverage(fleet))


def _untried(facts: Facts, every: Sequence[Cell], nameless: Sequence[Cell]) -> Iterator[Verdict]:
    """Pairs and ports that could not be tried, each reason once."""
    for host in dict.fromkeys(cell.result.host for cell in nameless):
        nodes = fold(dict.fromkeys(cell.source for cell in nameless if cell.result.host == host))
        yield unknown(
            f"links: {nodes} to {host}",
            f"blocked by NAM002: {host} is not what it should be there",
            required=True,
        )
    missing: dict[str, list[str]] = {}
    for seen in facts.each(dial):
        if not isinstance(seen.fact, Observed):
            missing.setdefault(seen.fact.reason, []).append(f"{seen.node} to {seen.peer}")
    for reason, pairs in missing.items():
        yield unknown(f"links: {fold(pairs, 4)}", reason, required=True)
    unbound: dict[tuple[str, str], str] = {}
    for cell in every:
        if cell.result.status == "unbound":
            unbound[(cell.peer, cell.label)] = cell.result.detail
    for (node, label), detail in unbound.items():
        reason = f"{node} could not listen there to be dialled ({detail}); see PRT011"
        yield unknown(f"links: {label} on {node}", reason, required=True)


def _unreachable(shape: Shape, claims: tuple[Claim, ...]) -> Verdict:
    statuses = list(dict.fromkeys(cell.result.status for cell in shape.cells))
    evidence = [_evidence(cell) for cell in shape.cells[:8]]
    ports = _ports(shape)
    how = " or ".join(_WORDS[status] for status in statuses)
    return failed(
        f"links: {_subject(shape)}",
        f"{_sentence(shape)} on {ports}: connections {how}{_detail(shape)}",
        at=evidence[0],
        also=(*evidence[1:], *claims),
        nodes=shape.nodes,
        remedy=_remedy(shape, statuses, ports),
    )


def _subject(shape: Shape) -> str:
    if shape.kind == "pair":
        return f"{shape.node} {'and' if shape.mutual else 'to'} {shape.other}"
    return f"{shape.kind} {shape.node}".strip()


def _sentence(shape: Shape) -> str:
    others = sorted({name for cell in shape.cells for name in cell.pair} - {shape.node})
    if shape.kind == "everybody":
        return f"no node reaches any other ({fold(shape.nodes)})"
    if shape.kind == "inbound":
        return f"{shape.node} cannot be reached by anybody ({fold(others)})"
    if shape.kind == "outbound":
        return f"{shape.node} reaches nobody ({fold(others)})"
    if shape.kind == "isolated":
        return f"{shape.node} neither reaches anybody nor can be reached ({fold(others)})"
    if shape.kind == "around":
        return f"some links of {shape.node} fail ({_pairs(shape)})"
    if shape.mutual:
        return f"{shape.node} and {shape.other} cannot reach each other"
    return f"{shape.node} cannot reach {shape.other}"


def _pairs(shape: Shape) -> str:
    return fold((f"{source} to {peer}" for source, peer in sorted({cell.pair for cell in shape.cells})), 4)


def _ports(shape: Shape) -> str:
    """The ports that fail, quoting numbers; the free ones by their number only in the evidence."""
    labels = sorted({cell.label for cell in shape.cells}, key=lambda label: (label == FREE, label))
    return " and ".join("ports the kernel picks (ephemeral)" if label == FREE else label for label in labels)


def _detail(shape: Shape) -> str:
    for cell in shape.cells:
        if cell.result.status in ("stranger", "unresolved", "silent"):
            return f" ({cell.result.host}: {cell.result.detail})"
    return ""


def _remedy(shape: Shape, statuses: Sequence[str], ports: str) -> str:
    where = shape.node or fold(shape.nodes)
    look = f"look at `nft list ruleset` or `iptables -S` on {where}, and at the cloud's security group"
    if "filtered" in statuses:
        side = {"outbound": "out of", "inbound": "into", "isolated": "into and out of"}.get(
            shape.kind, "between"
        )
        return f"Allow TCP {side} {fold(shape.nodes)} on {ports} from the job's other nodes: {look}."
    if "refused" in statuses:
        return f"Our listener was up, so something rejects it on the way: {look} (REJECT rules)."
    if "unresolved" in statuses:
        return (
            f"Make the name resolve on {fold(sorted({c.source for c in shape.cells}))} (DNS or /etc/hosts)."
        )
    if "no-route" in statuses:
        return f"Compare `ip route` on {fold(shape.nodes)}: the address is on no network they share."
    if "stranger" in statuses or "silent" in statuses:
        return (
            "Another program, proxy or load balancer holds that address and port: use the node's own address."
        )
    return f"Something ends connections on the way: {look}."


def _evidence(cell: Cell) -> Evidence:
    result = cell.result
    host = result.address or result.host
    seen = f"{result.status} after {result.took_s:.1f} s"
    if result.detail:
        seen += f": {result.detail}"
    port = str(result.port) if result.port else "<port>"
    return Evidence(
        f"dial {cell.peer} ({host}) on {cell.label}",
        seen,
        "an answer from our listener",
        f"nc -vz -w 2 {host} {port}",
        cell.source,
        cell.at_s,
    )


@check(
    "LNK002",
    "large-payload-stalls",
    plan=plan_links,
    when="link",
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#1524", "NVIDIA/nccl#1957", "NVIDIA/nccl-tests#236"),
)
def large_payload_stalls(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Payloads larger than one frame arrive between all nodes.

    What it checks: over each connection messages of 64 B to 1 MiB are sent and must be acknowledged.

    Why it matters: where a switch port or tunnel takes smaller frames than the hosts send, and says nothing,
    everything small works: rendezvous, barrier, small all-reduces. The first large gradient hangs the job.

    Example: hosts at MTU 9000, the port of node3 at 1500: 1400 bytes arrive, 2000 do not.

    Fix: give hosts and switch ports one MTU, or lower the hosts' to the smallest on the path.

    Known limits: TCP only; a path of RDMA traffic may have another MTU. Under 3 Mbit/s is reported as slow.

    Evidence: NVIDIA/nccl#1524, NVIDIA/nccl#1957, NVIDIA/nccl-tests#236.
    """
    if len(fleet.nodes) < 2:
        yield not_applicable("links", "the job has one node")
        return
    tried = [cell for cell in cells(facts) if cell.result.status in ("ok", "stalled", "slow")]
    if not tried:
        yield unknown("large payloads", "no connection came about to send them over")
        return
    stalled = shapes(tried, lambda cell: cell.result.status == "stalled")
    slow = shapes(tried, lambda cell: cell.result.status == "slow")
    for shape in stalled:
        yield _stalled(shape, _claims(job, fleet, shape), _mtus(shape, facts))
    for shape in slow:
        yield _slow(shape, _claims(job, fleet, shape))
    if not stalled and not slow:
        yield passed(_coverage(fleet))


def _way(shape: Shape) -> str:
    """From whom to whom, in words."""
    if shape.kind == "everybody":
        return f"between any two nodes ({fold(shape.nodes)})"
    if shape.kind == "pair":
        return (
            f"between {shape.node} and {shape.other}"
            if shape.mutual
            else f"from {shape.node} to {shape.other}"
        )
    if shape.kind == "around":
        return f"on some links of {shape.node} ({_pairs(shape)})"
    return {"inbound": "to", "outbound": "from"}.get(shape.kind, "to and from") + f" {shape.node}"


def _stalled(shape: Shape, claims: tuple[Claim, ...], mtus: str) -> Verdict:
    arrived = min(cell.result.arrived_bytes for cell in shape.cells)
    lost = max(cell.result.lost_bytes for cell in shape.cells)
    example = shape.cells[0]
    address = example.result.address or example.result.host
    evidence = [_payload_evidence(cell) for cell in shape.cells[:8]]
    return failed(
        f"large payloads: {_subject(shape)}",
        f"payloads above {arrived} bytes do not arrive {_way(shape)} ({lost} bytes were never acknowledged), while "
        f"connections and smaller ones work: the path takes smaller frames than the hosts send (MTU){mtus}",
        at=evidence[0],
        also=(*evidence[1:], *claims),
        nodes=shape.nodes,
        remedy=f"Compare the MTU of the hosts with that of the switch ports and tunnels towards "
        f"{fold(shape.nodes)}; until the path is mended, lower the hosts' (`ip link set DEV mtu 1500`). "
        f"`ping -M do -s 8000 {address}` on {example.source} shows it.",
    )


def _slow(shape: Shape, claims: tuple[Claim, ...]) -> Verdict:
    evidence = [_payload_evidence(cell) for cell in shape.cells[:8]]
    return failed(
        f"slow link: {_subject(shape)}",
        f"{max(cell.result.lost_bytes for cell in shape.cells)} bytes did not arrive within 2.5 s {_way(shape)}, "
        "although smaller messages did",
        at=evidence[0],
        also=(*evidence[1:], *claims),
        nodes=shape.nodes,
        remedy=f"Look for packet loss, a rate limit or a link at the wrong speed at {fold(shape.nodes)}: "
        "`ip -s link`, `ethtool DEV`.",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
    )


def _payload_evidence(cell: Cell) -> Evidence:
    result = cell.result
    address = result.address or result.host
    return Evidence(
        f"send to {cell.peer} ({address}) on {cell.label}",
        f"{result.arrived_bytes} bytes acknowledged, {result.lost_bytes} not ({result.detail})",
        "1 MiB acknowledged",
        f"ping -M do -s 8000 {address}",
        cell.source,
        cell.at_s,
    )


def _mtus(shape: Shape, facts: Facts) -> str:
    """The MTUs of the interfaces on the network that was dialled, where they are known."""
    have = facts.observed(interfaces)
    found: dict[str, int] = {}
    for cell in shape.cells:
        networks = _networks(have, cell.peer, cell.result.address)
        for node in cell.pair:
            for item in have[node].interfaces if node in have else ():
                if item.mtu and any(subnet(address) in networks for address in item.addresses):
                    found[f"{node} {item.name}"] = item.mtu
    if not found:
        return ""
    return "; " + fold((f"{name} has MTU {mtu}" for name, mtu in sorted(found.items())), 4)


def _networks(have: Mapping[str, Interfaces], node: str, address: str) -> set[str]:
    """The network of `address` on `node`; empty when it is not known to be there."""
    if node not in have:
        return set()
    return {subnet(a) for item in have[node].interfaces for a in item.addresses if a.address == address}
