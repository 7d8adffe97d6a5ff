"""Slow, late, lossy and narrow links: attributed to a node, confirmed by a second measurement."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from preflight.analysis.link_matrix import disjoint_rounds, rounds
from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord, Facts
from preflight.model.requests import Request
from preflight.plugins.authoring import Verdict
from preflight_checks.links.dial_requests import FREE
from preflight_checks.links.fleet_comparison import PARTNERS, plan_measurements
from preflight_checks.links.slow_links import fabric_slow, full_frames_lost, link_late, link_loses_packets, link_slow
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.link_quality import Direction, Quality, measure
from preflight_checks.probes.links import Dialled, Target, dial
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, local_fleet, one, statuses

JOB = {"backend": "gloo", "master_addr": "node0", "master_port": 29500}
GOOD = Direction(9000.0, 9400.0, 500, 500, 0, 0, 5000, 1472, 3, 0.02)
CHECKS = (link_slow, link_late, link_loses_packets, full_frames_lost)


def failures(verdicts: list[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.status is Status.FAIL]


#: The quality of a link from one node to another, by measurement.
QualityOf = Callable[[str, str, int], Direction]


def healthy(source: str, peer: str, look: int) -> Direction:
    return GOOD


def measured(
    quality: QualityOf = healthy,
    count: int = 4,
    *,
    looks: int = 2,
    trips: Callable[[str, str], Quality] | None = None,
    only: Callable[[str, str], bool] = lambda a, b: True,
) -> Facts:
    """The measurements of each node with its partners, `looks` times."""
    names = [f"node{i}" for i in range(count)]
    index = {name: f"10.0.0.{number}" for number, name in enumerate(names, 1)}
    records: list[FactRecord] = []
    for pairs in rounds(names, PARTNERS):
        for a, b in pairs:
            for look in range(1, looks + 1):
                if look == 1 or only(a, b):
                    base = trips(a, b) if trips else Quality("", "", "", 5e-5, 6e-5, 1e-4, 1e-5, 200, 0)
                    value = replace(
                        base,
                        peer=b,
                        address=index[b],
                        source=index[a],
                        out=quality(a, b, look),
                        back=quality(b, a, look),
                        average=[0.5, 0.5],
                        processors=[8, 8],
                    )
                    records.append(fact(measure, a, value, params={"peer": b, "try": look}, peers=(b,)))
    return facts(*records)


def test_a_healthy_fleet_passes_with_its_coverage() -> None:
    for check in CHECKS:
        found = one(judge(check, job(**JOB), fleet(), measured(looks=1)), Status.PASS)
        assert "all 6 pairs" in found.subject
    found = one(judge(link_slow, job(**JOB), fleet(40), measured(count=40, looks=1)), Status.PASS)
    assert "60 of 780 pairs" in found.subject


def test_ordinary_differences_are_not_findings() -> None:
    chance = random.Random(11)
    for _ in range(30):
        seen = measured(lambda s, p, look: replace(GOOD, several_mbps=chance.uniform(4000, 24000)), 12)
        assert statuses(judge(link_slow, job(**JOB), fleet(12), seen)) == {"pass"}


def test_a_node_that_sends_slowly_is_one_error_at_that_node() -> None:
    slow = replace(GOOD, single_mbps=19.0, several_mbps=20.0)
    for count in (4, 12):
        seen = measured(lambda s, p, look: slow if s == "node3" else GOOD, count)
        found = one(judge(link_slow, job(**JOB), fleet(count), seen), Status.FAIL)
        assert found.nodes == ("node3",) and found.severity is None
        assert "only 20 Mbit/s or less from node3" in found.message and "9.4 Gbit/s" in found.message


def test_a_node_that_is_four_times_slower_is_a_warning() -> None:
    seen = measured(lambda s, p, look: replace(GOOD, single_mbps=900.0, several_mbps=1000.0) if p == "node1" else GOOD)
    found = one(judge(link_slow, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and "to node1" in found.message


def test_a_slow_link_between_two_fast_nodes_names_both() -> None:
    def quality(source: str, peer: str, look: int) -> Direction:
        bad = {source, peer} == {"node1", "node2"}
        return replace(GOOD, single_mbps=9.0, several_mbps=11.0) if bad else GOOD

    found = one(judge(link_slow, job(**JOB), fleet(), measured(quality)), Status.FAIL)
    assert found.nodes == ("node1", "node2") and "between node1 and node2" in found.message


def test_a_link_that_is_slow_once_is_not_a_finding() -> None:
    def quality(source: str, peer: str, look: int) -> Direction:
        return replace(GOOD, single_mbps=9.0, several_mbps=9.0) if source == "node3" and look == 1 else GOOD

    assert statuses(judge(link_slow, job(**JOB), fleet(), measured(quality))) == {"pass"}


def test_an_unconfirmed_slow_link_is_unknown() -> None:
    slow = replace(GOOD, single_mbps=9.0, several_mbps=9.0)
    seen = measured(lambda s, p, look: slow if s == "node3" else GOOD, looks=1)
    verdicts = judge(link_slow, job(**JOB), fleet(), seen)
    assert "no time to measure it again" in one(verdicts, Status.UNKNOWN).message
    assert Status.FAIL not in {verdict.status for verdict in verdicts}


def test_a_busy_host_is_inconclusive() -> None:
    slow = replace(GOOD, single_mbps=9.0, several_mbps=9.0, busy=0.7)
    seen = measured(lambda s, p, look: slow if s == "node3" else GOOD)
    verdicts = judge(link_slow, job(**JOB), fleet(), seen)
    said = one(verdicts, Status.UNKNOWN)
    assert said.message.startswith(
        "inconclusive: host busy (one of the two hosts waited for a processor 70% of the time"
    )
    assert "load average 0.5 on 8 processors" in said.message and not said.required


def cards(count: int, speed: int, kind: str = "physical") -> list[FactRecord]:
    return [
        fact(
            interfaces,
            f"node{i}",
            Interfaces([Interface("eth0", True, True, False, [Address(f"10.0.0.{i + 1}", 24)], 1500, speed, kind)]),
        )
        for i in range(count)
    ]


def test_an_equally_slow_fleet_is_compared_with_its_cards() -> None:
    slow = replace(GOOD, single_mbps=90.0, several_mbps=94.0)
    seen = measured(lambda s, p, look: slow)
    assert statuses(judge(link_slow, job(**JOB), fleet(), seen)) == {"pass"}
    known = facts(*seen.records, *cards(4, 25_000))
    found = one(judge(link_slow, job(**JOB), fleet(), known), Status.FAIL)
    assert "between any two nodes" in found.message and "10 Gbit/s, the speed of the cards" in found.message
    assert found.severity is Severity.WARNING
    virtual = facts(*seen.records, *cards(4, 10_000, "virtual"))
    assert statuses(judge(link_slow, job(**JOB), fleet(), virtual)) == {"pass"}


def test_a_slower_card_at_its_full_rate_is_not_a_finding() -> None:
    def quality(source: str, peer: str, look: int) -> Direction:
        return replace(GOOD, single_mbps=930.0, several_mbps=940.0) if "node3" in (source, peer) else GOOD

    own = [*cards(3, 25_000), *(record for record in cards(4, 1000) if record.request.node == "node3")]
    seen = facts(*measured(quality).records, *own)
    assert statuses(judge(link_slow, job(**JOB), fleet(), seen)) == {"pass"}


def one_slow_sender_with(odd: tuple[str, str], odd_mbps: float) -> QualityOf:
    """node3 sends at 20 Mbit/s; the others are limited by memory, except for `odd`."""

    def quality(source: str, peer: str, look: int) -> Direction:
        if source == "node3":
            return replace(GOOD, single_mbps=19.0, several_mbps=23.0)
        rate = odd_mbps if (source, peer) == odd else 106_000.0
        return replace(GOOD, single_mbps=rate / 2, several_mbps=rate)

    return quality


def test_rates_above_what_one_process_fills_or_a_card_carries_are_not_compared() -> None:
    seen = measured(one_slow_sender_with(("node0", "node3"), 19_900.0))
    for known in (seen, facts(*seen.records, *cards(4, 10_000, "virtual"))):
        found = one(judge(link_slow, job(**JOB), fleet(), known), Status.FAIL)
        assert found.nodes == ("node3",) and found.severity is None
        assert "only 23 Mbit/s or less from node3" in found.message and "10 Gbit/s, as on other links" in found.message


def test_links_of_different_magnitude_are_separate_faults() -> None:
    seen = measured(one_slow_sender_with(("node0", "node3"), 1500.0))
    worse, milder = sorted(failures(judge(link_slow, job(**JOB), fleet(), seen)), key=lambda v: v.severity is not None)
    assert worse.nodes == ("node3",) and worse.severity is None and "only 23 Mbit/s or less from node3" in worse.message
    assert milder.nodes == ("node0", "node3") and milder.severity is Severity.WARNING
    assert "only 1.5 Gbit/s or less from node0 to node3" in milder.message


def test_a_virtual_card_is_expected_to_carry_what_it_states() -> None:
    def quality(source: str, peer: str, look: int) -> Direction:
        return replace(GOOD, single_mbps=900.0, several_mbps=940.0) if "node3" in (source, peer) else GOOD

    def with_cards(stated: int) -> Facts:
        own = [record for record in cards(4, stated, "virtual") if record.request.node == "node3"]
        return facts(*measured(quality).records, *cards(3, 10_000, "virtual"), *own)

    assert statuses(judge(link_slow, job(**JOB), fleet(), with_cards(1000))) == {"pass"}
    # The driver of a tunnel states 10 Mbit/s, whatever its real rate.
    assert one(judge(link_slow, job(**JOB), fleet(), with_cards(10)), Status.FAIL).nodes == ("node3",)


def test_a_busy_host_explains_only_part() -> None:
    def slow(mbps: float) -> Facts:
        direction = replace(GOOD, single_mbps=mbps, several_mbps=mbps, busy=0.45)
        return measured(lambda s, p, look: direction if s == "node3" else GOOD)

    assert one(judge(link_slow, job(**JOB), fleet(), slow(20.0)), Status.FAIL).nodes == ("node3",)
    assert "host busy" in one(judge(link_slow, job(**JOB), fleet(), slow(1500.0)), Status.UNKNOWN).message


def test_an_inconclusive_link_counts_for_no_node() -> None:
    def quality(source: str, peer: str, look: int) -> Direction:
        slow = replace(GOOD, single_mbps=19.0, several_mbps=20.0, busy=0.7 if peer == "node1" else 0.0)
        return slow if source == "node3" else GOOD

    found = one(judge(link_slow, job(**JOB), fleet(), measured(quality)), Status.FAIL)
    assert found.nodes == ("node3",) and "or less" in found.message


def test_a_distant_node_is_distinguished_from_a_slightly_late_one() -> None:
    near = Quality("", "", "", 5e-5, 6e-5, 1e-4, 1e-5, 200, 0)
    far = replace(near, least_s=0.0401, median_s=0.041)
    later = replace(near, least_s=0.0012, median_s=0.0015)
    seen = measured(trips=lambda a, b: far if "node3" in (a, b) else later if {a, b} == {"node0", "node1"} else near)
    found = failures(judge(link_late, job(**JOB), fleet(), seen))
    assert sorted(verdict.nodes for verdict in found) == [("node0", "node1"), ("node3",)]


def test_two_nodes_are_measured_with_each_other() -> None:
    seen = measured(lambda s, p, look: replace(GOOD, single_mbps=9.0, several_mbps=9.0) if s == "node1" else GOOD, 2)
    found = one(judge(link_slow, job(**JOB), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1", "node0") and found.severity is Severity.WARNING


def test_late_round_trips_name_the_node_far_away() -> None:
    far = Quality("", "", "", 0.0201, 0.0205, 0.03, 1e-4, 200, 0)
    near = replace(far, least_s=5e-5, median_s=6e-5, spread_s=1e-5)
    seen = measured(trips=lambda a, b: far if "node3" in (a, b) else near)
    found = one(judge(link_late, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node3",) and "take at least 20.1 ms" in found.message and "50 us" in found.message
    assert statuses(judge(link_slow, job(**JOB), fleet(), seen)) == {"pass"}


def test_unsteady_round_trips_are_a_finding_unless_the_host_was_busy() -> None:
    near = Quality("", "", "", 5e-5, 6e-5, 1e-4, 1e-5, 200, 0, busy=0.05)
    shaky = replace(near, spread_s=0.012, p99_s=0.03)
    seen = measured(trips=lambda a, b: shaky if "node2" in (a, b) else near)
    assert "vary by at least 12 ms" in one(judge(link_late, job(**JOB), fleet(), seen), Status.FAIL).message
    seen = measured(trips=lambda a, b: replace(shaky, busy=0.6) if "node2" in (a, b) else near)
    assert "host busy" in one(judge(link_late, job(**JOB), fleet(), seen), Status.UNKNOWN).message


def test_loss_is_a_warning_and_covers_slowness() -> None:
    lossy = replace(GOOD, single_mbps=9.0, several_mbps=9.0, arrived=475)
    seen = measured(lambda s, p, look: lossy if p == "node2" else GOOD)
    found = one(judge(link_loses_packets, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "(5.0%) were lost to node2" in found.message
    assert statuses(judge(link_slow, job(**JOB), fleet(), seen)) == {"pass"}


def test_retransmissions_are_attributed_to_the_lossy_direction() -> None:
    """A lost segment and a lost acknowledgement look alike to TCP."""
    lossy = replace(GOOD, arrived=475)
    resent = Quality("", "", "", 5e-5, 6e-5, 1e-4, 1e-5, 200, 4)
    fine = replace(resent, lost_pings=0)
    seen = measured(
        lambda s, p, look: lossy if p == "node2" else GOOD, trips=lambda a, b: resent if "node2" in (a, b) else fine
    )
    found = one(judge(link_loses_packets, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "were lost to node2" in found.message


def test_dropped_or_blocked_datagrams_are_not_loss() -> None:
    for direction in (
        replace(GOOD, arrived=400, no_room=100),
        replace(GOOD, arrived=0, frame_bytes=0, frames_arrived=0),
    ):
        seen = measured(lambda s, p, look, direction=direction: direction if p == "node2" else GOOD)
        assert statuses(judge(link_loses_packets, job(**JOB), fleet(), seen)) == {"pass"}
        assert statuses(judge(full_frames_lost, job(**JOB), fleet(), seen)) == {"pass"}


def test_two_lost_datagrams_are_not_a_finding() -> None:
    seen = measured(lambda s, p, look: replace(GOOD, arrived=498))
    assert statuses(judge(link_loses_packets, job(**JOB), fleet(), seen)) == {"pass"}


def test_without_datagrams_only_tcp_is_judged() -> None:
    shut = replace(GOOD, arrived=0, frame_bytes=0, frames_arrived=0)
    resent = Quality("", "", "", 5e-5, 6e-5, 1e-4, 1e-5, 200, 4)
    fine = replace(resent, lost_pings=0)
    seen = measured(lambda s, p, look: shut, trips=lambda a, b: resent if "node1" in (a, b) else fine)
    found = one(judge(link_loses_packets, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "small TCP messages" in found.message
    assert "UDP" in one(judge(full_frames_lost, job(**JOB), fleet(), seen), Status.UNKNOWN).message


def test_lost_full_frames_are_an_error_with_rdma() -> None:
    wide = replace(GOOD, frame_bytes=8972, frames_arrived=0)
    seen = measured(lambda s, p, look: wide if s == "node2" else GOOD)
    found = one(judge(full_frames_lost, job(**{**JOB, "backend": "nccl"}), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node2",) and found.severity is None and "8972 bytes" in found.message
    assert one(judge(full_frames_lost, job(**JOB), fleet(), seen), Status.FAIL).severity is Severity.WARNING


def test_nothing_measured_is_unknown_and_one_machine_is_not_measured() -> None:
    for check in CHECKS:
        assert statuses(judge(check, job(**JOB), fleet(), facts())) == {"unknown"}
        late = facts(fact(measure, "node0", TIMEOUT, params={"peer": "node1"}, peers=("node1",)))
        assert "no answer" in one(judge(check, job(**JOB), fleet(2), late), Status.UNKNOWN).message
        assert statuses(judge(check, job(**JOB), fleet(1), facts())) == {"not-applicable"}
        assert statuses(judge(check, job(**JOB), local_fleet(4), facts())) == {"not-applicable"}
    assert list(plan_measurements(job(**JOB), local_fleet(4), facts())) == []


def wanted(seen: Facts, count: int = 4) -> list[Request]:
    known = {record.request.key for record in seen.records}
    return [r for r in plan_measurements(job(**JOB), fleet(count), seen) if r.key not in known]


def test_every_node_is_measured_with_a_few_partners() -> None:
    first = wanted(facts(), 40)
    assert len(first) == PARTNERS * 20 and all(request.exclusive and not request.required for request in first)
    assert [len(turn) for turn in disjoint_rounds(first)] == [20] * PARTNERS


def test_closed_links_are_not_measured() -> None:
    bad = Target("node1", FREE, "node1", 0, "filtered")
    seen = facts(fact(dial, "node0", Dialled([bad]), peers=("node1",)))
    pairs = {frozenset((r.node, *r.peers)) for r in wanted(seen)}
    assert len(pairs) == 5 and frozenset(("node0", "node1")) not in pairs


def planned(quality: QualityOf) -> list[Request]:
    """The requests for second measurements after the first ones of the plan."""
    records = []
    for request in plan_measurements(job(**JOB), fleet(), facts()):
        (peer,) = request.peers
        measured_quality = Quality(
            peer, "", "", 5e-5, 6e-5, 1e-4, 1e-5, 200, 0, quality(request.node, peer, 1), quality(peer, request.node, 1)
        )
        records.append(fact(measure, request.node, measured_quality, params=request.params, peers=request.peers))
    return [r for r in plan_measurements(job(**JOB), fleet(), facts(*records)) if r.params["try"] == 2]


def test_only_outliers_are_measured_again() -> None:
    assert planned(healthy) == []
    slow = planned(lambda s, p, look: replace(GOOD, single_mbps=9.0, several_mbps=9.0) if s == "node3" else GOOD)
    assert sorted((r.node, *r.peers) for r in slow) == [(f"node{i}", "node3") for i in range(3)]
    assert all(r.params["bulk_s"] and not r.params["train"] for r in slow)
    (lossy,) = planned(lambda s, p, look: replace(GOOD, arrived=480) if (s, p) == ("node1", "node0") else GOOD)
    assert lossy.params["train"] and not lossy.params["bulk_s"]


def test_thousands_of_nodes_are_planned_and_judged() -> None:
    slow = replace(GOOD, single_mbps=9.0, several_mbps=9.0)
    seen = measured(lambda s, p, look: slow if s == "node77" else GOOD, 3000, only=lambda a, b: "node77" in (a, b))
    assert len(list(plan_measurements(job(**JOB), fleet(3000), seen))) == PARTNERS * 1500 + PARTNERS
    assert one(judge(link_slow, job(**JOB), fleet(3000), seen), Status.FAIL).nodes == ("node77",)


def fabric(rate: float, speed: int | None, *, kind: str = "physical", busy: float = 0.02, count: int = 4) -> Verdict:
    """The verdict on a fleet whose links all carry about `rate` Mbit/s between cards of `speed`."""

    def quality(source: str, peer: str, look: int) -> Direction:
        wobble = 1 + 0.02 * (int(source[-1]) - 1)
        return replace(GOOD, single_mbps=rate * wobble * 0.9, several_mbps=rate * wobble, busy=busy)

    have = [
        fact(
            interfaces,
            f"node{number}",
            Interfaces(
                [Interface("eth0", True, True, False, [Address(f"10.0.0.{number + 1}", 24)], 1500, speed, kind)]
            ),
        )
        for number in range(count)
    ]
    seen = measured(quality, count, looks=1)
    (verdict,) = judge(fabric_slow, job(**JOB), fleet(count), facts(*have, *seen.records))
    return verdict


def test_a_fabric_that_is_slow_everywhere_is_found_though_no_link_stands_out() -> None:
    found = fabric(2000.0, 100_000)
    assert found.status is Status.FAIL and found.nodes == ("node0", "node1", "node2", "node3")
    assert "all 12 measured directions carry only 1.96 Gbit/s to 2.08 Gbit/s" in found.message
    assert "expected at least 33%" in found.message and "eth0 (100000 Mbit/s)" in found.evidence[0].observed
    assert fabric(200.0, 1000).status is Status.FAIL


def test_a_fabric_at_the_speed_of_its_cards_passes() -> None:
    for rate, speed in ((940.0, 1000), (9000.0, 10_000), (6000.0, 400_000), (5000.0, 10_000)):
        assert fabric(rate, speed).status is Status.PASS


def test_virtual_cards_and_busy_hosts_leave_the_fabric_unknown() -> None:
    for found in (fabric(200.0, 10_000, kind="veth"), fabric(200.0, None)):
        assert found.status is Status.UNKNOWN and "report their speed" in found.message
    found = fabric(200.0, 10_000, busy=0.6)
    assert found.status is Status.UNKNOWN and "host busy" in found.message


def test_a_fabric_with_one_fast_link_is_left_to_the_comparison_of_links() -> None:
    def quality(source: str, peer: str, look: int) -> Direction:
        return replace(
            GOOD, several_mbps=9000.0 if {source, peer} == {"node0", "node1"} else 2000.0, single_mbps=1500.0
        )

    have = [
        fact(
            interfaces,
            f"node{n}",
            Interfaces(
                [Interface("eth0", True, True, False, [Address(f"10.0.0.{n + 1}", 24)], 1500, 100_000, "physical")]
            ),
        )
        for n in range(4)
    ]
    seen = facts(*have, *measured(quality, looks=1).records)
    assert statuses(judge(fabric_slow, job(**JOB), fleet(), seen)) == {"pass"}
    assert statuses(judge(fabric_slow, job(**JOB), fleet(1), facts())) == {"not-applicable"}
