"""Whether large payloads get through over the connections that came about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.matrix import Cell, Shape, shapes
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight_checks.demands import fold
from preflight_checks.links.dialling import cells, claims_of, coverage, plan_links, plan_second_look
from preflight_checks.links.shape_words import subject, way
from preflight_checks.network.interface_filter import subnet
from preflight_checks.probes.interfaces import Interfaces, interfaces
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.links import Target, dial


@check(
    "LNK002",
    "large-payload-stalls",
    plan=plan_links,
    probes=(dial, listen),
    cost="sends 64 KiB over each connection; 2.5 s more where they do not arrive",
    when="link",
    follow_up=plan_second_look,
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#1524", "NVIDIA/nccl#1957", "NVIDIA/nccl-tests#236"),
)
def large_payload_stalls(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Payloads larger than one frame arrive between all nodes.

    What it checks: over each connection, which each node opens to its partners, 64 KiB are sent and must be
    acknowledged; where they are not, messages of 64 B to 16 KB look for the size that gets lost.

    Why it matters: where a switch port or tunnel takes smaller frames than the hosts send, and says nothing,
    everything small works: rendezvous, barrier, small all-reduces. The first large gradient hangs the job.

    Example: hosts at MTU 9000, the port of node3 at 1500: 1400 bytes arrive, 2000 do not.

    Fix: give hosts and switch ports one MTU, or lower the hosts' to the smallest on the path.

    Known limits: TCP only; a path of RDMA traffic may have another MTU. Under 200 kbit/s is reported as slow.

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
        yield _stalled(shape, claims_of(job, fleet, {cell.label for cell in shape.cells}), _mtus(shape, facts))
    for shape in slow:
        yield _slow(shape, claims_of(job, fleet, {cell.label for cell in shape.cells}))
    if not stalled and not slow:
        yield passed(coverage(fleet))


def _stalled(shape: Shape[Target], claims: tuple[Claim, ...], mtus: str) -> Verdict:
    arrived = min(cell.result.arrived_bytes for cell in shape.cells)
    lost = max(cell.result.lost_bytes for cell in shape.cells)
    example = shape.cells[0]
    address = example.result.address or example.result.host
    evidence = [_payload_evidence(cell) for cell in shape.cells[:8]]
    return failed(
        f"large payloads: {subject(shape)}",
        f"payloads above {arrived} bytes do not arrive {way(shape)} ({lost} bytes were never acknowledged), while "
        f"connections and smaller ones work: the path takes smaller frames than the hosts send (MTU){mtus}",
        at=evidence[0],
        also=(*evidence[1:], *claims),
        nodes=shape.nodes,
        remedy=f"Compare the MTU of the hosts with that of the switch ports and tunnels towards "
        f"{fold(shape.nodes)}; until the path is mended, lower the hosts' (`ip link set DEV mtu 1500`). "
        f"`ping -M do -s 8000 {address}` on {example.source} shows it.",
    )


def _slow(shape: Shape[Target], claims: tuple[Claim, ...]) -> Verdict:
    evidence = [_payload_evidence(cell) for cell in shape.cells[:8]]
    return failed(
        f"slow link: {subject(shape)}",
        f"{max(cell.result.lost_bytes for cell in shape.cells)} bytes did not arrive within 2.5 s {way(shape)}, "
        "although smaller messages did",
        at=evidence[0],
        also=(*evidence[1:], *claims),
        nodes=shape.nodes,
        remedy=f"Look for packet loss, a rate limit or a link at the wrong speed at {fold(shape.nodes)}: "
        "`ip -s link`, `ethtool DEV`.",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
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


def _mtus(shape: Shape[Target], facts: Facts) -> str:
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
