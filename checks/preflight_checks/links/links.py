"""Whether every node can open the job's ports on every other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight.matrix import Cell, Shape, shapes
from preflight.outcome import Command, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight_checks.demands import fold, unreached
from preflight_checks.links.dialling import (
    FREE,
    claims_of,
    coverage,
    heard,
    knock_of,
    only_at_first,
    plan_links,
    plan_second_look,
)
from preflight_checks.links.reach import WORDS, Reach, reach, undialled
from preflight_checks.links.shape_words import pair_list, subject
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.links import Target, dial


@check(
    "LNK001",
    "port-unreachable",
    plan=plan_links,
    probes=(dial, listen),
    cost="one process that listens and one that dials every partner on the job's ports and a free one, 64 KiB each; "
    "under a second on healthy links, 2 s more where packets are dropped, and 3 s for a second look at what failed",
    when="link",
    follow_up=plan_second_look,
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#388", "NVIDIA/nccl#1956", "huggingface/trl#4737", "horovod/horovod#1408"),
)
def port_unreachable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node opens the job's ports, and freely chosen ones, on every other node.

    What it checks: each pair of nodes, both ways: the rendezvous and parameter-server ports where they are bound,
    and a port the kernel picks, because Gloo and NCCL connect all ranks over such ports. Our own program listens
    meanwhile and is recognised by a token. Whatever a moment's trouble could cause is tried a second time.

    Why it matters: a dropped port leaves most or all nodes silent for minutes, and the one error that comes
    names the wrong node.

    Example: the firewall of node3 lets only port 22 in; all-reduce between the other three works, the job hangs.

    Fix: allow TCP between the nodes of the job, on its ports and on the range of
    net.ipv4.ip_local_port_range.

    Known limits: above 64 nodes a sample of pairs is tried, and from every node the ports where all meet; connections
    are made by this user outside the container; UDP and RDMA are not tried.

    Evidence: NVIDIA/nccl#388, NVIDIA/nccl#1956, huggingface/trl#4737, horovod/horovod#1408.
    """
    if len(fleet.nodes) < 2:
        yield not_applicable("links", "the job has one node")
        return
    sorted_out = reach(facts)
    yield from _untried(facts, sorted_out)
    if sorted_out.taken:
        pairs = fold((f"{cell.source} to {cell.peer}" for cell in sorted_out.taken), 4)
        yield unknown(f"links: {pairs}", "blocked by LNK007: another machine answers for the address", required=True)
    found = shapes(sorted_out.tried, lambda cell: cell.result.status in WORDS)
    for group in grouped(found):
        claims = claims_of(job, fleet, {cell.label for shape in group for cell in shape.cells})
        yield _unreachable(group, claims, _open_way(group, heard(facts)))
    late = only_at_first(facts)
    if late:
        pairs = fold((f"{cell.source} to {cell.peer}" for cell in late), 4)
        yield unknown(f"links at first: {pairs}", "they failed once and worked when tried again: a busy node, or loss")
    silent = unreached(fleet)
    if silent:
        yield unknown(f"links of {fold(silent)}", "blocked by NOD001")
    if sorted_out.tried and not found:
        yield passed(coverage(fleet))


#: More single pairs than this with one fault are one finding.
_MOST_PAIRS = 4


def grouped(found: Sequence[Shape[Target]]) -> list[list[Shape[Target]]]:
    """Shapes of one kind that fail in the same way on the same ports: one fault on several nodes."""
    groups: dict[tuple[object, ...], list[Shape[Target]]] = {}
    pairs = sum(shape.kind == "pair" for shape in found)
    for index, shape in enumerate(found):
        statuses = tuple(sorted({cell.result.status for cell in shape.cells}))
        apart = (
            index if shape.kind in ("around", "everybody") or (shape.kind == "pair" and pairs <= _MOST_PAIRS) else -1
        )
        ports = tuple(sorted({cell.label for cell in shape.cells})) if shape.kind != "pair" else ()
        groups.setdefault((shape.kind, statuses, ports, apart), []).append(shape)
    return list(groups.values())


def _untried(facts: Facts, sorted_out: Reach) -> Iterator[Verdict]:
    """Pairs and ports that could not be tried, each reason once."""
    for host in dict.fromkeys(cell.result.host for cell in sorted_out.nameless):
        nodes = fold(dict.fromkeys(cell.source for cell in sorted_out.nameless if cell.result.host == host))
        yield unknown(
            f"links: {nodes} to {host}",
            f"blocked by NAM002: {host} is not what it should be there",
            required=True,
        )
    missing: dict[str, list[str]] = {}
    for seen, why in undialled(facts):
        missing.setdefault(why.reason, []).append(f"{seen.node} to {fold(seen.peers, 4)}")
    for cell in sorted_out.failing:
        if cell.result.status == "untried":
            missing.setdefault(cell.result.detail, []).append(f"{cell.source} to {cell.peer}")
    for reason, pairs in missing.items():
        yield unknown(f"links: {fold(pairs, 4)}", reason, required=True)
    unbound: dict[tuple[str, str], str] = {}
    for cell in sorted_out.failing:
        if cell.result.status == "unbound":
            unbound[(cell.peer, cell.label)] = cell.result.detail
    for (node, label), detail in unbound.items():
        reason = f"{node} could not listen there to be dialled ({detail}); see PRT011"
        yield unknown(f"links: {label} on {node}", reason, required=True)


def _open_way(group: Sequence[Shape[Target]], arrived: frozenset[str]) -> str:
    """Which direction is open between two nodes that cannot connect either way; empty where nothing tells."""
    shape = group[0]
    if len(group) > 1 or shape.kind != "pair" or not shape.mutual:
        return ""
    ways = [(shape.node, shape.other), (shape.other, shape.node)]
    through = [knock_of(source, peer) in arrived for source, peer in ways]
    if through[0] == through[1]:
        return ""
    (open_from, open_to), (lost_from, lost_to) = ways if through[0] else ways[::-1]
    lost = f"it is what {lost_from} sends to {lost_to} that is lost"
    return f"; datagrams from {open_from} arrive at {open_to}, so that {lost}"


def _unreachable(group: Sequence[Shape[Target]], claims: tuple[Claim, ...], open_way: str) -> Verdict:
    every = [cell for shape in group for cell in shape.cells]
    statuses = list(dict.fromkeys(cell.result.status for cell in every))
    evidence = [_evidence(cell) for cell in every[:8]]
    ports = _ports(every)
    how = " or ".join(WORDS[status] for status in statuses)
    about = subject(group[0]) if len(group) == 1 else f"{group[0].kind} {fold(shape.node for shape in group)}"
    return failed(
        f"links: {about}",
        f"{_sentence(group)} on {ports}: connections {how}{_detail(every)}{open_way}",
        at=evidence[0],
        also=(*evidence[1:], *claims),
        nodes=dict.fromkeys(name for shape in group for name in shape.nodes),
        remedy=_remedy(group, statuses, ports),
        run=_allowing(group, statuses),
        # At the job's own ports ranks meet; those that the kernel picks are for what comes behind.
        waits_at=("collective" if all(cell.label == FREE for cell in every) else "rendezvous")
        if "filtered" in statuses
        else "",
    )


def _sentence(group: Sequence[Shape[Target]]) -> str:
    shape = group[0]
    nodes = list(dict.fromkeys(item.node for item in group))
    who = fold(nodes)
    others = fold(sorted({name for item in group for cell in item.cells for name in cell.pair} - set(nodes)) or nodes)
    if shape.kind == "everybody":
        return f"no node reaches any other ({fold(shape.nodes)})"
    if shape.kind == "inbound":
        return f"{who} cannot be reached by anybody ({others})"
    if shape.kind == "outbound":
        return f"{who} {'reaches' if len(nodes) == 1 else 'reach'} nobody ({others})"
    if shape.kind == "isolated":
        verbs = "neither reaches anybody nor can be reached" if len(nodes) == 1 else "reach nobody, nor can be reached"
        return f"{who} {verbs} ({others})"
    if shape.kind == "around":
        return f"some links of {shape.node} fail ({pair_list(shape)})"
    if len(group) > 1:
        pairs = fold((f"{item.node} {'and' if item.mutual else 'to'} {item.other}" for item in group), 6)
        return f"{len(group)} pairs of nodes do not connect ({pairs})"
    if shape.mutual:
        return f"{shape.node} and {shape.other} cannot reach each other"
    return f"{shape.node} cannot reach {shape.other}"


def _ports(every: Sequence[Cell[Target]]) -> str:
    """The ports that fail, quoting numbers; the free ones by their number only in the evidence."""
    labels = sorted({cell.label for cell in every}, key=lambda label: (label == FREE, label))
    return " and ".join("ports the kernel picks (ephemeral)" if label == FREE else label for label in labels)


def _detail(every: Sequence[Cell[Target]]) -> str:
    for cell in every:
        if cell.result.status in ("stranger", "unresolved", "silent"):
            return f" ({cell.result.host}: {cell.result.detail})"
    return ""


def _remedy(group: Sequence[Shape[Target]], statuses: Sequence[str], ports: str) -> str:
    shape = group[0]
    names = list(dict.fromkeys(name for item in group for name in item.nodes))
    ends = " and ".join(names) if len(names) == 2 else fold(names)
    look = f"look at `nft list ruleset` or `iptables -S` on {ends}, and at the cloud's security group"
    if "filtered" in statuses:
        others = "the job's other nodes"
        one_way = len(group) == 1 and not shape.mutual
        path = {
            "outbound": f"out of {ends} to {others}",
            "inbound": f"into {ends} from {others}",
            "isolated": f"between {ends} and {others}",
            "around": f"between {ends} and {others}",
            "pair": f"from {shape.node} to {shape.other}" if one_way else f"between {ends}",
        }.get(shape.kind, f"between {ends}")
        return f"Allow TCP {path} on {ports}: {look}."
    if "refused" in statuses:
        return f"Our listener was up, so something rejects it on the way: {look} (REJECT rules)."
    if "unresolved" in statuses:
        sources = fold(sorted({cell.source for item in group for cell in item.cells}))
        return f"Make the name resolve on {sources} (DNS or /etc/hosts)."
    if "no-route" in statuses:
        return f"Compare `ip route` on {ends}: the address is on no network they share."
    if "stranger" in statuses or "silent" in statuses:
        return "Another program, proxy or load balancer holds that address and port: use the node's own address."
    return f"Something ends connections on the way: {look}."


def _allowing(group: Sequence[Shape[Target]], statuses: Sequence[str]) -> list[Command]:
    """What shows the rules of the nodes at the ends, and what lets the job's own ports in where nothing answers."""
    if not {"filtered", "refused"}.intersection(statuses):
        return []
    nodes = list(dict.fromkeys(name for item in group for name in item.nodes))
    look = root_command("nft", "list", "ruleset", on=nodes)
    inward: dict[int, dict[str, None]] = {}
    for cell in (cell for item in group if item.kind != "outbound" for cell in item.cells):
        if cell.result.status == "filtered" and cell.label != FREE and cell.result.port and cell.peer in nodes:
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
    port = str(result.port) if result.port else "<port>"
    return Evidence(
        f"dial {cell.peer} ({host}) on {cell.label}",
        seen,
        "an answer from our listener",
        f"nc -vz -w 2 {host} {port}",
        cell.source,
        cell.at_s,
    )
