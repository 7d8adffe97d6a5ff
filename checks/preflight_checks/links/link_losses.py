"""Whether packets get lost between nodes, and whether frames of full size arrive."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, passed, unknown
from preflight.matrix import Shape
from preflight.outcome import Confidence, Severity
from preflight.recording import Facts, Fleet
from preflight_checks.demands import backends, fold
from preflight_checks.links.measured import (
    COST,
    PROBES,
    covered,
    evidence_of,
    find,
    inconclusive,
    nothing_measured,
    times,
)
from preflight_checks.links.quality import Cards, Judged, plan_measures
from preflight_checks.links.shape_words import subject, way


@check(
    "LNK005",
    "link-loses-packets",
    plan=lambda job, fleet, facts: (),
    follow_up=plan_measures,
    probes=PROBES,
    cost=COST,
    when="link",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#489", "https://www.rfc-editor.org/rfc/rfc8085"),
)
def link_loses_packets(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Hardly any packet is lost between two nodes.

    What it checks: 500 small datagrams each way, 0.2 ms apart, and what TCP sent again of 200 small messages; where
    packets were lost, 1500 more. No transfer runs meanwhile, so that no queue of our own making overflows.

    Why it matters: TCP stands still for 0.2 s for a lost packet that nothing follows, and halves its rate for
    the others: one bad cable makes every collective of the job wait.

    Example: 5 % of what node2 is sent is lost; the others lose nothing.

    Fix: look at the error counters of the card and of the switch port; change the cable or transceiver.

    Known limits: less than one packet in 250 is not seen. A host that limits how many datagrams a second it takes looks
    the same. Where a firewall forbids UDP only TCP's own count is left.

    Evidence: NVIDIA/nccl#489; RFC 8085 (how many datagrams may be sent without harm).
    """
    early = nothing_measured(job, fleet, facts, "packet loss")
    if early is not None:
        yield early
        return
    found = find(facts, ["lossy"], lambda item: "lossy" in item.kinds)
    yield from inconclusive(found, "lossy", "packet loss")
    for shape in found.shapes:
        yield _lossy(shape)
    if not found.shapes:
        without = sum(not item.looks[0].way.arrived for item in found.every)
        note = (
            f"; no datagram got through on {without} of {len(found.every)} ways, so TCP alone tells" if without else ""
        )
        yield passed(f"packet loss: {covered(found, fleet)} tried{note}")


def _lossy(shape: Shape[Judged]) -> Verdict:
    looks = [look for cell in shape.cells for look in cell.result.looks]
    sent, lost = sum(look.way.sent for look in looks if look.way.arrived), sum(look.lost for look in looks)
    pings = sum(look.quality.pings for look in looks)
    again = sum(look.quality.lost_pings or 0 for look in looks)
    share = f"{lost} of {sent} datagrams ({lost / sent:.1%})" if lost else f"{again} of {pings} small TCP messages"
    evidence = [
        evidence_of(
            "packet loss",
            cell,
            "; ".join(
                f"{look.lost} of {look.way.sent} datagrams lost, TCP sent {look.quality.lost_pings or 0} of "
                f"{look.quality.pings} pings again"
                for look in cell.result.looks
            ),
            "nothing lost",
            f"ping -c 500 -i 0.002 -q {cell.result.looks[-1].quality.address}",
        )
        for cell in shape.cells[:8]
    ]
    return failed(
        f"packet loss: {subject(shape)}",
        f"{share} were lost {way(shape)}, tried {times(shape)}",
        at=evidence[0],
        also=evidence[1:],
        nodes=shape.nodes,
        remedy=f"Look at error and drop counters of the card and of its switch port: `ip -s -s link show DEV`, "
        f"`ethtool -S DEV` on {fold(shape.nodes)}; change cable or transceiver.",
    )


@check(
    "LNK006",
    "full-frames-lost",
    plan=lambda job, fleet, facts: (),
    follow_up=plan_measures,
    probes=PROBES,
    cost=COST,
    when="link",
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#1524", "NVIDIA/nccl#1957", "https://www.rfc-editor.org/rfc/rfc8899"),
)
def full_frames_lost(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A frame as large as the sending interface allows arrives at the other node.

    What it checks: datagrams that must not be cut (DF) and fill one frame of the interface, each way; small ones on
    the same way tell that datagrams get through at all.

    Why it matters: nodes or switch ports of one fabric with different MTUs lose full frames without a word. TCP
    agrees on the smaller size between two hosts, and works; RDMA, and TCP through a switch that is smaller
    than both, do not.

    Example: node2's interface has MTU 9000, everybody else's 1500: what node2 sends in full frames is lost.

    Fix: give hosts and switch ports one MTU.

    Known limits: an error for jobs that use NCCL, which may use RDMA, else a warning; nothing is known where
    firewalls forbid UDP. Where TCP stalls too, LNK002 says so.

    Evidence: NVIDIA/nccl#1524, NVIDIA/nccl#1957; RFC 8899 (probing a path's size with datagrams).
    """
    early = nothing_measured(job, fleet, facts, "full frames")
    if early is not None:
        yield early
        return
    found = find(facts, ["narrow"], lambda item: "narrow" in item.kinds)
    yield from inconclusive(found, "narrow", "full frames")
    may_use_rdma = "nccl" in backends(job)[0]
    for shape in found.shapes:
        yield _narrow(shape, found.cards, certain=may_use_rdma)
    tried = [item for item in found.every if item.looks[0].way.frame_bytes]
    if not tried:
        yield unknown("full frames", "no datagram got through between any two nodes, as where a firewall forbids UDP")
    elif not found.shapes:
        yield passed(f"full frames: {covered(found, fleet)} tried")


def _narrow(shape: Shape[Judged], cards: Cards, *, certain: bool) -> Verdict:
    size = max(look.way.frame_bytes for cell in shape.cells for look in cell.result.looks)
    mtus: dict[str, None] = {}
    for cell in shape.cells:
        for name, end in zip(cell.pair, cell.result.looks[0].ends, strict=True):
            if end is not None and end.mtu:
                mtus[f"{name} {end.name} has MTU {end.mtu}"] = None
    known = f"; {fold(sorted(mtus), 4)}" if mtus else ""
    evidence = [
        evidence_of(
            "full frames",
            cell,
            f"0 of {3 * len(cell.result.looks)} datagrams of {size} bytes arrived, {cell.result.looks[0].way.arrived} "
            f"of {cell.result.looks[0].way.sent} small ones did",
            "all of them arrive",
            f"ping -M do -s {size} {cell.result.looks[0].quality.address}",
        )
        for cell in shape.cells[:8]
    ]
    return failed(
        f"full frames: {subject(shape)}",
        f"datagrams of {size} bytes, which fill a frame of the sender's interface, are lost {way(shape)} without a "
        f"word, while small ones arrive{known}",
        at=evidence[0],
        also=evidence[1:],
        nodes=shape.nodes,
        remedy=f"Give {fold(shape.nodes)}, its peers and the switch ports between them one MTU "
        "(`ip link set DEV mtu N`).",
        severity=None if certain else Severity.WARNING,
        confidence=None if certain else Confidence.MEDIUM,
    )
