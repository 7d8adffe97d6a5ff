"""Checks that nodes reach each other over the network of the job, with large payloads and on one path both ways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight.analysis.link_matrix import Cell, Shape, shapes
from preflight.model.findings import Command, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import FactRow, Facts, Fleet, Unavailable
from preflight.plugins.authoring import Verdict, check, failed, memoize, passed, root_command, unknown
from preflight_checks.links.dial_requests import (
    FREE,
    SPREAD,
    cells,
    claims_of,
    coverage,
    disputed_pairs,
    failed_at_first,
    knock_id,
    plan_links,
    plan_second_try,
    received_ids,
    undialled,
)
from preflight_checks.links.fleet_comparison import direction, pair_text, subject
from preflight_checks.links.slow_links import nodes_without_steady_carrier
from preflight_checks.network.interface_filter import subnet
from preflight_checks.network.names import misresolved_hosts
from preflight_checks.plans import has_several_nodes, only_if, runs_on_several_machines, table
from preflight_checks.probes.interfaces import Interface, Interfaces, interfaces
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.links import Dialled, Target, dial
from preflight_checks.requirements import fold, is_literal, unreached_nodes


@check(
    "LNK002", "large-payload-stalls", plan=plan_links, when="link", follow_up=plan_second_try, severity=Severity.ERROR
)
@only_if(has_several_nodes, "links", "the job has one node")
def large_payload_stalls(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Payloads larger than one frame arrive between all nodes.

    What it checks: 64 KiB are sent over each connection that a node opens to its partners, and must be acknowledged. If
    they are not, messages of 64 B to 16 KB determine the size that is lost.

    Why it matters: if a switch port or tunnel silently drops frames of the hosts' size, everything small works:
    rendezvous, barrier, small all-reduces. The first large gradient hangs the job.

    Example: the hosts have MTU 9000, but the port of node3 has 1500: 1400 bytes arrive, 2000 do not.

    Fix: configure the same MTU on hosts and switch ports, or lower the hosts' MTU to the smallest on the path.

    Known limits: TCP only; the path of RDMA traffic may have another MTU. A rate under 200 kbit/s is reported as slow.
    """
    tried = [cell for cell in cells(facts) if cell.result.status in ("ok", "stalled", "slow")]
    if not tried:
        yield unknown("large payloads", "no connection was established")
        return
    stalled = shapes(tried, lambda cell: cell.result.status == "stalled")
    slow = shapes(tried, lambda cell: cell.result.status == "slow")
    for shape in stalled:
        yield _stall_finding(
            shape, claims_of(job, fleet, facts, {cell.label for cell in shape.cells}), _mtu_note(shape, facts)
        )
    for shape in slow:
        yield _slow_payload_finding(shape, claims_of(job, fleet, facts, {cell.label for cell in shape.cells}))
    if not stalled and not slow:
        yield passed(coverage(fleet, facts))


def _stall_finding(shape: Shape[Target], claims: tuple[Claim, ...], mtus: str) -> Verdict:
    arrived = min(cell.result.arrived_bytes for cell in shape.cells)
    lost = max(cell.result.lost_bytes for cell in shape.cells)
    example = shape.cells[0]
    address = example.result.address or example.result.host
    evidence = [_payload_evidence(cell) for cell in shape.cells[:8]]
    return failed(
        f"large payloads: {subject(shape)}",
        f"payloads above {arrived} bytes do not arrive {direction(shape)} ({lost} bytes were never acknowledged), "
        "although connections and smaller payloads work: the path supports only smaller frames than the hosts send "
        f"(MTU){mtus}",
        at=evidence[0],
        also=(*evidence[1:], *claims),
        nodes=shape.nodes,
        remedy=f"Compare the MTU of the hosts with that of the switch ports and tunnels towards {fold(shape.nodes)}; "
        "until the path is fixed, lower the hosts' MTU (`ip link set DEV mtu 1500`). `ping -M do -s 8000 "
        f"{address}` on {example.source} shows the problem.",
    )


def _slow_payload_finding(shape: Shape[Target], claims: tuple[Claim, ...]) -> Verdict:
    evidence = [_payload_evidence(cell) for cell in shape.cells[:8]]
    return failed(
        f"slow link: {subject(shape)}",
        f"{max(cell.result.lost_bytes for cell in shape.cells)} bytes did not arrive within 2.5 s {direction(shape)}, "
        "although smaller messages did",
        at=evidence[0],
        also=(*evidence[1:], *claims),
        nodes=shape.nodes,
        remedy=f"Look for packet loss, a rate limit or a link with the wrong speed at {fold(shape.nodes)}: `ip -s "
        "link`, `ethtool DEV`.",
        certain=False,
    )


def _payload_evidence(cell: Cell[Target]) -> Evidence:
    result = cell.result
    address = result.address or result.host
    return Evidence(
        f"send to {cell.peer} ({address}) on {cell.label}",
        f"{result.arrived_bytes} bytes acknowledged, {result.lost_bytes} not ({result.detail})",
        "64 KiB acknowledged",
        f"ping -M do -s 8000 {address}",
        cell.source,
        cell.at_s,
    )


def _mtu_note(shape: Shape[Target], facts: Facts) -> str:
    """Return the MTUs of the interfaces on the network of the connection, as far as they are known."""
    observed = facts.observed(interfaces)
    mtu_by_node: dict[str, int] = {}
    for cell in shape.cells:
        networks = _networks(observed, cell.peer, cell.result.address)
        for node in cell.pair:
            for item in observed[node].interfaces if node in observed else ():
                if item.mtu and any(subnet(address) in networks for address in item.addresses):
                    mtu_by_node[f"{node} {item.name}"] = item.mtu
    if not mtu_by_node:
        return ""
    return "; " + fold((f"{name} has MTU {mtu}" for name, mtu in sorted(mtu_by_node.items())), 4)


def _networks(observed: Mapping[str, Interfaces], node: str, address: str) -> set[str]:
    """Return the network of `address` on `node`; empty if unknown."""
    if node not in observed:
        return set()
    return {subnet(a) for item in observed[node].interfaces for a in item.addresses if a.address == address}


@check(
    "LNK008",
    "way-back-differs",
    plan=plan_links,
    probes=(dial, listen, interfaces),
    when="link",
    severity=Severity.INFO,
)
@only_if(has_several_nodes, "ways back", "the job has one node")
@only_if(runs_on_several_machines, "ways back", "all nodes are this machine")
def return_path_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Connections from a node come from the network at which others reach it, and from its own address.

    What it checks: the source address of each connection, on both nodes, compared with the interface at whose address
    the others connect.

    Why it matters: the two directions then use different networks, one of which may be the slow management network or
    be blocked by a strict rp_filter. Behind address translation, peers cannot connect back to the source of a
    connection.

    Example: others connect to node3 at 10.77.0.3 (eth0), but its own connections come from 10.78.0.3 (eth1).

    Fix: compare `ip route` on the named node and on another node; run the ranks in the host's network.

    Known limits: only TCP, on ports that the kernel chooses. Connections succeed, so this is only a hint; NIC002 and
    NIC007 judge the routes themselves.
    """
    tried = [cell for cell in cells(facts) if cell.label == FREE and cell.result.source]
    if not tried:
        yield unknown("ways back", "no connection was established")
        return
    observed = {
        node: {address.address: item for item in seen.interfaces for address in item.addresses}
        for node, seen in facts.observed(interfaces).items()
    }
    dialled_at: dict[str, set[str]] = {}
    for cell in tried:
        dialled_at.setdefault(cell.peer, set()).add(cell.result.address)
    dialled = {
        node: [own[address] for address in dialled_at.get(node, ()) if address in own] for node, own in observed.items()
    }
    other = [cell for cell in tried if _takes_another_path(cell, dialled, observed)]
    translated = [
        cell
        for cell in tried
        if cell.result.seen_as
        and is_literal(cell.result.seen_as)
        and cell.result.seen_as not in observed.get(cell.source, {cell.result.seen_as: None})
    ]
    for node in dict.fromkeys(cell.source for cell in other):
        yield _other_path_finding([cell for cell in other if cell.source == node], dialled_at, observed)
    for node in dict.fromkeys(cell.source for cell in translated):
        yield _translation_finding([cell for cell in translated if cell.source == node])
    if not other and not translated:
        yield passed(coverage(fleet, facts))


Addresses = dict[str, dict[str, Interface]]


def _takes_another_path(cell: Cell[Target], dialled: dict[str, list[Interface]], observed: Addresses) -> bool:
    """Return whether the connection left through an interface and network at which no peer connects to this node."""
    used = observed.get(cell.source, {}).get(cell.result.source)
    usual = dialled.get(cell.source, [])
    if used is None or used.loopback or not usual or used in usual:
        return False
    return not {subnet(address) for address in used.addresses} & {
        subnet(address) for item in usual for address in item.addresses
    }


def _other_path_finding(group: list[Cell[Target]], dialled_at: dict[str, set[str]], observed: Addresses) -> Verdict:
    first = group[0]
    node, source = first.source, first.result.source
    usual = fold(
        f"{address} ({observed[node][address].name})"
        for address in sorted(dialled_at[node])
        if address in observed[node]
    )
    peers = fold(cell.peer for cell in group)
    return failed(
        f"return paths of {node}",
        f"{node} connects to {peers} from {source} ({observed[node][source].name}), but the other nodes connect to "
        f"it at {usual}: the two directions use different paths",
        at=Evidence(
            f"connection to {first.peer}",
            f"from {source}",
            f"from {usual}",
            f"ip route get {first.result.address}",
            node,
            first.at_s,
        ),
        remedy=f"Compare the output of `ip route` on {node} and on another node.",
    )


def _translation_finding(group: list[Cell[Target]]) -> Verdict:
    first = group[0]
    node, seen_as = first.source, first.result.seen_as
    return failed(
        f"translated addresses of {node}",
        f"{fold(cell.peer for cell in group)} see connections from {node} with the source address {seen_as}, which "
        "is not one of its addresses: something on the path translates addresses",
        at=Evidence(
            f"connection to {first.peer}", f"seen as {seen_as}", first.result.source, "ip -br addr", node, first.at_s
        ),
        remedy="Run the ranks in the host's network (hostNetwork, --network host), or in an overlay without address "
        "translation.",
    )


@check("LNK001", "port-unreachable", plan=plan_links, when="link", follow_up=plan_second_try, severity=Severity.ERROR)
@only_if(has_several_nodes, "links", "the job has one node")
def port_unreachable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node can connect to the job's ports, and to freely chosen ports, on every other node.

    What it checks: each pair of nodes, both ways: the rendezvous and parameter-server ports where they are bound, a
    port that the kernel chooses, because Gloo and NCCL connect all ranks over such ports, and a few ports across
    net.ipv4.ip_local_port_range, because a filter may cover only part of it. preflight's own listener is recognized by
    a token. Failures that can be transient are tried a second time.

    Why it matters: if packets to a port are dropped, most or all nodes are silent for minutes, and the only error names
    the wrong node.

    Example: the firewall of node3 allows only port 22; all-reduce between the other three nodes works, but the job
    hangs.

    Fix: allow TCP between the nodes of the job, on its ports and on the range of
    net.ipv4.ip_local_port_range.

    Known limits: above 64 nodes, a sample of pairs is tried, and the rendezvous ports from every node. Connections are
    made by this user outside the container; UDP and RDMA are not tried.
    """
    grouped_results = dial_evidence(facts)
    yield from _untried_verdicts(facts, grouped_results)
    if grouped_results.other_machine:
        pairs = fold((f"{cell.source} to {cell.peer}" for cell in grouped_results.other_machine), 4)
        reason = "blocked by LNK007 or LNK010: another machine responds at this address"
        yield unknown(f"links: {pairs}", reason, nodes=_end_nodes(grouped_results.other_machine), required=True)
    if grouped_results.no_carrier:
        pairs = fold((f"{cell.source} to {cell.peer}" for cell in grouped_results.no_carrier), 4)
        reason = "blocked by NIC013: an interface lost its carrier meanwhile"
        yield unknown(f"links: {pairs}", reason, nodes=_end_nodes(grouped_results.no_carrier), required=True)
    failure_shapes = shapes(grouped_results.tried, lambda cell: cell.result.status in STATUS_TEXTS)
    for group in group_shapes(failure_shapes):
        claims = claims_of(job, fleet, facts, {cell.label for shape in group for cell in shape.cells})
        yield _unreachable_finding(group, claims, _open_direction(group, received_ids(facts)))
    for endpoint, reason in undialled(job, fleet, facts):
        yield unknown(
            f"links to {endpoint.what} {endpoint.port}", reason, at=next(iter(endpoint.claims), None), required=True
        )
    late = failed_at_first(facts)
    if late:
        pairs = fold((f"{cell.source} to {cell.peer}" for cell in late), 4)
        yield unknown(
            f"first attempts over links: {pairs}",
            "they failed, and succeeded on the second attempt: the node was busy, or packets were lost",
        )
    silent = unreached_nodes(fleet)
    if silent:
        yield unknown(f"links of {fold(silent)}", "blocked by NOD001", nodes=silent)
    if grouped_results.tried and not failure_shapes:
        yield passed(coverage(fleet, facts))


#: Labels of ports that the kernel picks.
_EPHEMERAL = (FREE, SPREAD)
#: If more single pairs than this share a fault, they become one finding.
_MAX_PAIRS = 4


def group_shapes(shapes: Sequence[Shape[Target]]) -> list[list[Shape[Target]]]:
    """Return the shapes in groups of one kind with the same ports and failures, which are one fault on several
    nodes.
    """
    groups: dict[tuple[object, ...], list[Shape[Target]]] = {}
    pairs = sum(shape.kind == "pair" for shape in shapes)
    for index, shape in enumerate(shapes):
        statuses = tuple(sorted({cell.result.status for cell in shape.cells}))
        group_key = (
            index if shape.kind in ("around", "everybody") or (shape.kind == "pair" and pairs <= _MAX_PAIRS) else -1
        )
        ports = tuple(sorted({cell.label for cell in shape.cells})) if shape.kind != "pair" else ()
        groups.setdefault((shape.kind, statuses, ports, group_key), []).append(shape)
    return list(groups.values())


def _end_nodes(cells: Iterable[Cell[Target]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node for cell in cells for node in (cell.source, cell.peer)))


def _untried_verdicts(facts: Facts, grouped_results: DialEvidence) -> Iterator[Verdict]:
    """Yield one `unknown` per reason for the pairs and ports that could not be tried."""
    for host in dict.fromkeys(cell.result.host for cell in grouped_results.other_address):
        nodes = tuple(dict.fromkeys(cell.source for cell in grouped_results.other_address if cell.result.host == host))
        reason = f"blocked by NAM002: {host} resolves to a different address there"
        yield unknown(f"links: {fold(nodes)} to {host}", reason, nodes=nodes, required=True)
    missing: dict[str, dict[str, tuple[str, ...]]] = {}
    for seen, why in nodes_without_dial(facts):
        missing.setdefault(why.reason, {})[f"{seen.node} to {fold(seen.peers, 4)}"] = (seen.node, *seen.peers)
    for cell in grouped_results.failing:
        if cell.result.status == "untried":
            pair = f"{cell.source} to {cell.peer}"
            missing.setdefault(cell.result.detail, {})[pair] = (cell.source, cell.peer)
    for reason, pairs in missing.items():
        nodes = tuple(dict.fromkeys(node for ends in pairs.values() for node in ends))
        yield unknown(f"links: {fold(pairs, 4)}", reason, nodes=nodes, required=True)
    unbound = {
        (cell.peer, cell.label): cell.result.detail
        for cell in grouped_results.failing
        if cell.result.status == "unbound"
    }
    for (node, label), detail in unbound.items():
        reason = f"{node} could not listen on it ({detail}); see PRT011"
        yield unknown(f"links: {label} on {node}", reason, nodes=(node,), required=True)


def _open_direction(group: Sequence[Shape[Target]], arrived: frozenset[str]) -> str:
    """Return which direction is open between two nodes if neither can connect to the other; empty if unknown."""
    shape = group[0]
    if len(group) > 1 or shape.kind != "pair" or not shape.mutual:
        return ""
    directions = [(shape.node, shape.other), (shape.other, shape.node)]
    through = [knock_id(source, peer) in arrived for source, peer in directions]
    if through[0] == through[1]:
        return ""
    (open_from, open_to), (lost_from, lost_to) = directions if through[0] else directions[::-1]
    return f"; datagrams from {open_from} arrive at {open_to}, but those from {lost_from} to {lost_to} do not"


def _unreachable_finding(group: Sequence[Shape[Target]], claims: tuple[Claim, ...], open_direction: str) -> Verdict:
    failed_cells = [cell for shape in group for cell in shape.cells]
    statuses = list(dict.fromkeys(cell.result.status for cell in failed_cells))
    evidence = [_evidence(cell) for cell in failed_cells[:8]]
    ports = _ports(failed_cells)
    how = " or ".join(STATUS_TEXTS[status] for status in statuses)
    about = subject(group[0]) if len(group) == 1 else f"{group[0].kind} {fold(shape.node for shape in group)}"
    return failed(
        f"links: {about}",
        f"{_sentence(group)} on {ports}: connections {how}{_detail(failed_cells)}{open_direction}",
        at=evidence[0],
        also=(*evidence[1:], *claims),
        nodes=dict.fromkeys(name for shape in group for name in shape.nodes),
        remedy=_remedy(group, statuses, ports),
        run=_firewall_commands(group, statuses),
        # Ranks meet at the job's own ports; ports that the kernel picks are used after that.
        waits_at=("collective" if all(cell.label == FREE for cell in failed_cells) else "rendezvous")
        if "filtered" in statuses
        else "",
    )


def _sentence(group: Sequence[Shape[Target]]) -> str:
    shape = group[0]
    nodes = list(dict.fromkeys(item.node for item in group))
    who = fold(nodes)
    others = fold(sorted({name for item in group for cell in item.cells for name in cell.pair} - set(nodes)) or nodes)
    if shape.kind == "everybody":
        return f"no node can reach any other ({fold(shape.nodes)})"
    if shape.kind == "inbound":
        return f"no other node can reach {who} ({others})"
    if shape.kind == "outbound":
        return f"{who} cannot reach any other node ({others})"
    if shape.kind == "isolated":
        isolated = "reaches no other node and cannot be" if len(nodes) == 1 else "reach no other node and cannot be"
        return f"{who} {isolated} reached ({others})"
    if shape.kind == "around":
        return f"some links of {shape.node} fail ({pair_text(shape)})"
    if len(group) > 1:
        pairs = fold((f"{item.node} {'and' if item.mutual else 'to'} {item.other}" for item in group), 6)
        return f"{len(group)} pairs of nodes cannot connect ({pairs})"
    if shape.mutual:
        return f"{shape.node} and {shape.other} cannot reach each other"
    return f"{shape.node} cannot reach {shape.other}"


def _ports(cells: Sequence[Cell[Target]]) -> str:
    """Return the failing ports by number; ports that the kernel chose are numbered only in the evidence."""
    labels = sorted({cell.label for cell in cells} - set(_EPHEMERAL))
    if any(cell.label in _EPHEMERAL for cell in cells):
        labels.append("ports that the kernel chooses (ephemeral)")
    return " and ".join(labels)


def _detail(cells: Sequence[Cell[Target]]) -> str:
    part = _closed_part(cells)
    if part:
        return part
    for cell in cells:
        if cell.result.status in ("stranger", "unresolved", "silent"):
            return f" ({cell.result.host}: {cell.result.detail})"
    return ""


def _closed_part(cells: Sequence[Cell[Target]]) -> str:
    """Return the closed ports if some, but not all, of those across the ephemeral range are closed."""
    across = [cell.result for cell in cells if cell.label == SPREAD]
    closed = sorted({port for result in across for port in result.closed_ports})
    open_ports = sorted({port for result in across for port in result.ports} - set(closed))
    if not closed or not open_ports:
        return ""
    return f" on {fold(map(str, closed))}, but {fold(map(str, open_ports))} are open"


def _remedy(group: Sequence[Shape[Target]], statuses: Sequence[str], ports: str) -> str:
    shape = group[0]
    names = list(dict.fromkeys(name for item in group for name in item.nodes))
    ends = " and ".join(names) if len(names) == 2 else fold(names)
    look = f"check `nft list ruleset` or `iptables -S` on {ends}, and the cloud's security group"
    if "filtered" in statuses:
        others = "the job's other nodes"
        is_one_way = len(group) == 1 and not shape.mutual
        path = {
            "outbound": f"from {ends} to {others}",
            "inbound": f"into {ends} from {others}",
            "isolated": f"between {ends} and {others}",
            "around": f"between {ends} and {others}",
            "pair": f"from {shape.node} to {shape.other}" if is_one_way else f"between {ends}",
        }.get(shape.kind, f"between {ends}")
        return f"Allow TCP {path} on {ports}: {look}."
    if "refused" in statuses or "prohibited" in statuses:
        return (
            f"preflight's listener was running, so something on the path rejects the connection: {look} (REJECT rules)."
        )
    if "unresolved" in statuses:
        sources = fold(sorted({cell.source for item in group for cell in item.cells}))
        return f"Make the name resolve on {sources} (DNS or /etc/hosts)."
    if "no-route" in statuses:
        return f"Compare `ip route` on {ends}: the address is not on a network that they share."
    if "stranger" in statuses or "silent" in statuses:
        return "Another program, proxy or load balancer holds that address and port: use the node's own address."
    return f"Something on the path closes connections: {look}."


def _firewall_commands(group: Sequence[Shape[Target]], statuses: Sequence[str]) -> list[Command]:
    """Return commands that show the firewall rules of both nodes, and commands that open the job's own ports."""
    if not {"filtered", "refused", "prohibited"}.intersection(statuses):
        return []
    nodes = list(dict.fromkeys(name for item in group for name in item.nodes))
    look = root_command("nft", "list", "ruleset", on=nodes)
    inward: dict[int, dict[str, None]] = {}
    for cell in (cell for item in group if item.kind != "outbound" for cell in item.cells):
        if (
            cell.result.status == "filtered"
            and cell.label not in _EPHEMERAL
            and cell.result.port
            and cell.peer in nodes
        ):
            inward.setdefault(cell.result.port, {})[cell.peer] = None
    return [
        look,
        *(
            root_command("iptables", "-I", "INPUT", "-p", "tcp", "--dport", str(port), "-j", "ACCEPT", on=peers)
            for port, peers in inward.items()
        ),
    ]


def _evidence(cell: Cell[Target]) -> Evidence:
    result = cell.result
    host = result.address or result.host
    seen = f"{result.status} after {result.took_s:.1f} s"
    if result.detail:
        seen += f": {result.detail}"
    number = result.closed_ports[0] if result.closed_ports else result.port
    port = str(number) if number else "<port>"
    return Evidence(
        f"dial {cell.peer} ({host}) on {cell.label}",
        seen,
        "a response from preflight's listener",
        f"nc -vz -w 2 {host} {port}",
        cell.source,
        cell.at_s,
    )


#: Symptoms of failed connections, for messages.
STATUS_TEXTS = {status: row["sentence"] for status, row in table("connection_statuses").items() if "sentence" in row}
#: Not dialled, because the listener or the time was lacking.
NOT_TRIED = ("unbound", "untried")


@dataclass(frozen=True)
class DialEvidence:
    """Every tried port of every pair.

    Args:
        tried: the results that show whether the peer can be reached.
        failing: all results that failed.
        other_address: no connection, because the host name resolves to something else there.
        other_machine: no connection, because another machine responds for the address.
        no_carrier: no connection, because one of the two nodes lost its carrier.
    """

    every: Sequence[Cell[Target]]
    tried: Sequence[Cell[Target]]
    failing: Sequence[Cell[Target]]
    other_address: Sequence[Cell[Target]]
    other_machine: Sequence[Cell[Target]]
    no_carrier: Sequence[Cell[Target]] = ()


@memoize
def dial_evidence(facts: Facts) -> DialEvidence:
    """Return the results of all tried ports, sorted."""
    dial_cells = cells(facts)
    # A large fleet dials a hundred thousand ports, and nearly all of them answer.
    failing = [c for c in dial_cells if c.result.status != "ok"]
    wrong = misresolved_hosts(facts)
    nameless = [c for c in failing if c.result.status in STATUS_TEXTS and (c.source, c.result.host) in wrong]
    disputed = disputed_pairs(facts)
    used = [c for c in failing if c.result.status in STATUS_TEXTS and frozenset(c.pair) in disputed]
    unsteady = nodes_without_steady_carrier(facts)
    cut = [
        c
        for c in failing
        if unsteady.intersection(c.pair) and c.result.status in STATUS_TEXTS and frozenset(c.pair) not in disputed
    ]
    left_out = {id(c) for c in (*nameless, *used, *cut)} | {id(c) for c in failing if c.result.status in NOT_TRIED}
    tried = [c for c in dial_cells if id(c) not in left_out] if left_out else dial_cells
    return DialEvidence(dial_cells, tried, failing, nameless, used, cut)


def nodes_without_dial(facts: Facts) -> Iterator[tuple[FactRow[Dialled], Unavailable]]:
    """Yield the nodes that could not try to connect to any peer, each with the reason."""
    for row in facts.each(dial):
        if isinstance(row.fact, Unavailable) and not row.params.get("look"):
            yield row, row.fact
