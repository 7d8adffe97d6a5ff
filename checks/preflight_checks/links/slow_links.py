"""Checks that no link loses packets or has much lower bandwidth or higher latency than the others (TCP and RDMA)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from preflight.analysis.link_matrix import Cell, Shape, rounds
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Observed, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, memoize, not_applicable, passed, unknown
from preflight_checks.gpus.health import expected_speeds
from preflight_checks.links.dial_requests import addresses_of, cells, listeners
from preflight_checks.links.fleet_comparison import (
    BEYOND_DOUBT,
    BUSY,
    FleetValues,
    JudgedDirection,
    LinkFaults,
    any_link_measured,
    coverage_text,
    direction,
    evidence_of,
    find,
    format_rate,
    format_time,
    inconclusive_verdicts,
    link_check,
    load_of,
    measurements_of,
    subject,
    times,
    values_and_cards,
)
from preflight_checks.network.nic_health import states_in_use
from preflight_checks.plans import missing_facts, no_requests, only_if, runs_on_several_machines, warning_check
from preflight_checks.probes.devices import pci
from preflight_checks.probes.interfaces import carriers, interfaces, nic_states
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.link_quality import STREAMS
from preflight_checks.probes.links import dial
from preflight_checks.probes.rdma import RailSpeed, rdma, rdma_speed
from preflight_checks.rdma.devices import Port, applicable_demand, ports_by_node
from preflight_checks.rdma.port_health import automatic_gid
from preflight_checks.requirements import backends, fold, nodes_share_machine


@link_check("LNK005", "link-loses-packets", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
def link_loses_packets(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Packets are not lost between two nodes.

    What it checks: 500 small datagrams each way, 0.2 ms apart, and TCP's retransmissions of 200 small messages; if
    packets were lost, 1500 more. No transfer runs at the same time, so preflight's own traffic does not overflow any
    queue.

    Why it matters: TCP stalls for 0.2 s if the last packet is lost, and halves its rate for other losses: one bad
    cable makes every collective wait.

    Example: 5 % of the packets to node2 are lost; the others lose none.

    Fix: check the error counters of the card and of the switch port; replace the cable or transceiver.

    Known limits: loss below one packet in 250 is not detected. A host that limits datagrams per second looks the same.
    If a firewall blocks UDP, only TCP's own count is used.
    """
    if not (yield from any_link_measured(fleet, facts, "packet loss")):
        return
    faults = find(facts, ["lossy"], lambda item: "lossy" in item.kinds)
    yield from inconclusive_verdicts(faults, "lossy", "packet loss")
    for shape in faults.shapes:
        yield _loss_finding(shape)
    if not faults.shapes:
        without = sum(not item.measurements[0].direction.arrived for item in faults.every)
        note = (
            f"; no datagram arrived in {without} of {len(faults.every)} directions, so only TCP was evaluated"
            if without
            else ""
        )
        yield passed(f"packet loss: {coverage_text(faults, fleet)} tried{note}")


def _loss_finding(shape: Shape[JudgedDirection]) -> Verdict:
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
                f"{look.lost} of {look.direction.sent} datagrams lost, TCP retransmitted "
                f"{look.quality.lost_pings or 0} of {look.quality.pings} small messages"
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
        remedy="Check the error and drop counters of the network card and its switch port: `ip -s -s link show "
        f"DEV`, `ethtool -S DEV` on {fold(shape.nodes)}; replace the cable or transceiver.",
    )


@link_check("LNK006", "full-frames-lost", severity=Severity.ERROR)
def full_frames_lost(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A frame as large as the sending interface allows arrives at the other node.

    What it checks: unfragmentable datagrams (DF) that fill one frame of the interface, in each direction; small
    datagrams show whether any arrive.

    Why it matters: nodes or switch ports of one fabric with different MTUs silently lose full frames. TCP between two
    hosts agrees on the smaller size and works; RDMA does not, and neither does TCP through a switch with a smaller MTU.

    Example: node2's interface has MTU 9000, but all others have 1500: full frames from node2 are lost.

    Fix: configure the same MTU on hosts and switch ports.

    Known limits: an error for jobs that use NCCL, which may use RDMA, otherwise a warning; unknown if a firewall blocks
    UDP. LNK002 reports stalls of TCP.
    """
    if not (yield from any_link_measured(fleet, facts, "full frames")):
        return
    faults = find(facts, ["narrow"], lambda item: "narrow" in item.kinds)
    yield from inconclusive_verdicts(faults, "narrow", "full frames")
    may_use_rdma = "nccl" in backends(job)[0]
    for shape in faults.shapes:
        yield _full_frame_finding(shape, certain=may_use_rdma)
    tried = [item for item in faults.every if item.measurements[0].direction.frame_bytes]
    if not tried:
        yield unknown("full frames", "no datagram arrived between any two nodes; a firewall may block UDP")
    elif not faults.shapes:
        yield passed(f"full frames: {coverage_text(faults, fleet)} tried")


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
            "all arrive",
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
    """Read the counters again after the links have been tried."""
    if runs_on_several_machines(job, fleet) and any(True for _ in facts.each(dial)):
        for node in fleet.reached:
            yield Request(probe_name(carriers), node.name)


@memoize
def nodes_without_steady_carrier(facts: Facts) -> frozenset[str]:
    """Return the nodes with an interface that lost or regained its carrier between the two readings of the counters.

    Interfaces that do not lead to other machines do not count: those of containers come and go all the time.
    """
    later = facts.observed(carriers)
    outward = _outward_interfaces(facts)
    return frozenset(
        node
        for node, seen in facts.observed(nic_states).items()
        for state in seen.interfaces
        if node in later
        and (node not in outward or state.name in outward[node])
        and state.carrier_changes is not None
        and later[node].changes.get(state.name, 0) > state.carrier_changes
    )


def _outward_interfaces(facts: Facts) -> dict[str, set[str]]:
    """Return the interfaces of each node to which other nodes connected, or that belong to a device."""
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
    when="link",
    severity=Severity.ERROR,
)
@only_if(runs_on_several_machines, "carriers", "all nodes are one machine")
def carrier_lost(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The interface in use keeps its carrier between the first and last reading of the run.

    What it checks: carrier_changes of each node's interface in use, read in the node stage and again after the links
    were tried. More than one loss in these seconds is an error, a single one a warning.

    Why it matters: a link that comes and goes passes short tests between two losses. RDMA connections end immediately,
    and every loss stalls all ranks.

    Example: eth0 of node3 loses its carrier every 2 seconds, for 0.2 seconds each time.

    Fix: reseat or replace the cable and transceiver, and check the switch port's log.

    Known limits: a loss before or after these seconds is not seen; NIC010 compares the counters since the driver was
    loaded.
    """
    yield from missing_facts(facts, carriers, "carriers")
    later = {row.node: row for row in facts.each(carriers) if isinstance(row.fact, Observed)}
    began = {row.node: row.finished_s for row in facts.each(nic_states)}
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
            f"{state.name} on {node} lost or regained its carrier {lost} time{'s' * (lost != 1)} in the "
            f"{after_s:.1f} s between two readings",
            at=Evidence(
                "carrier_changes",
                f"{state.carrier_changes}, then {changes}",
                "no change",
                f"cat /sys/class/net/{state.name}/carrier_changes; ip monitor link",
                node,
                later[node].finished_s,
            ),
            also=use.claims,
            remedy=f"Reseat or replace the cable and transceiver of {state.name} on {node}, and check the log of its "
            "switch port.",
            certain=repeated,
        )
    if quiet:
        yield passed(f"carriers of {quiet} nodes")
    elif not later:
        yield unknown("carriers", "no node was examined a second time")


#: A fabric whose links are alike reaches more than the first share of what cards and one process carry. Between the two
#: shares links are not alike, and LNK003 compares them.
FABRIC_SHARE, ALIKE_SHARE = 1 / 3, 0.4


@link_check("LNK003", "link-slow", severity=Severity.ERROR)
def link_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No link is far slower than the rest of the fleet, or than its network cards.

    What it checks: the rate of TCP with one stream and with four, in both directions, between each node and three
    partners, in rounds that do not disturb each other; compared with the rest of the fleet (the median and its
    deviation; in fleets of fewer than eight nodes the upper quartile) and with the slower card's speed. Outliers are
    measured again.

    Why it matters: every step of a synchronous job waits for its slowest link, but no library names that link.

    Example: node3 sends at 19 Mbit/s to all others, which reach 9.4 Gbit/s. Its switch port negotiated the wrong speed.

    Fix: compare `ethtool DEV` and `ip -s link show DEV` on the named node and on another node, and check its switch
    port.

    Known limits: one process moves about 10 Gbit/s, so links are compared with at most that or the slower card's speed.
    RDMA is not measured. The finding is an error only if both measurements are below a twentieth of the fleet's rate;
    if waiting for a processor explains it, the result is inconclusive.
    """
    if not (yield from any_link_measured(fleet, facts, "bandwidth")):
        return
    # A link that loses, delays or truncates packets is slow for that reason, which LNK004 to LNK006 report.
    found = find(facts, ["slow"], lambda item: item.kinds == ("slow",), _best_rate)
    yield from inconclusive_verdicts(found, "slow", "bandwidth")
    for shape in found.shapes:
        yield _slow_finding(shape, found)
    if not found.shapes:
        rates = sorted(rate for item in found.every if (rate := item.measurements[0].rate_mbps) is not None)
        if rates:
            spread = f"{format_rate(rates[0])} to {format_rate(rates[-1])}"
            yield passed(f"bandwidth: {coverage_text(found, fleet)} measured, {spread} over TCP")
        else:
            yield unknown("bandwidth", "no transfer completed, or round trips are too long for a short transfer")


def _best_rate(item: JudgedDirection) -> float:
    return max(look.rate_mbps or 0.0 for look in item.measurements)


def _slow_finding(shape: Shape[JudgedDirection], faults: LinkFaults) -> Verdict:
    best = max(_best_rate(cell.result) for cell in shape.cells)
    common = faults.usual.rate_mbps
    if common is not None:
        common = min(common, *(faults.cards.ceiling_mbps(cell.result.measurements[0]) for cell in shape.cells))
    cards = [
        card for cell in shape.cells if (card := faults.cards.expected_mbps(cell.result.measurements[0])) is not None
    ]
    expected = f"{format_rate(common)}, as on other links"
    if common is not None and cards and best * 2 > common:
        expected = f"{format_rate(min(cards))}, the speed of the cards"
    evidence = [_slow_evidence(cell, expected, faults) for cell in shape.cells[:8]]
    certain = common is not None and best < common / BEYOND_DOUBT and len(faults.every) > 2 * len(shape.cells)
    return failed(
        f"bandwidth: {subject(shape)}",
        f"data moves at only {format_rate(best)} or less {direction(shape)}, measured {times(shape)}; expected "
        f"{expected}",
        at=evidence[0],
        also=evidence[1:],
        nodes=shape.nodes,
        remedy="Compare the speed and errors of the network card and its switch port with another node's: `ethtool "
        f"DEV`, `ip -s link show DEV`, `tc qdisc show` on {fold(shape.nodes)}.",
        certain=certain,
    )


def _slow_evidence(cell: Cell[JudgedDirection], expected: str, faults: LinkFaults) -> Evidence:
    look = cell.result.measurements[-1]
    cards = faults.cards.describe(look)
    seen = (
        f"{format_rate(look.direction.single_mbps)} with one stream, {format_rate(look.direction.several_mbps)} with "
        f"{STREAMS}{'; ' + cards if cards else ''}; {look.direction.retransmitted or 0} of "
        f"{look.direction.segments or 0} segments retransmitted, {look.quality.congestion or 'unknown'} congestion "
        f"control, MSS {look.quality.mss}; {load_of(look)}"
    )
    return evidence_of("bandwidth", cell, seen, expected, f"iperf3 -c {look.quality.address} -t 2")


@link_check("LNK004", "link-late", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
def link_late(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The latency of small messages is as low and as steady as in the rest of the fleet.

    What it checks: 200 round trips over TCP before anything else is sent: the shortest compared with the fleet's (late
    if five times as long and a millisecond longer), and the spread of the middle 80 % (unsteady if ten times as large
    and 5 ms larger). Outliers are measured again.

    Why it matters: an all-reduce of many small tensors takes several round trips for each of them.

    Example: round trips between node3 and all others take at least 20 ms, but 0.1 ms between the others: node3 is in
    another building.

    Fix: trace the path with `tracepath`, and choose nodes in one network.

    Known limits: nodes that are in several locations by design are also late. Delays of a busy node are inconclusive.
    """
    if not (yield from any_link_measured(fleet, facts, "round trips")):
        return
    faults = find(
        facts,
        ["late", "unsteady"],
        lambda item: bool({"late", "unsteady"} & {*item.kinds}) and "lossy" not in item.kinds,
        lambda item: min(look.quality.median_s for look in item.measurements),
    )
    for kind in ("late", "unsteady"):
        yield from inconclusive_verdicts(faults, kind, "round trips")
    for shape in faults.shapes:
        yield _late_finding(shape, faults.usual)
    if not faults.shapes:
        trips = sorted(item.measurements[0].quality.median_s for item in faults.every)
        yield passed(
            f"round trips: {coverage_text(faults, fleet)} measured, medians {format_time(trips[0])} to "
            f"{format_time(trips[-1])}"
        )


def _late_finding(shape: Shape[JudgedDirection], common: FleetValues) -> Verdict:
    looks = [look for cell in shape.cells for look in cell.result.measurements]
    late = any("late" in cell.result.kinds for cell in shape.cells)
    if late:
        latency_text = f"take at least {format_time(min(look.quality.least_s for look in looks))}"
        expected = f"{format_time(common.least_s)}, as on other links"
    else:
        latency_text = f"vary by at least {format_time(min(look.quality.spread_s for look in looks))}"
        expected = f"{format_time(common.spread_s)}, as on other links"
    evidence = [
        evidence_of(
            "round trips",
            cell,
            "minimum {}, median {}, 99 % within {}; {}".format(
                *(format_time(t) for t in (last.quality.least_s, last.quality.median_s, last.quality.p99_s)),
                load_of(last),
            ),
            expected,
            f"ping -c 20 -i 0.2 {last.quality.address}",
        )
        for cell in shape.cells[:8]
        for last in cell.result.measurements[-1:]
    ]
    return failed(
        f"round trips: {subject(shape)}",
        f"round trips {direction(shape)} {latency_text}, measured {times(shape)}; expected {expected}",
        at=evidence[0],
        also=evidence[1:],
        nodes=shape.nodes,
        remedy="Trace the path with `tracepath`, and check whether a tunnel, filter or shaper at "
        f"{fold(shape.nodes)} delays packets (`tc qdisc show`).",
    )


@link_check("LNK009", "fabric-slower-than-cards", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
def fabric_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The links of a fleet reach a third of what their network cards and one process can carry.

    What it checks: the rates that LNK003 measures, over every pair of physical cards that report a speed. It is a
    finding if the median is below a third of the slower card's speed (of 10 Gbit/s for faster cards), and no pair
    reaches much more.

    Why it matters: LNK003 compares links with each other. If a core switch, a tunnel or a wrong network slows all links
    equally, none stands out.

    Example: all 12 directions between four nodes carry 1.9 to 2.1 Gbit/s, although the cards at both ends have 100
    Gbit/s.

    Fix: check which network the addresses belong to (`ip route get ADDRESS`), and the speed of the switches in between.

    Known limits: TCP from one process; RDM009 measures RDMA. Virtual cards report no speed and are unknown. Busy nodes
    are left out.
    """
    subject_text = "fabric bandwidth"
    if not (yield from any_link_measured(fleet, facts, subject_text)):
        return
    cards = values_and_cards(facts)[1]
    first = [several[0] for several in measurements_of(facts).values()]
    rated = [(look, rate, card) for look in first if (rate := look.rate_mbps) and (card := cards.expected_mbps(look))]
    idle = [item for item in rated if item[0].busy("slow") <= BUSY]
    if not rated:
        yield unknown(subject_text, "no measurement used two physical cards that report their speed")
        return
    if 2 * len(idle) < len(rated):
        yield unknown(subject_text, "inconclusive: host busy (most processes waited for a processor)")
        return
    shares = sorted(rate / card for _, rate, card in idle)
    rates = sorted(rate for _, rate, _ in idle)
    span = f"{format_rate(rates[0])} to {format_rate(rates[-1])}"
    if median(shares) >= FABRIC_SHARE or shares[-1] >= ALIKE_SHARE:
        yield passed(f"{subject_text}: {len(idle)} directions carry {span}, {median(shares):.0%} of their cards' speed")
        return
    look, rate, card = max(idle, key=lambda item: item[1] / item[2])
    measured = {name for item, _, _ in idle for name in item.pair}
    nodes = tuple(node.name for node in fleet.nodes if node.name in measured)
    yield failed(
        subject_text,
        f"all {len(idle)} measured directions carry only {span} over TCP, the best of them {rate / card:.0%} of the "
        f"rate that its cards and one process can reach ({format_rate(card)}); expected at least {FABRIC_SHARE:.0%}",
        at=Evidence(
            "bandwidth",
            f"{look.pair[0]} to {look.pair[1]}: {format_rate(rate)}; {cards.describe(look)}; {load_of(look)}",
            f">= {format_rate(card * FABRIC_SHARE)}",
            f"iperf3 -c {look.quality.address} -t 2 -P 4",
            look.pair[0],
        ),
        nodes=nodes,
        remedy="`ip route get` the address of another node shows the card and network in use; then check the speed of "
        "the switch ports and of links between switches, and `tc qdisc show` for shapers.",
    )


# The check of RDMA writes between two nodes, port by port, compared with the rates that the ports report.


#: The partners of each node: two, so that a fault of a node and one of a pair differ.
PARTNERS = 2
_DEADLINE_S = 12.0


def plan_rdma_speed(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Request writes between each node and two partners, on all pairs of usable ports, if the job needs RDMA."""
    demand = applicable_demand(job, fleet)
    if demand is None or nodes_share_machine(fleet) or len(fleet.reached) < 2:
        return
    usable = {node: [port for port in found if port.is_usable] for node, found in ports_by_node(job, facts).items()}
    addresses = addresses_of(job, fleet, facts)
    names = [name for name in addresses if usable.get(name)]
    if len(names) < 2:
        return
    yield from listeners(job, fleet, facts)
    for number, pairs in enumerate(rounds(names, PARTNERS)):
        for a, b in pairs:
            # If time is short, each round skips different pairs of ports.
            rails = _rails(usable[a], usable[b])
            start = number * len(rails) // PARTNERS
            yield Request(
                probe_name(rdma_speed),
                a,
                {"peer": b, "host": addresses[b], "rails": rails[start:] + rails[:start]},
                peers=(b,),
                listen=probe_name(listen),
                exclusive=True,
                because=demand.claims,
                deadline_s=_DEADLINE_S,
            )


def _rails(ports: Sequence[Port], peer_ports: Sequence[Port]) -> list[list[object]]:
    """Return pairs of ports: by name if both nodes use the same names, otherwise by position."""
    by_name = {port.name: port for port in peer_ports}
    same = [(port, by_name[port.name]) for port in ports if port.name in by_name]
    pairs = same or list(zip(ports, peer_ports, strict=False))
    return [[*_end(near), *_end(far)] for near, far in pairs if near.port.link_layer == far.port.link_layer]


def _end(port: Port) -> tuple[str, int, int]:
    gid = automatic_gid(port.port.gids) if port.port.link_layer == "Ethernet" else None
    return port.device.name, port.port.number, gid.index if gid is not None else -1


@dataclass(frozen=True, slots=True)
class Rail:
    """One measured pair of ports, with the slower port's rate in Gbit/s (None if unknown)."""

    node: str
    peer: str
    speed: RailSpeed
    rate_gbps: float | None

    @property
    def ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """The node and port of both ends."""
        near, far = f"{self.speed.device}:{self.speed.port}", f"{self.speed.peer_device}:{self.speed.peer_port}"
        return (self.node, near), (self.peer, far)

    @property
    def label(self) -> str:
        """`node1 mlx5_0:1 to node2 mlx5_0:1`."""
        return " to ".join(f"{node} {port}" for node, port in self.ends)

    @property
    def least_gbps(self) -> float | None:
        """The lower limit for its writes."""
        return None if self.rate_gbps is None else self.rate_gbps * expected_speeds().floors.rdma_write

    @property
    def is_slow(self) -> bool | None:
        """Return whether the writes are below the limit; None if unknown."""
        least, gbps = self.least_gbps, self.speed.gbps
        return None if least is None or gbps is None else gbps < least


@warning_check(
    "RDM009",
    "rdma-writes-slow",
    plan=no_requests,
    follow_up=plan_rdma_speed,
    probes=(rdma_speed, listen, rdma),
    when="link",
)
@only_if(applicable_demand, "RDMA writes", "the job uses no RDMA, or only one machine")
def rdma_writes_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """RDMA writes over each pair of ports reach three quarters of the rate that the slower port reports.

    What it checks: perftest's `ib_write_bw`, if both nodes have it, writes a gigabyte in writes of 128 KiB over each
    pair of ports that the job may use, with two partners; `ib_write_lat` also measures the latency.

    Why it matters: TCP measures the service network. A cable with errors, a slot with half its lanes, or a switch
    without lossless Ethernet slows only RDMA, and if all nodes are affected, none stands out.

    Example: node3 mlx5_2:1 writes 41 Gbit/s to both partners; its port reports 400 Gbit/s.

    Fix: `mlxlink -d DEV`, `lspci -vv` (LnkSta), counters of the port (RDM004), and flow control of the switch.

    Known limits: only host memory is used, and each pair of ports is measured separately; traffic of other jobs lowers
    the result. Without perftest, the result is unknown. A port alone is blamed only if its partners' ports are fast
    with others.
    """
    seen = list(facts.each(rdma_speed))
    if not seen:
        yield not_applicable("RDMA writes", "no two nodes have active RDMA ports")
        return
    rails = _measured_rails(job, facts)
    for reason, labels in _unmeasured_reasons(rails, facts).items():
        yield unknown(f"RDMA writes of {fold(labels, 4)}", reason)
    slow = [rail for rail in rails if rail.is_slow]
    good = [rail for rail in rails if rail.is_slow is False]
    if slow:
        yield _finding(slow, good, job, facts)
    elif good:
        rates = sorted(rail.speed.gbps or 0.0 for rail in good)
        late = sorted(rail.speed.latency_us for rail in good if rail.speed.latency_us is not None)
        shown = f", {late[0]:.3g} to {late[-1]:.3g} us" if late else ""
        yield passed(
            f"RDMA writes over {len(good)} pairs of ports: {format_rate(rates[0] * 1e3)} to "
            f"{format_rate(rates[-1] * 1e3)}{shown}"
        )


def _measured_rails(job: Job, facts: Facts) -> list[Rail]:
    rates = {
        (node, port.name): port.port.rate_gbps for node, found in ports_by_node(job, facts).items() for port in found
    }
    rails: list[Rail] = []
    for row in facts.each(rdma_speed):
        if not isinstance(row.fact, Observed):
            continue
        for speed in row.fact.value.rails:
            rail = Rail(row.node, row.fact.value.peer, speed, None)
            both = [rates.get(end) for end in rail.ends]
            known = [rate for rate in both if rate is not None]
            rails.append(Rail(row.node, rail.peer, speed, min(known) if len(known) == 2 else None))
    return rails


def _unmeasured_reasons(rails: Sequence[Rail], facts: Facts) -> dict[str, list[str]]:
    """Return the pairs of ports that could not be measured or judged, by reason."""
    reasons: dict[str, list[str]] = {}
    for row in facts.each(rdma_speed):
        if isinstance(row.fact, Unavailable):
            reasons.setdefault(row.fact.reason, []).append(f"{row.node} to {fold(row.peers)}")
        elif row.fact.value.left_out:
            reason = f"there was no time left for {row.fact.value.left_out} pairs of ports"
            reasons.setdefault(reason, []).append(f"{row.node} to {row.fact.value.peer}")
    for rail in rails:
        if rail.is_slow is None:
            reason = rail.speed.problem or "the rate of a port is unknown"
            reasons.setdefault(reason, []).append(rail.label)
    return reasons


def _finding(slow: Sequence[Rail], good_rails: Sequence[Rail], job: Job, facts: Facts) -> Verdict:
    culprits = _culprits(slow, good_rails)
    named = tuple(dict.fromkeys(node for node, _ in culprits))
    nodes = named or tuple(dict.fromkeys(name for rail in slow for name in (rail.node, rail.peer)))
    worst = min(slow, key=lambda rail: (rail.speed.gbps or 0.0) / (rail.rate_gbps or 1.0))
    least = worst.least_gbps or 0.0
    whole = "all" if not good_rails else f"{len(slow)} of {len(slow) + len(good_rails)}"
    at = f"; {fold(f'{node} {port}' for node, port in culprits)} with every partner" if culprits else ""
    evidence = [_evidence(rail, job, facts) for rail in (worst, *(rail for rail in slow if rail is not worst))][:8]
    return failed(
        f"RDMA writes of {fold(nodes)}",
        f"RDMA writes from {worst.label} {_reached(worst)}; the slower port reports "
        f"{format_rate((worst.rate_gbps or 0.0) * 1e3)}, expected at least {format_rate(least * 1e3)}; {whole} pairs "
        f"of ports are below that{at}",
        at=evidence[0],
        also=evidence[1:],
        nodes=nodes,
        remedy=f"On {fold(nodes)}: `mlxlink -d {worst.speed.device}`, `lspci -vv` (LnkSta of the card), and the "
        "port's error counters (RDM004); with RoCE, also flow control and the traffic class of the switch.",
    )


def _reached(rail: Rail) -> str:
    return f"reach {format_rate((rail.speed.gbps or 0.0) * 1e3)}"


def _evidence(rail: Rail, job: Job, facts: Facts) -> Evidence:
    late = f", {rail.speed.latency_us:g} us" if rail.speed.latency_us is not None else ""
    places = []
    for node, port in rail.ends:
        seen = facts.of(pci, node)
        address = next((p.device.pci for p in ports_by_node(job, facts).get(node, ()) if p.name == port), "")
        place = seen.value.numa.get(address) if isinstance(seen, Observed) else None
        if place is not None and place >= 0:
            places.append(f"{port} of {node} is on memory node {place}")
    beside = f"; {', '.join(places)}" if places else ""
    least = rail.least_gbps or 0.0
    return Evidence(
        "RDMA writes",
        f"{rail.label}: {_reached(rail)}{late}{beside}",
        f">= {format_rate(least * 1e3)} of {format_rate((rail.rate_gbps or 0.0) * 1e3)}",
        f"ib_write_bw -d {rail.speed.device} -i {rail.speed.port} --report_gbits {rail.peer}",
        rail.node,
    )


def _culprits(slow: Sequence[Rail], good_rails: Sequence[Rail]) -> list[tuple[str, str]]:
    """Return the ports that were slow with at least two partners that are fast with others."""
    fast = {end for rail in good_rails for end in rail.ends}
    partners: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for rail in slow:
        one, other = rail.ends
        partners.setdefault(one, set()).add(other)
        partners.setdefault(other, set()).add(one)
    return [end for end, others in partners.items() if end not in fast and len(others) > 1 and others <= fast]
