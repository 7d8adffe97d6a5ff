"""Bus bandwidth compared with the links between nodes; not judged on busy hosts or without measurements."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord, Fleet
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict
from preflight_checks.probes.cgroups import Cgroups
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.probes.link_quality import Direction, Quality, measure
from preflight_checks.smoke.collective_speed import collectives_slow
from reference_trainer.collective.bandwidth import CollectiveTiming, Sweep, bus_bandwidth
from reference_trainer.collective.rank import RankReport, rank
from reference_trainer.common.messages import OPERATIONS
from tests.checks.check_builders import fact, facts, fleet, job, judge, local_fleet, one

JOB = {"backend": "gloo", "master_addr": "node0", "master_port": 29500}
#: 16 MiB in 30 ms is 0.56 GB/s of two ranks, 4.5 Gbit/s.
LARGE = 1 << 24


def timed(operation: str, message_bytes: int, seconds: float, world_size: int) -> CollectiveTiming:
    return CollectiveTiming(
        operation, message_bytes, [seconds] * 3, bus_bandwidth(operation, message_bytes, seconds, world_size)
    )


def sweep(seconds: float = 0.03, world_size: int = 2, **changes: Any) -> Sweep:
    small = [timed(name, 4096, 0.0002, world_size) for name in OPERATIONS]
    large = [timed(name, LARGE, seconds, world_size) for name in OPERATIONS]
    return replace(Sweep([*small, *large], cores=8, local_ranks=1, load=0.4, waited=0.01), **changes)


def run_records(*sweeps: Sweep, backend: str = "gloo", nodes: tuple[str, ...] = ("node0", "node1")) -> list[FactRecord]:
    records = []
    for number, (node, measured) in enumerate(zip(nodes, sweeps, strict=True)):
        report = RankReport(number, len(sweeps), node, backend, "cpu", "2.13.0", sweep=measured)
        params = {"rank": number, "world_size": len(sweeps)}
        request = Request(probe_name(rank), node, params, context=True, group="smoke train")
        records.append(FactRecord(request, asdict(report)))
    return records


def link(mbps: float, a: str = "node0", b: str = "node1") -> FactRecord:
    way = Direction(mbps, mbps, 500, 500, 0, 0, 5000, 1472, 3, 0.02)
    base = Quality(b, "10.0.0.2", "10.0.0.1", 5e-5, 6e-5, 1e-4, 1e-5, 200, 0)
    return fact(measure, a, replace(base, out=way, back=way), params={"peer": b, "try": 1}, peers=(b,))


def verdict_on(*records: FactRecord, nodes: Fleet | None = None) -> Verdict:
    (verdict,) = judge(collectives_slow, job(**JOB), nodes or fleet(2), facts(*records))
    return verdict


def test_collectives_as_fast_as_the_links_pass_with_numbers() -> None:
    verdict = verdict_on(*run_records(sweep(), sweep()), link(9400.0))
    assert verdict.status is Status.PASS
    assert "all_reduce 0.559 GB/s" in verdict.subject and "at 16 MiB" in verdict.subject
    assert "all_to_all 200 us" in verdict.subject and "at 4 KiB" in verdict.subject
    assert "2 ranks over gloo" in verdict.subject and "carried 9.4 Gbit/s" in verdict.subject


def test_the_slowest_rank_counts() -> None:
    verdict = verdict_on(*run_records(sweep(), sweep(0.05)), link(9400.0))
    assert "all_reduce 0.336 GB/s" in verdict.subject


def test_an_all_reduce_far_below_the_slowest_link_is_a_finding() -> None:
    verdict = verdict_on(*run_records(sweep(0.6), sweep(0.6)), link(9400.0))
    assert verdict.status is Status.FAIL and verdict.nodes == ("node0", "node1")
    assert "moves 224 Mbit/s" in verdict.message and "carried 9.4 Gbit/s" in verdict.message
    assert "expected at least 2.35 Gbit/s" in verdict.message
    assert collectives_slow.meta.severity is Severity.WARNING


def test_slow_links_excuse_slow_collectives() -> None:
    assert verdict_on(*run_records(sweep(0.6), sweep(0.6)), link(300.0)).status is Status.PASS


def test_more_ranks_than_cores_and_busy_hosts_are_inconclusive() -> None:
    crowded = sweep(0.6, cores=2, local_ranks=4)
    verdict = verdict_on(*run_records(crowded, sweep(0.6)), link(9400.0))
    assert verdict.status is Status.UNKNOWN and not verdict.required
    assert "host busy: 4 ranks on 2 cores of node0" in verdict.message and "all_reduce" in verdict.message
    verdict = verdict_on(*run_records(sweep(0.6, waited=0.5), sweep(0.6, waited=0.6)), link(9400.0))
    assert verdict.status is Status.UNKNOWN and "half of the ranks waited 55%" in verdict.message


def test_a_quota_leaves_fewer_cores_than_the_mask() -> None:
    value = Limits(1024, 1024, None, usable_cpus=list(range(8)), cgroup=Cgroups(cpu_quota_cores=1.5))
    held = fact(limits, "node1", value, context=True)
    verdict = verdict_on(held, *run_records(sweep(0.6, local_ranks=2), sweep(0.6, local_ranks=2)), link(9400.0))
    assert verdict.status is Status.UNKNOWN and "2 ranks on 1.5 cores of node1" in verdict.message


def test_without_links_the_numbers_are_not_judged() -> None:
    for verdict in (
        verdict_on(*run_records(sweep(0.6), sweep(0.6))),
        verdict_on(*run_records(sweep(0.6), sweep(0.6), nodes=("local0", "local1")), nodes=local_fleet(2)),
    ):
        assert verdict.status is Status.PASS and verdict.subject.startswith("bus bandwidth, not judged")


def test_a_group_too_large_for_the_message_is_not_judged() -> None:
    count = 128
    names = tuple(f"node{number}" for number in range(count))
    several = [sweep(0.6, count) for _ in range(count)]
    verdict = verdict_on(*run_records(*several, nodes=names), link(9400.0), nodes=fleet(count))
    assert verdict.status is Status.PASS and "not judged" in verdict.subject


def test_skipped_collectives_are_listed() -> None:
    lacking = sweep(unsupported=["reduce_scatter"], skipped="an all-reduce of 1048576 bytes took 2.0 s")
    verdict = verdict_on(*run_records(lacking, lacking))
    assert "gloo has no reduce_scatter" in verdict.subject and "took 2.0 s" in verdict.subject


def test_one_rank_and_no_run_have_no_bandwidth() -> None:
    alone = judge(
        collectives_slow,
        job(**JOB),
        fleet(1),
        facts(*run_records(Sweep(skipped="one rank alone sends nothing"), nodes=("node0",))),
    )
    assert "one rank alone" in one(alone, Status.NOT_APPLICABLE).message
    assert one(judge(collectives_slow, job(**JOB), fleet(2), facts()), Status.UNKNOWN).message.startswith("blocked by")
