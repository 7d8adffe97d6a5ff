"""Slow, late, lossy and narrow ways: found at their node, confirmed by a second look, silent on healthy fleets."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

from preflight.judgement import Verdict
from preflight.links import disjoint, rounds
from preflight.outcome import Severity, Status
from preflight.recording import FactRecord, Facts
from preflight.request import Request
from preflight_checks.links.dialling import FREE
from preflight_checks.links.link_losses import full_frames_lost, link_loses_packets
from preflight_checks.links.link_quality import link_late, link_slow
from preflight_checks.links.quality import PARTNERS, plan_measures
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.link_quality import Quality, Way, measure
from preflight_checks.probes.links import Dialled, Target, dial

from .build import TIMEOUT, fact, facts, fleet, job, judge, one, stand_ins, statuses

JOB = {"backend": "gloo", "master_addr": "node0", "master_port": 29500}
GOOD = Way(9000.0, 9400.0, 500, 500, 0, 0, 5000, 1472, 3, 0.02)
CHECKS = (link_slow, link_late, link_loses_packets, full_frames_lost)


def failures(verdicts: list[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.status is Status.FAIL]


#: What a way from one node to another is like at which look.
Ways = Callable[[str, str, int], Way]


def healthy(source: str, peer: str, look: int) -> Way:
    return GOOD


def measured(
    ways: Ways = healthy,
    count: int = 4,
    *,
    looks: int = 2,
    trips: Callable[[str, str], Quality] | None = None,
    only: Callable[[str, str], bool] = lambda a, b: True,
) -> Facts:
    """Each node with its partners, `looks` times."""
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
                        out=ways(a, b, look),
                        back=ways(b, a, look),
                        average=[0.5, 0.5],
                        processors=[8, 8],
                    )
                    records.append(fact(measure, a, value, params={"peer": b, "try": look}, peers=(b,)))
    return facts(*records)


def test_a_healthy_fleet_passes_every_check_and_says_what_was_covered() -> None:
    for check in CHECKS:
        found = one(judge(check, job(**JOB), fleet(), measured(looks=1)), Status.PASS)
        assert "all 6 pairs" in found.subject
    found = one(judge(link_slow, job(**JOB), fleet(40), measured(count=40, looks=1)), Status.PASS)
    assert "60 of 780 pairs" in found.subject


def test_nodes_that_differ_as_nodes_do_give_nothing() -> None:
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
        assert "20 Mbit/s at most from node3" in found.message and "9.4 Gbit/s" in found.message


def test_a_node_that_is_four_times_slower_is_a_warning() -> None:
    seen = measured(lambda s, p, look: replace(GOOD, single_mbps=900.0, several_mbps=1000.0) if p == "node1" else GOOD)
    found = one(judge(link_slow, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and "to node1" in found.message


def test_a_way_between_two_nodes_that_are_fast_with_others_names_both() -> None:
    def ways(source: str, peer: str, look: int) -> Way:
        bad = {source, peer} == {"node1", "node2"}
        return replace(GOOD, single_mbps=9.0, several_mbps=11.0) if bad else GOOD

    found = one(judge(link_slow, job(**JOB), fleet(), measured(ways)), Status.FAIL)
    assert found.nodes == ("node1", "node2") and "between node1 and node2" in found.message


def test_what_is_slow_once_is_no_finding() -> None:
    def ways(source: str, peer: str, look: int) -> Way:
        return replace(GOOD, single_mbps=9.0, several_mbps=9.0) if source == "node3" and look == 1 else GOOD

    assert statuses(judge(link_slow, job(**JOB), fleet(), measured(ways))) == {"pass"}


def test_what_was_slow_once_and_never_looked_at_again_is_unknown() -> None:
    slow = replace(GOOD, single_mbps=9.0, several_mbps=9.0)
    seen = measured(lambda s, p, look: slow if s == "node3" else GOOD, looks=1)
    verdicts = judge(link_slow, job(**JOB), fleet(), seen)
    assert "no time was left" in one(verdicts, Status.UNKNOWN).message
    assert Status.FAIL not in {verdict.status for verdict in verdicts}


def test_a_busy_host_is_inconclusive() -> None:
    slow = replace(GOOD, single_mbps=9.0, several_mbps=9.0, busy=0.7)
    seen = measured(lambda s, p, look: slow if s == "node3" else GOOD)
    verdicts = judge(link_slow, job(**JOB), fleet(), seen)
    said = one(verdicts, Status.UNKNOWN)
    assert said.message.startswith("inconclusive: host busy (one of the two waited 70% of the time")
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


def test_a_whole_fleet_far_below_its_cards_is_found_though_all_are_alike() -> None:
    slow = replace(GOOD, single_mbps=90.0, several_mbps=94.0)
    seen = measured(lambda s, p, look: slow)
    assert statuses(judge(link_slow, job(**JOB), fleet(), seen)) == {"pass"}
    known = facts(*seen.records, *cards(4, 25_000))
    found = one(judge(link_slow, job(**JOB), fleet(), known), Status.FAIL)
    assert "between any two nodes" in found.message and "10 Gbit/s, as the cards carry" in found.message
    assert found.severity is Severity.WARNING
    virtual = facts(*seen.records, *cards(4, 10_000, "virtual"))
    assert statuses(judge(link_slow, job(**JOB), fleet(), virtual)) == {"pass"}


def test_a_slower_card_that_gives_what_it_can_is_no_finding() -> None:
    def ways(source: str, peer: str, look: int) -> Way:
        return replace(GOOD, single_mbps=930.0, several_mbps=940.0) if "node3" in (source, peer) else GOOD

    own = [*cards(3, 25_000), *(record for record in cards(4, 1000) if record.request.node == "node3")]
    seen = facts(*measured(ways).records, *own)
    assert statuses(judge(link_slow, job(**JOB), fleet(), seen)) == {"pass"}


def one_slow_sender_and(odd: tuple[str, str], odd_mbps: float) -> Ways:
    """node3 sends at 20 Mbit/s; all others carry what a machine's memory does, but `odd` carries less."""

    def ways(source: str, peer: str, look: int) -> Way:
        if source == "node3":
            return replace(GOOD, single_mbps=19.0, several_mbps=23.0)
        rate = odd_mbps if (source, peer) == odd else 106_000.0
        return replace(GOOD, single_mbps=rate / 2, several_mbps=rate)

    return ways


def test_rates_above_what_one_process_fills_or_a_card_carries_are_not_compared() -> None:
    seen = measured(one_slow_sender_and(("node0", "node3"), 19_900.0))
    for known in (seen, facts(*seen.records, *cards(4, 10_000, "virtual"))):
        found = one(judge(link_slow, job(**JOB), fleet(), known), Status.FAIL)
        assert found.nodes == ("node3",) and found.severity is None
        assert "23 Mbit/s at most from node3" in found.message and "10 Gbit/s, as between others" in found.message


def test_ways_that_differ_by_orders_of_magnitude_are_several_faults() -> None:
    seen = measured(one_slow_sender_and(("node0", "node3"), 1500.0))
    worse, milder = sorted(failures(judge(link_slow, job(**JOB), fleet(), seen)), key=lambda v: v.severity is not None)
    assert worse.nodes == ("node3",) and worse.severity is None and "23 Mbit/s at most from node3" in worse.message
    assert milder.nodes == ("node0", "node3") and milder.severity is Severity.WARNING
    assert "1.5 Gbit/s at most from node0 to node3" in milder.message


def test_a_card_of_a_virtual_machine_is_asked_for_no_more_than_it_states_unless_it_carried_more() -> None:
    def ways(source: str, peer: str, look: int) -> Way:
        return replace(GOOD, single_mbps=900.0, several_mbps=940.0) if "node3" in (source, peer) else GOOD

    def with_cards(stated: int) -> Facts:
        own = [record for record in cards(4, stated, "virtual") if record.request.node == "node3"]
        return facts(*measured(ways).records, *cards(3, 10_000, "virtual"), *own)

    assert statuses(judge(link_slow, job(**JOB), fleet(), with_cards(1000))) == {"pass"}
    # A tunnel's driver states 10 Mbit/s, whatever it carries.
    assert one(judge(link_slow, job(**JOB), fleet(), with_cards(10)), Status.FAIL).nodes == ("node3",)


def test_a_busy_host_does_not_explain_everything() -> None:
    def slow(mbps: float) -> Facts:
        way = replace(GOOD, single_mbps=mbps, several_mbps=mbps, busy=0.45)
        return measured(lambda s, p, look: way if s == "node3" else GOOD)

    assert one(judge(link_slow, job(**JOB), fleet(), slow(20.0)), Status.FAIL).nodes == ("node3",)
    assert "host busy" in one(judge(link_slow, job(**JOB), fleet(), slow(1500.0)), Status.UNKNOWN).message


def test_an_inconclusive_way_speaks_for_nobody() -> None:
    def ways(source: str, peer: str, look: int) -> Way:
        slow = replace(GOOD, single_mbps=19.0, several_mbps=20.0, busy=0.7 if peer == "node1" else 0.0)
        return slow if source == "node3" else GOOD

    found = one(judge(link_slow, job(**JOB), fleet(), measured(ways)), Status.FAIL)
    assert found.nodes == ("node3",) and "at most from node3" in found.message


def test_a_node_far_away_is_told_apart_from_one_that_is_a_little_late() -> None:
    near = Quality("", "", "", 5e-5, 6e-5, 1e-4, 1e-5, 200, 0)
    far = replace(near, least_s=0.0401, median_s=0.041)
    later = replace(near, least_s=0.0012, median_s=0.0015)
    seen = measured(trips=lambda a, b: far if "node3" in (a, b) else later if {a, b} == {"node0", "node1"} else near)
    found = failures(judge(link_late, job(**JOB), fleet(), seen))
    assert sorted(verdict.nodes for verdict in found) == [("node0", "node1"), ("node3",)]


def test_two_nodes_are_measured_against_each_other_only() -> None:
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
    assert "vary by 12 ms" in one(judge(link_late, job(**JOB), fleet(), seen), Status.FAIL).message
    seen = measured(trips=lambda a, b: replace(shaky, busy=0.6) if "node2" in (a, b) else near)
    assert "host busy" in one(judge(link_late, job(**JOB), fleet(), seen), Status.UNKNOWN).message


def test_loss_is_a_warning_at_the_node_that_loses_and_takes_slowness_along() -> None:
    lossy = replace(GOOD, single_mbps=9.0, several_mbps=9.0, arrived=475)
    seen = measured(lambda s, p, look: lossy if p == "node2" else GOOD)
    found = one(judge(link_loses_packets, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "(5.0%) were lost to node2" in found.message
    assert statuses(judge(link_slow, job(**JOB), fleet(), seen)) == {"pass"}


def test_what_tcp_sent_again_is_the_fault_of_the_way_that_loses_datagrams() -> None:
    """A lost segment and a lost acknowledgement look alike to TCP."""
    lossy = replace(GOOD, arrived=475)
    resent = Quality("", "", "", 5e-5, 6e-5, 1e-4, 1e-5, 200, 4)
    fine = replace(resent, lost_pings=0)
    seen = measured(
        lambda s, p, look: lossy if p == "node2" else GOOD, trips=lambda a, b: resent if "node2" in (a, b) else fine
    )
    found = one(judge(link_loses_packets, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "were lost to node2" in found.message


def test_datagrams_without_room_or_without_leave_are_no_loss() -> None:
    for way in (replace(GOOD, arrived=400, no_room=100), replace(GOOD, arrived=0, frame_bytes=0, frames_arrived=0)):
        seen = measured(lambda s, p, look, way=way: way if p == "node2" else GOOD)
        assert statuses(judge(link_loses_packets, job(**JOB), fleet(), seen)) == {"pass"}
        assert statuses(judge(full_frames_lost, job(**JOB), fleet(), seen)) == {"pass"}


def test_two_datagrams_lost_by_chance_are_none() -> None:
    seen = measured(lambda s, p, look: replace(GOOD, arrived=498))
    assert statuses(judge(link_loses_packets, job(**JOB), fleet(), seen)) == {"pass"}


def test_where_no_datagram_gets_through_tcp_alone_tells() -> None:
    shut = replace(GOOD, arrived=0, frame_bytes=0, frames_arrived=0)
    resent = Quality("", "", "", 5e-5, 6e-5, 1e-4, 1e-5, 200, 4)
    fine = replace(resent, lost_pings=0)
    seen = measured(lambda s, p, look: shut, trips=lambda a, b: resent if "node1" in (a, b) else fine)
    found = one(judge(link_loses_packets, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "small TCP messages" in found.message
    assert "UDP" in one(judge(full_frames_lost, job(**JOB), fleet(), seen), Status.UNKNOWN).message


def test_full_frames_that_vanish_are_an_error_where_rdma_may_be_used() -> None:
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
        assert statuses(judge(check, job(**JOB), stand_ins(4), facts())) == {"not-applicable"}
    assert list(plan_measures(job(**JOB), stand_ins(4), facts())) == []


def wanted(seen: Facts, count: int = 4) -> list[Request]:
    known = {record.request.key for record in seen.records}
    return [r for r in plan_measures(job(**JOB), fleet(count), seen) if r.key not in known]


def test_every_node_is_measured_with_a_few_partners_in_turns() -> None:
    first = wanted(facts(), 40)
    assert len(first) == PARTNERS * 20 and all(request.exclusive and not request.required for request in first)
    assert [len(turn) for turn in disjoint(first)] == [20] * PARTNERS


def test_what_is_closed_is_not_measured() -> None:
    bad = Target("node1", FREE, "node1", 0, "filtered")
    seen = facts(fact(dial, "node0", Dialled([bad]), peers=("node1",)))
    pairs = {frozenset((r.node, *r.peers)) for r in wanted(seen)}
    assert len(pairs) == 5 and frozenset(("node0", "node1")) not in pairs


def planned(ways: Ways) -> list[Request]:
    """The second looks at what the first found; the first are those that the plan itself asks for."""
    records = []
    for request in plan_measures(job(**JOB), fleet(), facts()):
        (peer,) = request.peers
        quality = Quality(
            peer, "", "", 5e-5, 6e-5, 1e-4, 1e-5, 200, 0, ways(request.node, peer, 1), ways(peer, request.node, 1)
        )
        records.append(fact(measure, request.node, quality, params=request.params, peers=request.peers))
    return [r for r in plan_measures(job(**JOB), fleet(), facts(*records)) if r.params["try"] == 2]


def test_only_what_is_out_of_line_is_measured_again_and_only_in_that() -> None:
    assert planned(healthy) == []
    slow = planned(lambda s, p, look: replace(GOOD, single_mbps=9.0, several_mbps=9.0) if s == "node3" else GOOD)
    assert sorted((r.node, *r.peers) for r in slow) == [(f"node{i}", "node3") for i in range(3)]
    assert all(r.params["bulk_s"] and not r.params["train"] for r in slow)
    (lossy,) = planned(lambda s, p, look: replace(GOOD, arrived=480) if (s, p) == ("node1", "node0") else GOOD)
    assert lossy.params["train"] and not lossy.params["bulk_s"]


def test_thousands_of_nodes_are_planned_and_judged_in_time() -> None:
    began = time.process_time()
    slow = replace(GOOD, single_mbps=9.0, several_mbps=9.0)
    seen = measured(lambda s, p, look: slow if s == "node77" else GOOD, 3000, only=lambda a, b: "node77" in (a, b))
    assert len(list(plan_measures(job(**JOB), fleet(3000), seen))) == PARTNERS * 1500 + PARTNERS
    assert one(judge(link_slow, job(**JOB), fleet(3000), seen), Status.FAIL).nodes == ("node77",)
    assert time.process_time() - began < 10
