"""Checks that bandwidth and latency of links match the rest of the fleet."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from preflight.analysis.link_matrix import Cell, Shape
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, failed, passed, unknown
from preflight_checks.links.fault_shapes import (
    LinkFaults,
    covered,
    direction,
    evidence_of,
    find,
    inconclusive,
    link_check,
    load_of,
    some_measured,
    subject,
    times,
)
from preflight_checks.links.fleet_comparison import (
    BEYOND_DOUBT,
    BUSY,
    FleetValues,
    JudgedDirection,
    format_rate,
    format_time,
    measurements_of,
    of_fleet,
)
from preflight_checks.probes.link_quality import STREAMS
from preflight_checks.requirements import fold

#: Of what cards and one process carry, a fabric on which all links are alike reaches more than this share; between it
#: and the second one links are not alike, and LNK003 compares them.
FABRIC_SHARE, ALIKE_SHARE = 1 / 3, 0.4


@link_check(
    "LNK003",
    "link-slow",
    severity=Severity.ERROR,
    evidence=(
        "awslabs/awsome-distributed-ai#664",
        "NVIDIA/nccl#489",
        ("one TCP stream does not fill a fast card", "bytedance/byteps#68"),
    ),
)
def link_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No link is far slower than those of the rest of the fleet, or than its network cards.

    What it checks: TCP with one stream and with four, both directions, each node with three partners in rounds that do
    not disturb each other; compared with what the fleet reaches (the median and its deviation; in fleets under eight
    nodes the upper quartile) and compared with the slower card's speed. Outliers are measured once more.

    Why it matters: every step of a synchronous job waits for its slowest link, and no library names it.

    Example: node3 sends at 19 Mbit/s to all others; the others reach 9.4 Gbit/s. Its switch port came up at the wrong
    speed.

    Fix: compare `ethtool DEV` and `ip -s link show DEV` on the named node with another, and its switch port.

    Known limits: one process moves about 10 Gbit/s, so links are compared with at most that and the slower card's
    speed. RDMA is not measured. It is an error only below a twentieth of the fleet, twice; if waiting for a processor
    explains it, the result is inconclusive.
    """
    if not (yield from some_measured(fleet, facts, "bandwidth")):
        return
    # A link that loses, delays or truncates packets is slow for that reason, which LNK004 to LNK006 report.
    found = find(facts, ["slow"], lambda item: item.kinds == ("slow",), _best_rate)
    yield from inconclusive(found, "slow", "bandwidth")
    for shape in found.shapes:
        yield _slow_finding(shape, found)
    if not found.shapes:
        rates = sorted(rate for item in found.every if (rate := item.measurements[0].rate_mbps) is not None)
        if rates:
            yield passed(
                f"bandwidth: {covered(found, fleet)} measured, {format_rate(rates[0])} to {format_rate(rates[-1])} "
                f"over TCP"
            )
        else:
            yield unknown("bandwidth", "no transfer completed, or round trips are too long for a short transfer")


def _best_rate(item: JudgedDirection) -> float:
    return max(look.rate_mbps or 0.0 for look in item.measurements)


def _slow_finding(shape: Shape[JudgedDirection], found: LinkFaults) -> Verdict:
    best = max(_best_rate(cell.result) for cell in shape.cells)
    common = found.usual.rate_mbps
    if common is not None:
        common = min(common, *(found.cards.ceiling_mbps(cell.result.measurements[0]) for cell in shape.cells))
    cards = [
        card for cell in shape.cells if (card := found.cards.expected_mbps(cell.result.measurements[0])) is not None
    ]
    expected = f"{format_rate(common)}, as on other links"
    if common is not None and cards and best * 2 > common:
        expected = f"{format_rate(min(cards))}, the speed of the cards"
    evidence = [_slow_evidence(cell, expected, found) for cell in shape.cells[:8]]
    certain = common is not None and best < common / BEYOND_DOUBT and len(found.every) > 2 * len(shape.cells)
    return failed(
        f"bandwidth: {subject(shape)}",
        f"data moves at no more than {format_rate(best)} {direction(shape)}, measured {times(shape)}; expected "
        f"{expected}",
        at=evidence[0],
        also=evidence[1:],
        nodes=shape.nodes,
        remedy=f"Compare speed and errors of the card and of its switch port with another node's: `ethtool DEV`, "
        f"`ip -s link show DEV`, `tc qdisc show` on {fold(shape.nodes)}.",
        certain=certain,
    )


def _slow_evidence(cell: Cell[JudgedDirection], expected: str, found: LinkFaults) -> Evidence:
    look = cell.result.measurements[-1]
    cards = found.cards.describe(look)
    seen = (
        f"{format_rate(look.direction.single_mbps)} with one stream, "
        f"{format_rate(look.direction.several_mbps)} with {STREAMS}{'; ' + cards if cards else ''}; "
        f"{look.direction.retransmitted or 0} of {look.direction.segments or 0} segments sent again, "
        f"{look.quality.congestion or 'unknown'} congestion control, MSS {look.quality.mss}; {load_of(look)}"
    )
    return evidence_of("bandwidth", cell, seen, expected, f"iperf3 -c {look.quality.address} -t 2")


@link_check(
    "LNK004",
    "link-late",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "awslabs/awsome-distributed-ai#664",
        ("arXiv 2407.21783 (latency across buildings decides the layout)", "https://arxiv.org/abs/2407.21783"),
    ),
)
def link_late(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The latency of small messages is as low and as steady as in the rest of the fleet.

    What it checks: 200 round trips over TCP before anything else is sent: the shortest compared with the fleet's (five
    times and a millisecond more is late), the spread of the middle 80 % (ten times and 5 ms is unsteady). Outliers are
    measured once more.

    Why it matters: an all-reduce of many small tensors takes several round trips for each of them.

    Example: round trips between node3 and all others take at least 20 ms, between the others 0.1 ms: it is in another
    building.

    Fix: follow the path with `tracepath`, and choose nodes of one network.

    Known limits: nodes in several locations by design are late, too. Delays of a busy node are inconclusive.
    """
    if not (yield from some_measured(fleet, facts, "round trips")):
        return
    found = find(
        facts,
        ["late", "unsteady"],
        lambda item: bool({"late", "unsteady"} & {*item.kinds}) and "lossy" not in item.kinds,
        lambda item: min(look.quality.median_s for look in item.measurements),
    )
    for kind in ("late", "unsteady"):
        yield from inconclusive(found, kind, "round trips")
    for shape in found.shapes:
        yield _late_finding(shape, found.usual)
    if not found.shapes:
        trips = sorted(item.measurements[0].quality.median_s for item in found.every)
        yield passed(
            f"round trips: {covered(found, fleet)} measured, medians {format_time(trips[0])} to "
            f"{format_time(trips[-1])}"
        )


def _late_finding(shape: Shape[JudgedDirection], common: FleetValues) -> Verdict:
    looks = [look for cell in shape.cells for look in cell.result.measurements]
    late = any("late" in cell.result.kinds for cell in shape.cells)
    if late:
        seen = f"take at least {format_time(min(look.quality.least_s for look in looks))}"
        expected = f"{format_time(common.least_s)}, as on other links"
    else:
        seen = f"vary by at least {format_time(min(look.quality.spread_s for look in looks))}"
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
        f"round trips {direction(shape)} {seen}, measured {times(shape)}; expected {expected}",
        at=evidence[0],
        also=evidence[1:],
        nodes=shape.nodes,
        remedy=f"Follow the path with `tracepath`, and see whether a tunnel, filter or shaper delays it at "
        f"{fold(shape.nodes)} (`tc qdisc show`).",
    )


@link_check(
    "LNK009",
    "fabric-slower-than-cards",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#489", "awslabs/awsome-distributed-ai#664"),
)
def fabric_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The links of a fleet together reach a third of what their cards and one process carry.

    What it checks: the rates that LNK003 measures, over every pair of physical cards that report a speed; a finding if
    the median is below a third of the slower card (of 10 Gbit/s for faster ones), and no pair reaches much more.

    Why it matters: LNK003 compares links with each other. If a core switch, a tunnel or a wrong network slows all of
    them alike, none stands out.

    Example: all 12 directions between four nodes carry 1.9 to 2.1 Gbit/s, though both ends are cards of 100 Gbit/s.

    Fix: see which network the addresses belong to (`ip route get ADDRESS`), and the speed of the switches between.

    Known limits: TCP from one process; RDMA is measured by RDM009. Virtual cards report no speed and are unknown. Busy
    nodes are left out.
    """
    subject_text = "bandwidth of the fabric"
    if not (yield from some_measured(fleet, facts, subject_text)):
        return
    cards = of_fleet(facts)[1]
    first = [several[0] for several in measurements_of(facts).values()]
    stated = [(look, rate, card) for look in first if (rate := look.rate_mbps) and (card := cards.expected_mbps(look))]
    idle = [item for item in stated if item[0].busy("slow") <= BUSY]
    if not stated:
        yield unknown(subject_text, "no two cards that carried a measurement are physical and report their speed")
        return
    if 2 * len(idle) < len(stated):
        yield unknown(subject_text, "inconclusive: host busy (most processes waited for a processor meanwhile)")
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
        f"all {len(idle)} measured directions carry only {span} over TCP, the best of them {rate / card:.0%} of what "
        f"its cards and one process carry ({format_rate(card)}); expected at least {FABRIC_SHARE:.0%}",
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
