"""A rank that is slow in both windows is named; one slow window, a busy machine or ordinary differences are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from preflight.model.findings import Severity, Status
from preflight.model.job import InputFile, Job
from preflight.model.recording import FactRecord, Facts
from preflight.model.requests import Request, probe_name
from preflight_checks.probes.copies import Copies, Copy, copies
from preflight_checks.probes.paths import Entry, PathState, path_state
from preflight_checks.smoke.collective_speed import straggler, unequal_work
from reference_trainer.collective.bandwidth import Window, partner_of
from reference_trainer.collective.rank import RankReport, rank
from tests.checks.check_builders import LAUNCH, claim, fact, facts, fleet, job, judge, one, statuses

JOB = {"backend": "gloo", "master_addr": "node0", "master_port": 29500}


def run_facts(window: Callable[[int, int], Window], count: int = 4, device: str = "cpu") -> Facts:
    """A completed run with the measurements of each rank in each window."""
    records: list[FactRecord] = []
    for number in range(count):
        report = RankReport(number, count, f"node{number}", "gloo", device, "2.13.0", steps=10, losses=[2.0, 1.0])
        value: dict[str, Any] = {**asdict(report), "windows": [asdict(window(number, index)) for index in range(2)]}
        params = {"rank": number, "world_size": count}
        request = Request(probe_name(rank), f"node{number}", params, context=True, group="smoke train")
        records.append(FactRecord(request, value))
    return facts(*records)


def usual_window(rank: int, index: int, *, times: float = 1.0, waited: float = 0.02, held: float = 0.0) -> Window:
    compute = [0.001 * times * (1 + 0.02 * (piece % 5)) for piece in range(20)]
    return Window(compute, [0.0005] * 8, (rank + 1 + index) % 4, waited, held)


def test_equal_ranks_pass() -> None:
    found = one(judge(straggler, job(**JOB), fleet(), run_facts(usual_window)), Status.PASS)
    assert found.subject.startswith("pace of 4 ranks")


def test_a_rank_that_is_slow_twice_is_named_with_its_node() -> None:
    seen = run_facts(lambda r, i: usual_window(r, i, times=3.1 if r == 2 else 1.0))
    found = one(judge(straggler, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "rank 2 on node2 took 3.1 times as long" in found.message
    assert found.severity in (None, Severity.WARNING)


def test_a_rank_that_is_slow_in_one_window_is_not() -> None:
    seen = run_facts(lambda r, i: usual_window(r, i, times=5.0 if r == 2 and i == 0 else 1.0))
    assert statuses(judge(straggler, job(**JOB), fleet(), seen)) == {"pass"}


def test_gpus_have_a_tighter_limit_than_cpus() -> None:
    seen = run_facts(lambda r, i: usual_window(r, i, times=1.5 if r == 1 else 1.0))
    assert statuses(judge(straggler, job(**JOB), fleet(), seen)) == {"pass"}
    seen = run_facts(lambda r, i: usual_window(r, i, times=1.5 if r == 1 else 1.0), device="cuda:0 NVIDIA H100")
    assert one(judge(straggler, job(**JOB), fleet(), seen), Status.FAIL).nodes == ("node1",)


def test_a_quota_is_named_as_the_reason() -> None:
    seen = run_facts(
        lambda r, i: usual_window(r, i, times=5.0, waited=0.8, held=0.78) if r == 3 else usual_window(r, i)
    )
    found = one(judge(straggler, job(**JOB), fleet(), seen), Status.FAIL)
    assert "quota held it back for 78% of the time" in found.message


def test_one_crowded_node_is_named_but_not_if_all_are() -> None:
    seen = run_facts(lambda r, i: usual_window(r, i, waited=0.7 if r == 1 else 0.01))
    found = one(judge(straggler, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "unlike most others" in found.message
    seen = run_facts(lambda r, i: usual_window(r, i, waited=0.7))
    assert statuses(judge(straggler, job(**JOB), fleet(), seen)) == {"pass"}


def slow_to_exchange(r: int, i: int, waited: float) -> Window:
    base = usual_window(r, i, waited=waited)
    return Window(base.compute_s, [0.05] * 8 if r == 2 else base.exchange_s, base.partner, waited, 0.0)


def test_a_rank_that_exchanges_slowly_with_both_partners_is_named_unless_all_are_busy() -> None:
    found = one(
        judge(straggler, job(**JOB), fleet(), run_facts(lambda r, i: slow_to_exchange(r, i, 0.01))), Status.FAIL
    )
    assert found.nodes == ("node2",) and "to exchange with others" in found.message
    said = one(
        judge(straggler, job(**JOB), fleet(), run_facts(lambda r, i: slow_to_exchange(r, i, 0.5))), Status.UNKNOWN
    )
    assert "hosts busy" in said.message and not said.required


def test_healthy_ranks_that_vary_are_never_named() -> None:
    chance = random.Random(3)
    for _ in range(300):
        seen = run_facts(
            lambda r, i: usual_window(r, i, times=chance.lognormvariate(0, 0.15), waited=chance.uniform(0, 0.9)), 8
        )
        names = {v.message for v in judge(straggler, job(**JOB), fleet(8), seen) if v.status is Status.FAIL}
        assert not any("times as long" in name for name in names)


def test_two_ranks_and_reports_without_windows_are_not_compared() -> None:
    assert statuses(judge(straggler, job(**JOB), fleet(2), run_facts(usual_window, 2))) == {"not-applicable"}
    assert statuses(judge(straggler, job(**JOB), fleet(), facts())) == {"unknown"}


def test_partners_change_between_windows_and_agree_with_each_other() -> None:
    for world_size in (1, 2, 3, 4, 5, 8, 9):
        for window in (0, 1):
            partners = {r: partner_of(r, world_size, window) for r in range(world_size)}
            assert all(p == -1 or (p != r and partners[p] == r) for r, p in partners.items())
            assert sum(p == -1 for p in partners.values()) == world_size % 2
        if world_size > 2:
            assert all(partner_of(r, world_size, 0) != partner_of(r, world_size, 1) for r in range(world_size))


def with_batches() -> Job:
    """A job with a configuration file; each node has a copy."""
    file = InputFile("ds.json", "deepspeed", "a" * 64, 9)
    return replace(job([claim("micro_batch_size_per_gpu", 4)], **JOB), files=(file,))


def batches(**sizes: int) -> list[FactRecord]:
    return [
        fact(
            copies,
            node,
            Copies("/job", [Copy("ds.json", "/job/ds.json", "", f"{size:064}", 9, {"train_batch_size": str(size)})]),
            context=True,
        )
        for node, size in sizes.items()
    ]


def test_unequal_batches_are_distinguished_from_slow_machines() -> None:
    unequal = batches(node0=4, node1=4, node2=8, node3=4)
    alike = one(
        judge(straggler, with_batches(), fleet(), facts(*unequal, *run_facts(usual_window).records)), Status.PASS
    )
    assert "the machines are alike, but the job's own work is not" in alike.subject
    assert "train_batch_size in the nodes' own copies of ds.json is node2: 8; 3 nodes have 4 (BAT030)" in alike.subject
    slow = run_facts(lambda r, i: usual_window(r, i, times=3.1 if r == 1 else 1.0)).records
    found = one(judge(straggler, with_batches(), fleet(), facts(*unequal, *slow)), Status.FAIL)
    assert found.nodes == ("node1",) and "not what makes the job's own work unequal" in found.message


def test_unequal_data_is_distinguished_from_slow_machines() -> None:
    shards = {f"{index:03}.tar": 2**20 for index in range(4)} | {"000.tar": 9 * 2**20}
    entries = [Entry(name, size) for name, size in shards.items()]
    path = "/data/{000..003}.tar"
    state = PathState(path, path, "pattern", entries=entries, listed=4, size_bytes=12 * 2**20)
    data = fact(path_state, "node0", state, params={"path": path})
    given = job(**JOB, data_path=path, world_size=4)
    alike = one(judge(straggler, given, fleet(), facts(data, *run_facts(usual_window).records)), Status.PASS)
    assert "rank 0 gets 9 MiB and rank 1 1 MiB" in alike.subject and "(DAT014)" in alike.subject


def test_sizes_set_for_single_nodes_are_reported() -> None:
    own = [
        claim("micro_batch_size_per_gpu", size, scope=replace(LAUNCH.scope, node=f"node{number}"))
        for number, size in enumerate((4, 4, 4, 16))
    ]
    given = job(own, **JOB)
    assert unequal_work(given, fleet(), facts()) == (
        "the job's files set micro_batch_size_per_gpu to node3: 16; 3 nodes have 4",
    )
    assert unequal_work(job(**JOB, micro_batch_size_per_gpu=4), fleet(), facts()) == ()
