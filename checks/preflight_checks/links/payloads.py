"""Checks that large payloads arrive over the established connections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from preflight.analysis.link_matrix import Cell, Shape, shapes
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.links.dial_requests import cells, claims_of, coverage, plan_links, plan_second_try
from preflight_checks.links.fault_shapes import direction, subject
from preflight_checks.network.interface_filter import subnet
from preflight_checks.probes.interfaces import Interfaces, interfaces
from preflight_checks.probes.links import Target
from preflight_checks.requirements import fold


@check(
    "LNK002",
    "large-payload-stalls",
    plan=plan_links,
    cost="sends 64 KiB over each connection; 2.5 s more if they do not arrive",
    when="link",
    follow_up=plan_second_try,
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#1524", "NVIDIA/nccl#1957", "NVIDIA/nccl-tests#236"),
)
def large_payload_stalls(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Payloads larger than one frame arrive between all nodes.

    What it checks: 64 KiB are sent over each connection that a node opens to its partners, and must be acknowledged.
    If they are not, messages of 64 B to 16 KB find the size that gets lost.

    Why it matters: if a switch port or tunnel silently drops frames of the hosts' size, everything small works:
    rendezvous, barrier, small all-reduces. The first large gradient hangs the job.

    Example: hosts at MTU 9000, the port of node3 at 1500: 1400 bytes arrive, 2000 do not.

    Fix: give hosts and switch ports one MTU, or lower the hosts' to the smallest on the path.

    Known limits: TCP only; a path of RDMA traffic may have another MTU. Under 200 kbit/s is reported as slow.
    """
    if len(fleet.nodes) < 2:
        yield not_applicable("links", "the job has one node")
        return
    tried = [cell for cell in cells(facts) if cell.result.status in ("ok", "stalled", "slow")]
    if not tried:
        yield unknown("large payloads", "no connection was established")
        return
    stalled = shapes(tried, lambda cell: cell.result.status == "stalled")
    slow = shapes(tried, lambda cell: cell.result.status == "slow")
    for shape in stalled:
        yield _stall_finding(
            shape, claims_of(job, fleet, facts, {cell.label for cell in shape.cells}), _mtus(shape, facts)
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
        f"while connections and smaller ones work: the path takes smaller frames than the hosts send (MTU){mtus}",
        at=evidence[0],
        also=(*evidence[1:], *claims),
        nodes=shape.nodes,
        remedy=f"Compare the MTU of the hosts with that of the switch ports and tunnels towards "
        f"{fold(shape.nodes)}; until the path is fixed, lower the hosts' (`ip link set DEV mtu 1500`). "
        f"`ping -M do -s 8000 {address}` on {example.source} shows it.",
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
        remedy=f"Look for packet loss, a rate limit or a link at the wrong speed at {fold(shape.nodes)}: "
        "`ip -s link`, `ethtool DEV`.",
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


def _mtus(shape: Shape[Target], facts: Facts) -> str:
    """The MTUs of the interfaces on the network of the connection, as far as they are known."""
    observed = facts.observed(interfaces)
    found: dict[str, int] = {}
    for cell in shape.cells:
        networks = _networks(observed, cell.peer, cell.result.address)
        for node in cell.pair:
            for item in observed[node].interfaces if node in observed else ():
                if item.mtu and any(subnet(address) in networks for address in item.addresses):
                    found[f"{node} {item.name}"] = item.mtu
    if not found:
        return ""
    return "; " + fold((f"{name} has MTU {mtu}" for name, mtu in sorted(found.items())), 4)


def _networks(observed: Mapping[str, Interfaces], node: str, address: str) -> set[str]:
    """The network of `address` on `node`; empty if unknown."""
    if node not in observed:
        return set()
    return {subnet(a) for item in observed[node].interfaces for a in item.addresses if a.address == address}
