"""Whether every node can open the job's ports on every other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet, Observed
from preflight_checks.demands import fold, unreached
from preflight_checks.dialling import FREE, cells, claims_of, coverage, pair_list, plan_links, subject
from preflight_checks.matrix import Cell, Shape, shapes
from preflight_checks.names import misnamed
from preflight_checks.probes.links import dial

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
        yield _unreachable(shape, claims_of(job, fleet, shape))
    silent = unreached(fleet)
    if silent:
        yield unknown(f"links of {fold(silent)}", "blocked by NOD001")
    if tried and not found:
        yield passed(coverage(fleet))


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
        f"links: {subject(shape)}",
        f"{_sentence(shape)} on {ports}: connections {how}{_detail(shape)}",
        at=evidence[0],
        also=(*evidence[1:], *claims),
        nodes=shape.nodes,
        remedy=_remedy(shape, statuses, ports),
    )


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
        return f"some links of {shape.node} fail ({pair_list(shape)})"
    if shape.mutual:
        return f"{shape.node} and {shape.other} cannot reach each other"
    return f"{shape.node} cannot reach {shape.other}"


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
    ends = " and ".join(shape.nodes) if shape.kind == "pair" else fold(shape.nodes)
    look = f"look at `nft list ruleset` or `iptables -S` on {ends}, and at the cloud's security group"
    if "filtered" in statuses:
        others = "the job's other nodes"
        path = {
            "outbound": f"out of {shape.node} to {others}",
            "inbound": f"into {shape.node} from {others}",
            "isolated": f"between {shape.node} and {others}",
            "around": f"between {shape.node} and {others}",
            "pair": f"between {ends}" if shape.mutual else f"from {shape.node} to {shape.other}",
        }.get(shape.kind, f"between {ends}")
        return f"Allow TCP {path} on {ports}: {look}."
    if "refused" in statuses:
        return f"Our listener was up, so something rejects it on the way: {look} (REJECT rules)."
    if "unresolved" in statuses:
        return f"Make the name resolve on {fold(sorted({c.source for c in shape.cells}))} (DNS or /etc/hosts)."
    if "no-route" in statuses:
        return f"Compare `ip route` on {fold(shape.nodes)}: the address is on no network they share."
    if "stranger" in statuses or "silent" in statuses:
        return "Another program, proxy or load balancer holds that address and port: use the node's own address."
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
