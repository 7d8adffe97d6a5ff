"""Checks for packet loss between nodes, lost frames of full size, and links that lost their carrier."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.analysis.link_matrix import Shape
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, memoize, not_applicable, passed, unknown
from preflight_checks.links.dial_requests import cells
from preflight_checks.links.fault_shapes import (
    covered,
    direction,
    evidence_of,
    find,
    inconclusive,
    link_check,
    some_measured,
    subject,
    times,
)
from preflight_checks.links.fleet_comparison import JudgedDirection
from preflight_checks.network.nic_health import states_in_use
from preflight_checks.plans import missing_facts, multi_node, no_requests
from preflight_checks.probes.interfaces import interfaces
from preflight_checks.probes.links import dial
from preflight_checks.probes.nic_state import carriers, nic_states
from preflight_checks.requirements import backends, fold, is_multi_node


@link_check(
    "LNK005",
    "link-loses-packets",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "NVIDIA/nccl#489",
        ("RFC 8085 (how many datagrams may be sent without harm)", "https://www.rfc-editor.org/rfc/rfc8085"),
    ),
)
def link_loses_packets(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Packets are not lost between two nodes.

    What it checks: 500 small datagrams each way, 0.2 ms apart, and TCP's retransmissions of 200 small messages; if
    packets were lost, 1500 more. No transfer runs at the same time, so our own traffic overflows no queue.

    Why it matters: TCP stalls for 0.2 s if the last packet is lost, and halves its rate for other losses: one bad
    cable makes every collective wait.

    Example: 5 % of what node2 is sent is lost; the others lose nothing.

    Fix: check the error counters of the card and of the switch port; change the cable or transceiver.

    Known limits: loss below one packet in 250 is not detected. A host that limits datagrams per second looks the same.
    If a firewall blocks UDP, only TCP's own count is used.
    """
    if not (yield from some_measured(fleet, facts, "packet loss")):
        return
    found = find(facts, ["lossy"], lambda item: "lossy" in item.kinds)
    yield from inconclusive(found, "lossy", "packet loss")
    for shape in found.shapes:
        yield _lossy(shape)
    if not found.shapes:
        without = sum(not item.measurements[0].direction.arrived for item in found.every)
        note = (
            f"; no datagram arrived in {without} of {len(found.every)} directions, so only TCP was judged"
            if without
            else ""
        )
        yield passed(f"packet loss: {covered(found, fleet)} tried{note}")


def _lossy(shape: Shape[JudgedDirection]) -> Verdict:
    looks = [look for cell in shape.cells for look in cell.result.measurements]
    sent, lost = sum(look.direction.sent for look in looks if look.direction.arrived), sum(look.lost for look in looks)
    pings = sum(look.quality.pings for look in looks)
    again = sum(look.quality.lost_pings or 0 for look in looks)
    share = f"{lost} of {sent} datagrams ({lost / sent:.1%})" if lost else f"{again} of {pings} small TCP messages"
    evidence = [
        evidence_of(
            "packet loss",
            cell,
            "; ".join(
                f"{look.lost} of {look.direction.sent} datagrams lost, TCP sent {look.quality.lost_pings or 0} of "
                f"{look.quality.pings} pings again"
                for look in cell.result.measurements
            ),
            "nothing lost",
            f"ping -c 500 -i 0.002 -q {cell.result.measurements[-1].quality.address}",
        )
        for cell in shape.cells[:8]
    ]
    return failed(
        f"packet loss: {subject(shape)}",
        f"{share} were lost {direction(shape)}, tried {times(shape)}",
        at=evidence[0],
        also=evidence[1:],
        nodes=shape.nodes,
        remedy=f"Check the error and drop counters of the card and of its switch port: `ip -s -s link show DEV`, "
        f"`ethtool -S DEV` on {fold(shape.nodes)}; change cable or transceiver.",
    )


@link_check(
    "LNK006",
    "full-frames-lost",
    severity=Severity.ERROR,
    evidence=(
        "NVIDIA/nccl#1524",
        "NVIDIA/nccl#1957",
        ("RFC 8899 (probing a path's size with datagrams)", "https://www.rfc-editor.org/rfc/rfc8899"),
    ),
)
def full_frames_lost(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A frame as large as the sending interface allows arrives at the other node.

    What it checks: unfragmentable datagrams (DF) that fill one frame of the interface, in each direction; small ones
    show that datagrams arrive at all.

    Why it matters: nodes or switch ports of one fabric with different MTUs silently lose full frames. TCP between two
    hosts agrees on the smaller size and works; RDMA does not, nor does TCP through a switch with a smaller MTU.

    Example: node2's interface has MTU 9000, all others have 1500: full frames of node2 are lost.

    Fix: give hosts and switch ports one MTU.

    Known limits: an error for jobs that use NCCL, which may use RDMA, else a warning; unknown if a firewall blocks
    UDP. LNK002 reports stalls of TCP.
    """
    if not (yield from some_measured(fleet, facts, "full frames")):
        return
    found = find(facts, ["narrow"], lambda item: "narrow" in item.kinds)
    yield from inconclusive(found, "narrow", "full frames")
    may_use_rdma = "nccl" in backends(job)[0]
    for shape in found.shapes:
        yield _full_frame_finding(shape, certain=may_use_rdma)
    tried = [item for item in found.every if item.measurements[0].direction.frame_bytes]
    if not tried:
        yield unknown("full frames", "no datagram arrived between any two nodes; a firewall may block UDP")
    elif not found.shapes:
        yield passed(f"full frames: {covered(found, fleet)} tried")


def _full_frame_finding(shape: Shape[JudgedDirection], *, certain: bool) -> Verdict:
    size = max(look.direction.frame_bytes for cell in shape.cells for look in cell.result.measurements)
    mtus: dict[str, None] = {}
    for cell in shape.cells:
        for name, end in zip(cell.pair, cell.result.measurements[0].ends, strict=True):
            if end is not None and end.mtu:
                mtus[f"{name} {end.name} has MTU {end.mtu}"] = None
    known = f"; {fold(sorted(mtus), 4)}" if mtus else ""
    evidence = [
        evidence_of(
            "full frames",
            cell,
            f"0 of {3 * len(cell.result.measurements)} datagrams of {size} bytes arrived, "
            f"{small.arrived} of {small.sent} small ones did",
            "all of them arrive",
            f"ping -M do -s {size} {cell.result.measurements[0].quality.address}",
        )
        for cell in shape.cells[:8]
        for small in (cell.result.measurements[0].direction,)
    ]
    return failed(
        f"full frames: {subject(shape)}",
        f"datagrams of {size} bytes, which fill a frame of the sender's interface, are lost without an error "
        f"{direction(shape)}, while small ones arrive{known}",
        at=evidence[0],
        also=evidence[1:],
        nodes=shape.nodes,
        remedy=f"Give {fold(shape.nodes)}, its peers and the switch ports between them the same MTU (`ip link set DEV "
        "mtu N`).",
        certain=certain,
    )


#: From this number of changes on, the carrier was lost more than once: a loss counts twice, and the last one may last.
_REPEATED_CHANGES = 3


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Read the counters again when the links have been tried."""
    if multi_node(job, fleet) and any(True for _ in facts.each(dial)):
        for node in fleet.reached:
            yield Request(probe_name(carriers), node.name)


@memoize
def nodes_without_steady_carrier(facts: Facts) -> frozenset[str]:
    """The nodes with an interface whose carrier changed between the two looks.

    Interfaces that lead to no other machine do not count: those of containers come and go all the time.
    """
    later = facts.observed(carriers)
    outward = _outward(facts)
    return frozenset(
        node
        for node, seen in facts.observed(nic_states).items()
        for state in seen.interfaces
        if node in later
        and (node not in outward or state.name in outward[node])
        and state.carrier_changes is not None
        and later[node].changes.get(state.name, 0) > state.carrier_changes
    )


def _outward(facts: Facts) -> dict[str, set[str]]:
    """The interfaces of each node that other nodes dialled, or that belong to a device."""
    dialled = {cell.result.address for cell in cells(facts)}
    return {
        node: {
            item.name
            for item in seen.interfaces
            if item.kind in ("physical", "") or any(each.address in dialled for each in item.addresses)
        }
        for node, seen in facts.observed(interfaces).items()
    }


@check(
    "NIC013",
    "carrier-lost-meanwhile",
    plan=no_requests,
    follow_up=_plan,
    probes=(nic_states, carriers),
    cost="reads /sys/class/net once more after the links were tried; milliseconds",
    when="link",
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#1957", ("Linux interface statistics", "https://docs.kernel.org/networking/statistics.html")),
)
def carrier_lost(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The interface in use keeps its carrier between the first and the last look of the run.

    What it checks: carrier_changes of each node's interface in use, read in the node stage and again after the links
    were tried. More than one loss in these seconds is an error, a single one a warning.

    Why it matters: a link that comes and goes passes short tests between two losses. RDMA connections end at once,
    and every loss holds up all ranks.

    Example: eth0 of node3 loses its carrier every 2 seconds, for 0.2 seconds each time.

    Fix: reseat or replace cable and transceiver, and look at the switch port's log.

    Known limits: a loss before or after these seconds is not seen; NIC010 compares the counters since the driver was
    loaded.
    """
    if not is_multi_node(fleet):
        yield not_applicable("carriers", "all nodes are one machine")
        return
    yield from missing_facts(facts, carriers, "carriers")
    later = {seen.node: seen for seen in facts.each(carriers) if isinstance(seen.fact, Observed)}
    began = {seen.node: seen.finished_s for seen in facts.each(nic_states)}
    quiet = 0
    for node, (use, state) in states_in_use(job, facts).items():
        now = later[node].fact if node in later else None
        changes = now.value.changes.get(state.name) if isinstance(now, Observed) else None
        if changes is None or state.carrier_changes is None:
            continue
        lost = changes - state.carrier_changes
        if lost <= 0:
            quiet += 1
            continue
        after_s = (later[node].finished_s or 0.0) - (began.get(node) or 0.0)
        repeated = lost >= _REPEATED_CHANGES
        yield failed(
            f"carrier of {node}",
            f"{state.name} on {node} lost or found its carrier {lost} time{'s' * (lost != 1)} in the {after_s:.1f} s "
            "between two looks",
            at=Evidence(
                "carrier_changes",
                f"{state.carrier_changes}, then {changes}",
                "no change",
                f"cat /sys/class/net/{state.name}/carrier_changes; ip monitor link",
                node,
                later[node].finished_s,
            ),
            also=use.claims,
            remedy=f"Reseat or replace cable and transceiver of {state.name} on {node}, and look at the log of its "
            "switch port.",
            certain=repeated,
        )
    if quiet:
        yield passed(f"carriers of {quiet} nodes")
    elif not later:
        yield unknown("carriers", "no node was looked at a second time")
