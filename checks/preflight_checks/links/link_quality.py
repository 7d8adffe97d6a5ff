"""Whether the ways between nodes are as fast and as prompt as those of the rest of the fleet."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, passed, unknown
from preflight.matrix import Cell, Shape
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight_checks.demands import fold
from preflight_checks.links.measured import (
    COST,
    PROBES,
    Found,
    covered,
    evidence_of,
    find,
    inconclusive,
    load_of,
    nothing_measured,
    times,
)
from preflight_checks.links.quality import BEYOND_DOUBT, Judged, Usual, plan_measures, spoken_rate, spoken_time
from preflight_checks.links.shape_words import subject, way
from preflight_checks.probes.link_quality import STREAMS


@check(
    "LNK003",
    "link-slow",
    plan=lambda job, fleet, facts: (),
    follow_up=plan_measures,
    probes=PROBES,
    cost=COST,
    when="link",
    severity=Severity.ERROR,
    evidence=("awslabs/awsome-distributed-ai#664", "NVIDIA/nccl#489", "bytedance/byteps#68"),
)
def link_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No way between two nodes is far slower than those of the rest of the fleet, or than its network cards.

    What it checks: TCP with one stream and with four, both directions, each node with three partners in rounds that do
    not disturb each other; against what the fleet reaches (the median and its deviation; in fleets under eight nodes
    the upper quartile) and against the slower card's speed. What is out of line is measured once more.

    Why it matters: every step of a synchronous job waits for its slowest link, and no library says which that is.

    Example: node3 sends at 19 Mbit/s to everybody; the others reach 9.4 Gbit/s. Its switch port came up at the wrong
    speed.

    Fix: compare `ethtool DEV` and `ip -s link show DEV` on the named node with another, and its switch port.

    Known limits: one process moves about 10 Gbit/s, so nothing is held against more than that, nor against more than
    the slower card's speed; RDMA is not measured. It is an error only at less than a twentieth of the fleet, twice;
    while a node waits for a processor, and that explains it, it is inconclusive.

    Evidence: awslabs/awsome-distributed-ai#664, NVIDIA/nccl#489; bytedance/byteps#68 (one TCP stream does not fill a
    fast card).
    """
    early = nothing_measured(job, fleet, facts, "bandwidth")
    if early is not None:
        yield early
        return
    # A way that loses, delays or narrows what it carries is slow because of that, which LNK004 to LNK006 say.
    found = find(facts, ["slow"], lambda item: item.kinds == ("slow",), _best)
    yield from inconclusive(found, "slow", "bandwidth")
    for shape in found.shapes:
        yield _slow(shape, found)
    if not found.shapes:
        rates = sorted(rate for item in found.every if (rate := item.looks[0].rate_mbps) is not None)
        if rates:
            yield passed(
                f"bandwidth: {covered(found, fleet)} measured, {spoken_rate(rates[0])} to {spoken_rate(rates[-1])} "
                f"over TCP"
            )
        else:
            yield unknown(
                "bandwidth", "no transfer came to its end, or round trips are too long for a short one to tell"
            )


def _best(item: Judged) -> float:
    return max(look.rate_mbps or 0.0 for look in item.looks)


def _slow(shape: Shape[Judged], found: Found) -> Verdict:
    best = max(_best(cell.result) for cell in shape.cells)
    common = found.usual.rate_mbps
    if common is not None:
        common = min(common, *(found.cards.ceiling_mbps(cell.result.looks[0]) for cell in shape.cells))
    cards = [card for cell in shape.cells if (card := found.cards.expected_mbps(cell.result.looks[0])) is not None]
    expected = f"{spoken_rate(common)}, as between others"
    if common is not None and cards and best * 2 > common:
        expected = f"{spoken_rate(min(cards))}, as the cards carry"
    evidence = [_slow_evidence(cell, expected, found) for cell in shape.cells[:8]]
    certain = common is not None and best < common / BEYOND_DOUBT and len(found.every) > 2 * len(shape.cells)
    return failed(
        f"bandwidth: {subject(shape)}",
        f"data moves at {spoken_rate(best)} at most {way(shape)}, measured {times(shape)}; {expected}, was expected",
        at=evidence[0],
        also=evidence[1:],
        nodes=shape.nodes,
        remedy=f"Compare speed and errors of the card and of its switch port with another node's: `ethtool DEV`, "
        f"`ip -s link show DEV`, `tc qdisc show` on {fold(shape.nodes)}.",
        severity=None if certain else Severity.WARNING,
        confidence=None if certain else Confidence.MEDIUM,
    )


def _slow_evidence(cell: Cell[Judged], expected: str, found: Found) -> Evidence:
    look = cell.result.looks[-1]
    cards = found.cards.spoken(look)
    seen = (
        f"{spoken_rate(look.way.single_mbps)} with one stream, {spoken_rate(look.way.several_mbps)} with {STREAMS}"
        f"{'; ' + cards if cards else ''}; {look.way.retransmitted or 0} of {look.way.segments or 0} segments sent "
        f"again, {look.quality.congestion or 'unknown'} congestion control, MSS {look.quality.mss}; {load_of(look)}"
    )
    return evidence_of("bandwidth", cell, seen, expected, f"iperf3 -c {look.quality.address} -t 2")


@check(
    "LNK004",
    "link-late",
    plan=lambda job, fleet, facts: (),
    follow_up=plan_measures,
    probes=PROBES,
    cost=COST,
    when="link",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("awslabs/awsome-distributed-ai#664", "https://arxiv.org/abs/2407.21783"),
)
def link_late(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Small messages between nodes come as promptly and as evenly as in the rest of the fleet.

    What it checks: 200 round trips over TCP before anything else is sent: the shortest against the fleet's (five times
    and a millisecond more is late), the spread of the middle 80 % (ten times and 5 ms is unsteady). What is out of
    line is measured once more.

    Why it matters: an all-reduce of many small tensors takes several round trips for each of them.

    Example: round trips between node3 and everybody take at least 20 ms, between the others 0.1 ms: it stands in
    another building.

    Fix: look where the path leads (`tracepath`), and choose nodes of one network.

    Known limits: nodes in several places on purpose are late, too; whatever a busy node delays is inconclusive.

    Evidence: awslabs/awsome-distributed-ai#664; arXiv 2407.21783 (latency across buildings decides the layout).
    """
    early = nothing_measured(job, fleet, facts, "round trips")
    if early is not None:
        yield early
        return
    found = find(
        facts,
        ["late", "unsteady"],
        lambda item: bool({"late", "unsteady"} & {*item.kinds}) and "lossy" not in item.kinds,
        lambda item: min(look.quality.median_s for look in item.looks),
    )
    for kind in ("late", "unsteady"):
        yield from inconclusive(found, kind, "round trips")
    for shape in found.shapes:
        yield _late(shape, found.usual)
    if not found.shapes:
        trips = sorted(item.looks[0].quality.median_s for item in found.every)
        yield passed(
            f"round trips: {covered(found, fleet)} measured, medians {spoken_time(trips[0])} to "
            f"{spoken_time(trips[-1])}"
        )


def _late(shape: Shape[Judged], common: Usual) -> Verdict:
    looks = [look for cell in shape.cells for look in cell.result.looks]
    late = any("late" in cell.result.kinds for cell in shape.cells)
    if late:
        seen = f"take at least {spoken_time(min(look.quality.least_s for look in looks))}"
        expected = f"{spoken_time(common.least_s)}, as between others"
    else:
        seen = f"vary by {spoken_time(min(look.quality.spread_s for look in looks))} and more"
        expected = f"{spoken_time(common.spread_s)}, as between others"
    evidence = [
        evidence_of(
            "round trips",
            cell,
            "least {}, median {}, 99 % within {}; {}".format(
                *(spoken_time(t) for t in (last.quality.least_s, last.quality.median_s, last.quality.p99_s)),
                load_of(last),
            ),
            expected,
            f"ping -c 20 -i 0.2 {last.quality.address}",
        )
        for cell in shape.cells[:8]
        for last in cell.result.looks[-1:]
    ]
    return failed(
        f"round trips: {subject(shape)}",
        f"round trips {way(shape)} {seen}, measured {times(shape)}; {expected}, was expected",
        at=evidence[0],
        also=evidence[1:],
        nodes=shape.nodes,
        remedy=f"See where the path leads (`tracepath`) and whether a tunnel, filter or shaper delays it at "
        f"{fold(shape.nodes)} (`tc qdisc show`).",
    )
